"""Requests and answers of Hugging Face's task specification, as its clients know them.

A field of the specification that cannot be honoured here is refused, not ignored.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from bert_core.tasks.classification import ScoreFunction
from bert_core.tasks.text_tagging import Aggregation
from serving.schemas.embeddings_inference import Compared, PromptName
from serving.schemas.fields import InputText, ListOf, TextPair, example
from serving.schemas.pretrained import Targets

Direction = Literal["Left", "left", "Right", "right"]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Request(_Closed):
    options: dict[str, Any] | None = Field(
        default=None, description="of the hosted service (wait_for_model …); nothing to do here"
    )


class TextClassificationParameters(_Closed):
    """How scores are made, and how many are wanted."""

    function_to_apply: ScoreFunction | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None


class TextClassificationRequest(_Request):
    """Texts or pairs to be classified."""

    model_config = example(inputs="A joy from start to end.", parameters={"top_k": 2})

    inputs: InputText | TextPair | ListOf[InputText | TextPair]
    parameters: TextClassificationParameters | None = None


class LabelScore(BaseModel):
    """A label and its score."""

    label: str
    score: float


class TokenClassificationParameters(_Closed):
    """How sub-words are joined; a stride asks for windows over long texts."""

    aggregation_strategy: Aggregation | None = None
    ignore_labels: ListOf[str] | None = None
    stride: Annotated[int, Field(ge=0)] | None = None


class TokenClassificationRequest(_Request):
    """Texts whose entities are wanted."""

    model_config = example(inputs="Angela Merkel took the train from Berlin to Wolfsburg.")

    inputs: InputText | ListOf[InputText]
    parameters: TokenClassificationParameters | None = None


class TaggedEntity(BaseModel):
    """An entity, or, without aggregation, a sub-word."""

    entity_group: str | None = None
    entity: str | None = None
    score: float
    word: str
    start: int
    end: int


class QuestionInputs(_Closed):
    """A question and its context."""

    question: InputText
    context: InputText


class QuestionAnsweringParameters(_Closed):
    """Which answers are wanted, and how long contexts are read."""

    top_k: Annotated[int, Field(ge=1, le=1000)] | None = None
    doc_stride: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="tokens by which windows overlap, at least"
    )
    max_answer_len: Annotated[int, Field(ge=1, le=512)] | None = None
    max_seq_len: Annotated[int, Field(ge=8)] | None = None
    max_question_len: Annotated[int, Field(ge=1)] | None = None
    handle_impossible_answer: bool | None = None
    align_to_words: bool | None = None


class QuestionAnsweringRequest(_Request):
    """A question to be answered from its context, or several."""

    model_config = example(
        inputs={
            "question": "Where does the Rhine rise?",
            "context": "The Rhine rises in the Swiss Alps and ends in the North Sea.",
        }
    )

    inputs: QuestionInputs | ListOf[QuestionInputs]
    parameters: QuestionAnsweringParameters | None = None


class AnswerElement(BaseModel):
    """An answer, its probability, and its characters."""

    answer: str
    score: float
    start: int
    end: int


class FeatureExtractionParameters(_Closed):
    """How vectors are made; the specification has these fields beside `inputs`, clients inside."""

    normalize: bool | None = None
    truncate: bool | None = None
    truncation_direction: Direction | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    prompt_name: PromptName = None


class FeatureExtractionRequest(FeatureExtractionParameters):
    """Texts whose vectors are wanted."""

    model_config = example(inputs="A cat sleeps.", normalize=True)

    inputs: InputText | ListOf[InputText]
    parameters: FeatureExtractionParameters | None = None
    options: dict[str, Any] | None = None


class FillMaskParameters(_Closed):
    """How many words for each [MASK], and among which."""

    top_k: Annotated[int, Field(ge=1, le=1000)] | None = None
    targets: Targets | None = None


class FillMaskRequest(_Request):
    """Texts with `[MASK]`."""

    model_config = example(inputs="The capital of France is [MASK].")

    inputs: InputText | ListOf[InputText]
    parameters: FillMaskParameters | None = None


class FilledElement(BaseModel):
    """A token that may stand there, and the text with it."""

    sequence: str
    score: float
    token: int
    token_str: str


class SentenceSimilarityRequest(_Request):
    """Sentences to be compared with one."""

    model_config = example(
        inputs={
            "source_sentence": "A cat sleeps.",
            "sentences": ["A kitten naps.", "The bank raised its rates."],
        }
    )

    inputs: Compared
    parameters: dict[str, None] | None = None


class Refusal(BaseModel):
    """What went wrong."""

    error: str
