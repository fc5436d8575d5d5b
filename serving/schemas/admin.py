"""Requests and answers of the routes that show and set which versions answer."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from serving.schemas.fields import example

# No control characters: the address becomes a line that another process reads.
RegisteredAddress = Annotated[
    str,
    Field(
        max_length=512,
        pattern=r"^models:/[^/@\x00-\x1f\x7f-\x9f]+(@[^/@\x00-\x1f\x7f-\x9f]+|/[0-9]{1,18})$",
        description="models:/NAME@ALIAS, which is followed, or models:/NAME/3",
    ),
]


class BesideRequest(BaseModel):
    """Which version is to stand beside a model, and with which share of its requests."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False) | example(
        model="models:/mrpc@challenger", share=0.1
    )

    model: RegisteredAddress | None = Field(
        default=None, description="left out, whoever stands there gets another share"
    )
    share: float = Field(gt=0, le=1, description="of the model's requests")


class Standing(BaseModel):
    """A version, and how many requests it was given since it was opened (Unix seconds).

    `model` is its address at MLflow, or the name of the folder that it was given as.
    """

    model: str
    version: str | None
    since: float
    requests: int


class CanaryStanding(Standing):
    """A version that answers a share of the requests."""

    share: float


class ShadowStanding(Standing):
    """A version that is asked a share of the requests too, and what came of it.

    Items (texts, questions) of which it says the same as the model or not, and requests that it had
    no time for.
    """

    share: float
    agree: int
    differ: int
    missed: int


class RefusedStanding(BaseModel):
    """What is wanted at a place and was not let in: why, when (Unix seconds).

    `version` is null where MLflow did not say which one it is.
    """

    model: str
    version: int | None
    reason: str
    at: float


class ModelTraffic(BaseModel):
    """Who answers a name, and who stands beside; `refused` is by place, empty where all is well."""

    active: Standing
    canary: CanaryStanding | None
    shadow: ShadowStanding | None
    refused: dict[Literal["active", "canary", "shadow"], RefusedStanding]


class TrafficAnswer(BaseModel):
    """All names, as the replica that answers has them: each counts for itself."""

    models: dict[str, ModelTraffic]
