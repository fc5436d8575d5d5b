"""Options and answers that are the same in Python, on the command line and over HTTP.

Imports no torch, so that the client and `--help` can use it. Characters are Unicode code points.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field

OverflowOrError = Literal["error", "left", "right", "window"]
"""What becomes of a text longer than the model takes: refused, cut on a side, or windows of it."""

Unit = Literal["token", "word", "text"]
Pooling = Literal["cls", "first", "max", "mean"]
RelationKind = Literal["pairs", "scores", "labels", "texts"]
"""What examples of embeddings say: which passage belongs to a query, how near two texts are, which
class a text is of, or nothing, of bare texts."""
Masking = Literal["token", "rest_of_word"]
OutputFormat = Literal["parquet", "npy"]
StoredDtype = Literal["float16", "float32"]
"""Numbers of features on disk."""

Aggregation = Literal["none", "simple", "first", "average", "max"]
"""How what is said of sub-words becomes entities; the names are those of Hugging Face.

- `none`: each sub-word that is not outside, with its label
- `simple`: sub-words side by side whose labels belong together
- `first`: words, with the label of their first sub-word, as the model was taught
- `average`: words, with the label of the mean of their sub-words' probabilities
- `max`: words, with the label of their surest sub-word
"""


class Answer(BaseModel):
    """How much of a text the answer comes from."""

    n_tokens: int = Field(description="tokens of the text, [CLS] and [SEP] too, before any cut")
    truncated: bool = Field(description="whether the answer comes from a part of the text alone")

    def __repr_args__(self) -> Any:  # noqa: ANN401 - pydantic's own type is not public
        """Fields of the kind of answer first, without those that are None."""
        shown = [(name, value) for name, value in super().__repr_args__() if value is not None]
        return sorted(shown, key=lambda field: field[0] in Answer.model_fields)


class ScoredLabel(BaseModel):
    """A label and its score: a probability, unless raw scores were asked for."""

    label: str
    score: float


class Classified(Answer):
    """What a text was found to be: a label, those that apply, or a number."""

    label: str | None = Field(default=None, description="of a model that gives one")
    labels: list[str] | None = Field(default=None, description="of a model that gives several")
    scores: list[ScoredLabel] | None = Field(default=None, description="best first")
    value: float | None = Field(default=None, description="of a model that gives a number")


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


class Tagged(Answer):
    """The entities of a text, from left to right."""

    entities: list[Entity]


class FoundAnswer(BaseModel):
    """A passage: `text` is `context[start:end]`."""

    text: str
    start: int
    end: int
    score: float = Field(description="start plus end logit")
    probability: float = Field(description="among the answers that were considered")


class Answered(Answer):
    """The answers to a question, best first; none where the context holds none."""

    answers: list[FoundAnswer]
    null_score: float = Field(
        description="by how much the score of no answer exceeds that of the best"
    )


class Chosen(Answer):
    """The best of several choices."""

    choice: int = Field(description="the index of the best choice, from 0")
    scores: list[float] = Field(description="probability of each choice, in their order")


class Candidate(BaseModel):
    """A token that may stand there, its probability, and the text with it."""

    token: str
    id: int
    score: float
    sequence: str


class FilledMask(BaseModel):
    """A `[MASK]`, at the characters from `start` up to before `end`; likeliest tokens first."""

    start: int
    end: int
    candidates: list[Candidate]


class Filled(Answer):
    """The `[MASK]`s of a text, from left to right."""

    masks: list[FilledMask]
