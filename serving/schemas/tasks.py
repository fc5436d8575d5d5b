"""Requests and answers of our own routes for tasks, features and pre-training heads."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer

from bert_core.interface import (
    Aggregation,
    Answer,
    Answered,
    Classified,
    Filled,
    Masking,
    Pooling,
    Tagged,
    Unit,
)
from serving.schemas.fields import (
    InputText,
    ListOf,
    ModelAnswer,
    Request,
    TextPair,
    example,
    refuse_surrogates,
)


class ClassifyRequest(Request):
    """Texts or pairs to be classified."""

    model_config = example(inputs=["A film that never finds its feet.", "A joy from start to end."])

    inputs: InputText | TextPair | ListOf[InputText | TextPair]
    top_k: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="how many labels, best first; by default all"
    )


class ClassifyAnswer(ModelAnswer):
    """One result for each input, in their order."""

    results: list[Classified]


class NerRequest(Request):
    """Texts whose entities are wanted."""

    model_config = example(inputs="Angela Merkel took the train from Berlin to Wolfsburg.")

    inputs: InputText | ListOf[InputText]
    aggregation: Aggregation = Field(
        default="first",
        description="how what is said of sub-words becomes entities: each alone, side by side, or"
        " words by their first sub-word, the mean of their sub-words, or the surest",
    )


class NerAnswer(ModelAnswer):
    """One result for each text, in their order."""

    results: list[Tagged]


class QuestionInContext(BaseModel):
    """A question and the text its answer is looked for in."""

    model_config = ConfigDict(extra="forbid", strict=True)

    question: InputText
    context: InputText


class QaRequest(Request):
    """Questions to be answered from their contexts."""

    model_config = example(
        inputs={
            "question": "Where does the Rhine rise?",
            "context": "The Rhine rises in the Swiss Alps and ends in the North Sea.",
        },
        top_k=3,
    )

    inputs: QuestionInContext | ListOf[QuestionInContext]
    top_k: int = Field(default=1, ge=1, le=100, description="how many different answers")
    max_answer_length: Annotated[int, Field(ge=1, le=512)] | None = Field(
        default=None, description="longest answer, in tokens; by default the model's"
    )
    align_to_words: bool | None = Field(
        default=None, description="whether answers have whole words; by default as the model has it"
    )
    null_threshold: float | None = Field(
        default=None,
        description="a null score above this means no answer; by default the model's, of one that"
        " was trained with unanswerable questions",
    )


class QaAnswer(ModelAnswer):
    """One result for each question, in their order."""

    results: list[Answered]


class FeaturesRequest(Request):
    """Texts whose features are wanted; strategy, unit and pooling as in `workflows/extract.py`."""

    model_config = example(inputs=["A cat sleeps.", "The bank raised its rates."], normalize=True)

    inputs: InputText | ListOf[InputText]
    strategy: str = Field(default="last", description="which layers, and how they are combined")
    unit: Unit = "text"
    pooling: Pooling | None = Field(default=None, description="by default the unit's usual one")
    normalize: bool = False
    encoding: Literal["float", "base64"] = Field(
        default="float", description="base64 is of little-endian float32, row by row"
    )


def _listed(vector: Any) -> list[float] | str:  # noqa: ANN401 - an array, of servers alone
    return vector if isinstance(vector, str | list) else vector.tolist()


Vector = Annotated[list[float] | str, PlainSerializer(_listed)]
"""Numbers, or their base64; a server has an array, which becomes a list when it is written."""


class UnitVector(BaseModel):
    """A word or token, its characters, and its vector."""

    text: str
    start: int
    end: int
    vector: Vector


class Features(Answer):
    """The vector of a text, or those of its words or tokens."""

    vector: Vector | None = None
    units: list[UnitVector] | None = None


class FeaturesAnswer(ModelAnswer):
    """One result for each text, in their order."""

    dimensions: int
    results: list[Features]


Targets = Annotated[
    ListOf[Annotated[str, Field(max_length=200), AfterValidator(refuse_surrogates)]],
    Field(min_length=1, max_length=1000),
]
"""Words, each looked for in the vocabulary; at most as many as may be asked for."""


class FillMaskRequest(Request):
    """Texts with `[MASK]` where a word is missing."""

    model_config = example(inputs="The capital of France is [MASK].")

    inputs: InputText | ListOf[InputText]
    top_k: int = Field(default=5, ge=1, le=1000, description="how many words for each [MASK]")
    targets: Targets | None = Field(
        default=None,
        description="words among which is chosen, each a token of the vocabulary; by default all",
    )


class FillMaskAnswer(ModelAnswer):
    """One result for each text, in their order."""

    results: list[Filled]


class NextSentenceRequest(Request):
    """Pairs of texts, of which the second may follow the first."""

    model_config = example(inputs={"text": "It rained all night.", "text_pair": "The river rose."})

    inputs: TextPair | ListOf[TextPair]


class NextSentence(Answer):
    """The probability that the second text follows the first."""

    is_next: float


class NextSentenceAnswer(ModelAnswer):
    """One result for each pair, in their order."""

    results: list[NextSentence]


class PseudoPerplexityRequest(Request):
    """Texts that are to be judged by how likely each of their tokens is, given all others."""

    model_config = example(inputs="The river rose after the rain.")

    inputs: InputText | ListOf[InputText]
    masking: Masking = Field(
        default="token",
        description="what is masked when a token is judged: it alone, or the rest of its word too",
    )


class JudgedToken(BaseModel):
    """A token, its characters, and the logarithm of its probability."""

    text: str
    start: int
    end: int
    log_probability: float


class Judged(Answer):
    """How likely a text is; the perplexity is left out of one without tokens."""

    pseudo_log_likelihood: float
    pseudo_perplexity: float | None = None
    tokens: list[JudgedToken]


class PseudoPerplexityAnswer(ModelAnswer):
    """One result for each text, in their order."""

    results: list[Judged]
