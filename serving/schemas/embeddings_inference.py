"""Requests of Text Embeddings Inference (TEI), and their answers, as its clients know them."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from serving.schemas.fields import InputText, ListOf, example
from serving.schemas.texts import TokenId

Side = Literal["Left", "left", "Right", "right"]


class _Request(BaseModel):
    """What all of its requests have.

    Here as in the shapes of Hugging Face and OpenAI, null stands for a field that is left out.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    truncate: bool | None = Field(
        default=None, description="whether a text that is too long is cut; else it is refused"
    )
    truncation_direction: Side | None = Field(
        default="Right", description="on which side it is cut"
    )


PromptName = Annotated[str, Field(max_length=200)] | None
"""Which prompt of the model's folder stands before each text; by default the folder's own."""


class EmbedRequest(_Request):
    """Texts, or their tokens, whose vectors are wanted."""

    model_config = example(inputs=["A cat sleeps.", "The bank raised its rates."])

    inputs: InputText | ListOf[InputText] | ListOf[TokenId] | ListOf[ListOf[TokenId]]
    prompt_name: PromptName = None
    normalize: bool | None = True
    dimensions: Annotated[int, Field(ge=1)] | None = None


class EmbedAllRequest(_Request):
    """Texts whose tokens' vectors are wanted."""

    model_config = example(inputs="A cat sleeps.")

    inputs: InputText | ListOf[InputText]
    prompt_name: PromptName = None


class PredictRequest(_Request):
    """A text, a pair of texts as a list, or a list of lists of one text or two."""

    model_config = example(
        inputs=[["A joy from start to end."], ["A film that never finds its feet."]]
    )

    inputs: (
        InputText
        | Annotated[ListOf[InputText], Field(min_length=1, max_length=2)]
        | ListOf[Annotated[ListOf[InputText], Field(min_length=1, max_length=2)]]
    )
    prompt_name: None = None
    raw_scores: bool | None = Field(default=False, description="what the model says, as it is")


class Prediction(BaseModel):
    """A label and its score."""

    label: str
    score: float


class Compared(BaseModel):
    """A text, and those that it is compared with."""

    model_config = ConfigDict(extra="forbid", strict=True)

    source_sentence: InputText
    sentences: ListOf[InputText]


class _SimilarityParameters(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    truncate: bool | None = None
    truncation_direction: Side | None = "Right"
    prompt_name: PromptName = None


class SimilarityRequest(BaseModel):
    """Texts to be compared."""

    model_config = ConfigDict(extra="forbid", strict=True) | example(
        inputs={
            "source_sentence": "A cat sleeps.",
            "sentences": ["A kitten naps.", "The bank raised its rates."],
        }
    )

    inputs: Compared
    parameters: _SimilarityParameters | None = None


class Refusal(BaseModel):
    """What went wrong."""

    error: str
    error_type: str
