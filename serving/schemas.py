"""What clients send and get: the requests and answers of our own routes, under /v1.

Characters are Unicode code points. Every answer says how many tokens its text has, and whether it
lost some.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from bert_core.features.units import Pooling, Unit
from bert_core.tasks.text_tagging import Aggregation

OverflowOrError = Literal["error", "left", "right", "window"]


def _refuse_surrogates(text: str) -> str:
    """JSON can name one half of a character; nothing can be made of it."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"half a character (a lone surrogate) at {error.start}") from None
    return text


InputText = Annotated[str, AfterValidator(_refuse_surrogates)]
"""A text of whole characters."""


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str | None = Field(
        default=None, description="a loaded model's name; may be left out where one can do it"
    )
    overflow: OverflowOrError = Field(
        default="error",
        description="what becomes of a text longer than the model takes: refused, cut on the left"
        " or right, or read in overlapping windows",
    )


class TextPair(BaseModel):
    """Two texts that are read together."""

    model_config = ConfigDict(extra="forbid")

    text: InputText
    text_pair: InputText


class ClassifyRequest(_Request):
    """Texts or pairs to be classified."""

    inputs: InputText | TextPair | list[InputText | TextPair]
    top_k: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="how many labels, best first; by default all"
    )


class _Answer(BaseModel):
    n_tokens: int = Field(description="tokens of the text, [CLS] and [SEP] too, before any cut")
    truncated: bool = Field(description="whether the answer comes from a part of the text alone")


class ScoredLabel(BaseModel):
    """A label and its probability."""

    label: str
    score: float


class Classified(_Answer):
    """What a text was found to be: a label, those that apply, or a number."""

    label: str | None = Field(default=None, description="of a model that gives one")
    labels: list[str] | None = Field(default=None, description="of a model that gives several")
    scores: list[ScoredLabel] | None = Field(default=None, description="best first")
    value: float | None = Field(default=None, description="of a model that gives a number")


class ClassifyAnswer(BaseModel):
    """One result for each input, in their order."""

    model: str
    results: list[Classified]


class NerRequest(_Request):
    """Texts whose entities are wanted."""

    inputs: InputText | list[InputText]
    aggregation: Aggregation = Field(
        default="first",
        description="how what is said of sub-words becomes entities: each alone, side by side, or"
        " words by their first sub-word, the mean of their sub-words, or the surest",
    )


class Entity(BaseModel):
    """An entity: `text` is `inputs[start:end]`, in characters; words count from 0.

    `score` is the mean probability of the labels of its parts.
    """

    type: str
    text: str
    start: int
    end: int
    start_word: int | None = None
    end_word: int | None = Field(default=None, description="the word after the last")
    score: float


class Tagged(_Answer):
    """The entities of a text, from left to right."""

    entities: list[Entity]


class NerAnswer(BaseModel):
    """One result for each text, in their order."""

    model: str
    results: list[Tagged]


class QuestionInContext(BaseModel):
    """A question and the text its answer is looked for in."""

    model_config = ConfigDict(extra="forbid")

    question: InputText
    context: InputText


class QaRequest(_Request):
    """Questions to be answered from their contexts."""

    inputs: QuestionInContext | list[QuestionInContext]
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
        " was taught that there may be none",
    )


class FoundAnswer(BaseModel):
    """A passage: `text` is `context[start:end]`."""

    text: str
    start: int
    end: int
    score: float = Field(description="start plus end logit")
    probability: float = Field(description="among the answers that were considered")


class Answered(_Answer):
    """The answers to a question, best first; none where the context holds none."""

    answers: list[FoundAnswer]
    null_score: float = Field(
        description="by how much the score of no answer exceeds that of the best"
    )


class QaAnswer(BaseModel):
    """One result for each question, in their order."""

    model: str
    results: list[Answered]


class FeaturesRequest(_Request):
    """Texts whose features are wanted; strategy, unit and pooling as in `workflows/extract.py`."""

    inputs: InputText | list[InputText]
    strategy: str = Field(default="last", description="which layers, and how they are combined")
    unit: Unit = "text"
    pooling: Pooling | None = Field(default=None, description="by default the unit's usual one")
    normalize: bool = False
    encoding: Literal["float", "base64"] = Field(
        default="float", description="base64 is of little-endian float32, row by row"
    )


class UnitVector(BaseModel):
    """A word or token, its characters, and its vector."""

    text: str
    start: int
    end: int
    vector: list[float] | str


class Features(_Answer):
    """The vector of a text, or those of its words or tokens."""

    vector: list[float] | str | None = None
    units: list[UnitVector] | None = None


class FeaturesAnswer(BaseModel):
    """One result for each text, in their order."""

    model: str
    dimensions: int
    results: list[Features]


class Problem(BaseModel):
    """What went wrong, as RFC 9457 has it; `field` is where, `remedy` what to do."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    field: str | None = None
    remedy: str | None = None
