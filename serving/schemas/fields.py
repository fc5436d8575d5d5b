"""What requests and answers of our own routes have in common.

Characters are Unicode code points. A result that a model computes is an `Answer`: it says how many
tokens its text has, and whether it lost some.
"""

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from bert_core.interface import OverflowOrError
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


def example(**body: Any) -> ConfigDict:  # noqa: ANN401 - any field's value
    """What a request looks like, for the OpenAPI document and the page made of it."""
    return ConfigDict(json_schema_extra={"examples": [body]})


class Request(BaseModel):
    """Which model, and what becomes of a text that is too long for it."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

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

    model_config = ConfigDict(extra="forbid", strict=True)

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
