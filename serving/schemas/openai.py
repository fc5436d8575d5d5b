"""Requests and answers of OpenAI's routes for embeddings, as its clients know them."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from serving.schemas.fields import InputText, ListOf, example
from serving.schemas.texts import TokenId


class EmbeddingsRequest(BaseModel):
    """Texts, or their tokens, whose vectors are wanted."""

    model_config = ConfigDict(extra="forbid", strict=True) | example(
        model="minilm", input=["A cat sleeps.", "The bank raised its rates."]
    )

    input: (
        InputText
        | Annotated[ListOf[InputText], Field(min_length=1)]
        | Annotated[ListOf[TokenId], Field(min_length=1)]
        | Annotated[ListOf[Annotated[ListOf[TokenId], Field(min_length=1)]], Field(min_length=1)]
    )
    model: str
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = Field(default=None, description="accepted, and not used")


class Embedding(BaseModel):
    """The vector of one input."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """The tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """The vectors of all inputs, in their order."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class Model(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "bertline"


class Models(BaseModel):
    """All models that are served."""

    object: Literal["list"] = "list"
    data: list[Model]


class Mistake(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class Refusal(BaseModel):
    """The envelope of a mistake."""

    error: Mistake
