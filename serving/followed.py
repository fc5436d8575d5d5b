"""What a server knows of who stands at a place, and of who is wanted there."""

from dataclasses import dataclass
from pathlib import Path

from serving.models import ServedModel
from serving.pointers import Address, Pointer, WatchStatus
from serving.traffic import Role

Place = tuple[Role | None, str]
"""The role of a version, None of the one that answers, and the name that it is asked for by."""


@dataclass(frozen=True)
class Refusal:
    """A version that was not let in: which, why, and when (Unix seconds).

    `version` is None of a folder, and where MLflow did not say which one it is.
    """

    version: int | None
    reason: str
    at: float


@dataclass
class Followed:
    """What is known of what is wanted at a place.

    `pointer_path` is None of a folder, and of an address that MLflow did not answer about, `seen`
    what was tried last. `refused` is what the source stands for now, if it was not let in, and
    `registry` what became of the last question to MLflow.
    """

    source: Path | Address
    pointer_path: Path | None = None
    seen: Path | Pointer | None = None
    refused: Refusal | None = None
    registry: WatchStatus | None = None


def title_of(place: Place) -> str:
    """A place as metrics and logs name it: `mood`, `mood (canary)`."""
    role, name = place
    return name if role is None else f"{name} ({role})"


def source_of(model: ServedModel) -> Path | Address:
    """What a model was opened by: its folder, or its address at MLflow."""
    return model.folder if model.pointer is None else Address.of(model.pointer.address)
