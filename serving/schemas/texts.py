"""Requests and answers of our own routes about texts: similarity, tokens, explanations."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from bert_core.interface import Answer, Pooling
from serving.schemas.fields import InputText, ListOf, ModelAnswer, Request, TextPair, example


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


def _refuse_repeated(layers: list[int]) -> list[int]:
    if len(set(layers)) < len(layers):
        raise ValueError("a layer is asked for more than once")
    return layers


Layers = Annotated[
    ListOf[Annotated[int, Field(ge=1)]],
    Field(min_length=1, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_refuse_repeated),
]


class ExplainRequest(BaseModel):
    """A text or pair whose reading is to be looked into."""

    model_config = ConfigDict(extra="forbid", strict=True) | example(
        inputs="A joy from start to end."
    )

    model: str | None = Field(
        default=None, description="a loaded model's name; may be left out where there is one"
    )
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
