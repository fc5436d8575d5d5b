"""Requests and answers of our own routes.

Characters are Unicode code points. A result that a model computes is an `Answer`: it has the
number of tokens of its text, and whether the text was truncated.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer

from bert_core.interface import (
    Aggregation,
    Answer,
    Answered,
    Classified,
    Filled,
    Masking,
    OverflowOrError,
    Pooling,
    Tagged,
    Unit,
)
from bert_core.text_encoding import lone_surrogate

T = TypeVar("T")


def refuse_surrogates(text: str) -> str:
    """JSON can name one half of a character; nothing can be made of it."""
    start = lone_surrogate(text)
    if start is not None:
        raise ValueError(f"half a character (a lone surrogate) at {start}")
    return text


ListOf = Annotated[list[T], Field(fail_fast=True)]
"""A list that is refused for its first wrong entry: each error takes as long as many entries."""

InputText = Annotated[str, AfterValidator(refuse_surrogates)]
"""A text of whole characters."""

Name = Annotated[str, Field(max_length=200), AfterValidator(refuse_surrogates)]
"""A name that a request chooses by."""


def example(**body: Any) -> ConfigDict:  # noqa: ANN401 - any field's value
    """What a request looks like, for the OpenAPI document and the page made of it."""
    return ConfigDict(json_schema_extra={"examples": [body]})


class Closed(BaseModel):
    """What a client sends: no field that is unknown, no value of another type, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ModelRequest(Closed):
    """Which model is asked."""

    model: str | None = Field(
        default=None, description="a loaded model's name; may be left out where one can do it"
    )


class Request(ModelRequest):
    """Which model is asked, and what happens to a text that is too long for it."""

    overflow: OverflowOrError = Field(
        default="error",
        description="a text that is too long: error refuses it, left and right cut that side,"
        " window reads it in overlapping windows",
    )


class TextPair(Closed):
    """Two texts that are read together."""

    text: InputText
    text_pair: InputText


class ModelAnswer(BaseModel):
    """What a model has answered, and which version of it.

    `version` is that of MLflow's registry; of a model that was given as a folder the beginning of
    its sha256, and null where the folder has no list of checksums.
    """

    model: str
    version: str | None = None


class Problem(BaseModel):
    """What went wrong, as RFC 9457 has it; `field` is where, `remedy` what to do."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    field: str | None = None
    remedy: str | None = None


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
        description="how sub-words become entities: none (each alone), simple (adjacent ones), or"
        " by word: first (its first sub-word), average (their mean), max (the most confident)",
    )


class NerAnswer(ModelAnswer):
    """One result for each text, in their order."""

    results: list[Tagged]


class QuestionInContext(Closed):
    """A question and the text its answer is looked for in."""

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
    strategy: Name = Field(default="last", description="which layers, and how they are combined")
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
    ListOf[Name],
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


class SimilarityRequest(Request):
    """A text, and those that it is compared with."""

    model_config = example(
        source="A cat sleeps.", inputs=["A kitten naps.", "The bank raised its rates."]
    )

    source: InputText
    inputs: ListOf[InputText]
    strategy: Name = Field(default="last", description="which layers, and how they are combined")
    pooling: Pooling | None = Field(default=None, description="by default the mean of all tokens")


class Similarity(Answer):
    """The cosine of the angle between the text's vector and the source's."""

    score: float


class SimilarityAnswer(ModelAnswer):
    """One result for each text, in their order."""

    source: Answer
    results: list[Similarity]


class TokenizeRequest(ModelRequest):
    """Texts whose tokens are wanted."""

    model_config = example(inputs="unaffable")

    inputs: InputText | ListOf[InputText]
    add_special_tokens: bool = Field(default=True, description="[CLS] before, [SEP] behind")


class Token(BaseModel):
    """A token; a special one stands at no characters of the text."""

    id: int
    token: str
    special: bool
    start: int | None = None
    end: int | None = None


class Tokens(BaseModel):
    """The tokens of a text."""

    n_tokens: int
    tokens: list[Token]


class TokenizeAnswer(ModelAnswer):
    """One result for each text, in their order."""

    results: list[Tokens]


TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class DecodeRequest(ModelRequest):
    """Ids of tokens that are to be a text again."""

    model_config = example(ids=[101, 102])

    ids: ListOf[TokenId] | ListOf[ListOf[TokenId]]
    skip_special_tokens: bool = Field(default=True, description="leave out [CLS] and its like")


class DecodeAnswer(ModelAnswer):
    """One text for each list of ids, in their order."""

    results: list[str]


def _refuse_repeated(layers: list[int]) -> list[int]:
    if len(set(layers)) < len(layers):
        raise ValueError("a layer is asked for more than once")
    return layers


Layers = Annotated[
    ListOf[Annotated[int, Field(ge=1)]],
    Field(min_length=1, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_refuse_repeated),
]


class ExplainRequest(ModelRequest):
    """A text or pair whose reading is to be looked into."""

    model_config = example(inputs="A joy from start to end.")

    inputs: InputText | TextPair
    label: str | None = Field(
        default=None,
        description="of a model of classification, the label whose output is explained; by default"
        " the one that it gives",
    )
    layers: Layers | None = Field(
        default=None, description="whose attention is wanted, each once, from 1 on; by default all"
    )


class ExplainAnswer(ModelAnswer):
    """What each head of each layer looked at, and which tokens an answer hangs on.

    - `attention`, for each layer, head and token, how much it looks at each token
    - `attributions`, of a model of classification, for each token the gradient of the label's
      output times the token's input
    """

    n_tokens: int
    truncated: bool
    tokens: list[Token]
    layers: list[int]
    attention: list[list[list[list[float]]]]
    label: str | None = None
    attributions: list[float] | None = None
