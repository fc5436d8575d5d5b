"""Requests and answers of /v1/explain."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from serving.schemas.fields import InputText, ListOf, ModelAnswer, TextPair, example
from serving.schemas.texts import Token


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
