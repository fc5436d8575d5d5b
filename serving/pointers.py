"""Addresses of MLflow's registry, and the small files that say which model folder one stands for.

In: `models:/NAME@ALIAS` or `models:/NAME/3`. Out: a pointer, a file in the cache of models that
`serving.watch` switches and a server reads. Nothing here imports MLflow.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from bert_core.disk import written_whole
from bert_core.errors import UserError
from bert_core.lineage import Lineage

ADDRESS_PREFIX = "models:"
POINTERS = "pointers"

_ADDRESS = re.compile(r"models:/(?P<name>[^/@]+)(@(?P<alias>[^/@]+)|/(?P<version>[0-9]{1,18}))")


class UnreachableError(UserError):
    """MLflow did not answer, or not with what was asked for; it may another time."""


@dataclass(frozen=True)
class Address:
    """A model in MLflow's registry: by an alias, which moves, or by the number of a version."""

    name: str
    alias: str | None
    version: int | None

    @classmethod
    def of(cls, text: str) -> Self:
        """Reads `models:/NAME@ALIAS` or `models:/NAME/3`; raises `UserError` for anything else."""
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise UserError(
                "not a model URI", text[:200], "write models:/name@alias or models:/name/1"
            )
        version = match["version"]
        return cls(match["name"], match["alias"], None if version is None else int(version))

    def __str__(self) -> str:
        """As it is written."""
        ending = f"/{self.version}" if self.alias is None else f"@{self.alias}"
        return f"{ADDRESS_PREFIX}/{self.name}{ending}"


class Pointer(BaseModel):
    """Which version an address stood for when MLflow was asked last, and its folder in the cache.

    `lineage` is what the registry says of the version's origin; `tracking_uri` has no password.
    """

    model_config = ConfigDict(frozen=True)

    address: str
    name: str
    version: int
    alias: str | None
    folder: Path
    tracking_uri: str
    lineage: Lineage


def pointer_path(cache: Path, address: Address, tracking_uri: str) -> Path:
    """Where the pointer of an address lies: each store at MLflow has its own."""
    store = without_password(tracking_uri)
    digest = hashlib.sha256(f"{store} {address}".encode()).hexdigest()[:12]
    readable = re.sub(r"[^\w.@-]+", "-", str(address).removeprefix(f"{ADDRESS_PREFIX}/"))[:80]
    return cache / POINTERS / f"{readable}-{digest}.json"


def switch_pointer(path: Path, pointer: Pointer) -> None:
    """Writes a pointer beside its place and renames it: a reader sees the old one or the new one.

    The folder is written relative to the cache, which may be moved as a whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    relative = pointer.model_copy(update={"folder": Path(pointer.folder.name)})
    with written_whole(path) as beside:
        beside.write_text(relative.model_dump_json(indent=1) + "\n", encoding="utf-8")


def read_pointer(path: Path) -> Pointer | None:
    """A pointer and the whole path of its folder; None where one of them is missing or damaged."""
    try:
        pointer = Pointer.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    folder = path.parent.parent / pointer.folder.name
    return pointer.model_copy(update={"folder": folder}) if folder.is_dir() else None


class WatchStatus(BaseModel):
    """When MLflow was asked last which version an address is, in Unix seconds, and what was wrong.

    `fault` is None where it has answered. `newest_version` is the highest number that the model of
    an alias has there, whatever the alias says; None where nobody knows.
    """

    model_config = ConfigDict(frozen=True)

    asked_at: float
    fault: str | None
    newest_version: int | None = None


def write_status(pointer: Path, status: WatchStatus) -> str | None:
    """Writes beside a pointer what became of the last question about it.

    Gives why not, in one line, where it cannot be written: the next question tries again.
    """
    path = _status_path(pointer)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as beside:
            beside.write_text(status.model_dump_json() + "\n", encoding="utf-8")
    except OSError as error:
        return str(error)
    return None


def read_status(pointer: Path) -> WatchStatus | None:
    """What `write_status` has left; None where it is missing or damaged."""
    try:
        return WatchStatus.model_validate_json(_status_path(pointer).read_bytes())
    except (OSError, ValidationError):
        return None


def _status_path(pointer: Path) -> Path:
    return pointer.with_suffix(".status")


def good_pointer_path(pointer: Path) -> Path:
    """Where the pointer to the last version lies that has taken traffic."""
    return pointer.with_suffix(".good")


def without_password(text: str) -> str:
    """A tracking URI, or a text that has one in it, as it may be written down and shown."""
    return re.sub(r"(?<=://)[^/@\s]+@", "", text)


def without_secrets(text: str) -> str:
    """What MLflow or a store has said, as it may be shown: addresses without password and query.

    A query may have a signature or a token.
    """
    return re.sub(r"\?[^\s?'\"<>()]*=[^\s'\"<>()]*", "", without_password(text))
