"""Requests and answers of the routes about texts: how alike they are, and their tokens."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from serving.schemas.choices import Pooling
from serving.schemas.fields import Answer, InputText, ListOf, ModelAnswer, Request, example


class SimilarityRequest(Request):
    """A text, and those that it is compared with."""

    model_config = example(
        source="A cat sleeps.", inputs=["A kitten naps.", "The bank raised its rates."]
    )

    source: InputText
    inputs: ListOf[InputText]
    strategy: str = Field(default="last", description="which layers, and how they are combined")
    pooling: Pooling | None = Field(default=None, description="by default the mean of all tokens")


class Similarity(Answer):
    """The cosine of the angle between the text's vector and the source's."""

    score: float


class SimilarityAnswer(ModelAnswer):
    """One result for each text, in their order."""

    source: Answer
    results: list[Similarity]


class TokenizeRequest(BaseModel):
    """Texts whose tokens are wanted."""

    model_config = ConfigDict(extra="forbid", strict=True) | example(inputs="unaffable")

    model: str | None = Field(default=None, description="a loaded model's name")
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


class DecodeRequest(BaseModel):
    """Ids of tokens that are to be a text again."""

    model_config = ConfigDict(extra="forbid", strict=True) | example(ids=[101, 102])

    model: str | None = Field(default=None, description="a loaded model's name")
    ids: ListOf[TokenId] | ListOf[ListOf[TokenId]]
    skip_special_tokens: bool = Field(default=True, description="leave out [CLS] and its like")


class DecodeAnswer(ModelAnswer):
    """One text for each list of ids, in their order."""

    results: list[str]
