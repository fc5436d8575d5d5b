"""Addresses in MLflow's registry, pointers to fetched folders, and the models of a command line.

An address is `models:/NAME@ALIAS` or `models:/NAME/3`. A pointer is a file in the model cache that
says which folder an address stands for: `serving.watch` switches it, a server reads it. Nothing
here imports MLflow or torch.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from bert_core.disk import write_atomically
from bert_core.errors import UserError, nearest
from bert_core.hub import SCHEME, fetch_hub_model
from bert_core.lineage import Lineage

ADDRESS_PREFIX = "models:"
POINTERS = "pointers"

_ADDRESS = re.compile(r"models:/(?P<name>[^/@]+)(@(?P<alias>[^/@]+)|/(?P<version>[0-9]{1,18}))")


class UnreachableError(UserError):
    """MLflow did not answer, or not with what was asked for; another try may succeed."""


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
    """Where the pointer of an address lies; every MLflow store has its own pointers."""
    store = without_password(tracking_uri)
    digest = hashlib.sha256(f"{store} {address}".encode()).hexdigest()[:12]
    readable = re.sub(r"[^\w.@-]+", "-", str(address).removeprefix(f"{ADDRESS_PREFIX}/"))[:80]
    return cache / POINTERS / f"{readable}-{digest}.json"


def switch_pointer(path: Path, pointer: Pointer) -> None:
    """Writes a pointer atomically: a reader sees the old one or the new one.

    The folder is written relative to the cache, which may be moved as a whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    relative = pointer.model_copy(update={"folder": Path(pointer.folder.name)})
    write_atomically(path, relative.model_dump_json(indent=1) + "\n")


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

    `fault` is None where it has answered. `newest_version` is the highest version of an alias's
    model, wherever the alias points; None where that is unknown.
    """

    model_config = ConfigDict(frozen=True)

    asked_at: float
    fault: str | None
    newest_version: int | None = None


def write_status(pointer: Path, status: WatchStatus) -> str | None:
    """Writes the result of the last question next to a pointer.

    Returns why it cannot be written, in one line, or None; the next question tries again.
    """
    path = _status_path(pointer)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, status.model_dump_json() + "\n")
    except OSError as error:
        return str(error)
    return None


def read_status(pointer: Path) -> WatchStatus | None:
    """The status next to a pointer; None where it is missing or damaged."""
    try:
        return WatchStatus.model_validate_json(_status_path(pointer).read_bytes())
    except (OSError, ValidationError):
        return None


def _status_path(pointer: Path) -> Path:
    return pointer.with_suffix(".status")


def last_good_path(pointer: Path) -> Path:
    """Where the pointer to the last version that took traffic lies."""
    return pointer.with_suffix(".good")


def without_password(text: str) -> str:
    """A tracking URI, or a text that has one in it, as it may be written down and shown."""
    return re.sub(r"(?<=://)[^/@\s]+@", "", text)


def without_secrets(text: str) -> str:
    """A message of MLflow or a store, as it may be shown: addresses without password and query.

    A query may have a signature or a token.
    """
    return re.sub(r"\?[^\s?'\"<>()]*=[^\s'\"<>()]*", "", without_password(text))


Role = Literal["canary", "shadow"]
"""A canary answers a share of the requests; a shadow is asked them too, and only compared."""
ROLES: tuple[Role, ...] = ("canary", "shadow")

_SHARE = re.compile(r"\d*\.?\d+")


def named_models(given: Sequence[str]) -> dict[str, Path | Address]:
    """Models by the names that they are asked for: `NAME=MODEL`, or the model's own name.

    A model is a folder, an address such as `models:/NAME@ALIAS`, or one of the Hub, whose files are
    fetched. Raises `UserError` for two of one name, and for what begins as an address and is none.
    """
    found: dict[str, Path | Address] = {}
    for text in given:
        name, has_name, model = text.partition("=")
        if not has_name or "/" in name or text.startswith(ADDRESS_PREFIX):  # "=" is in the path
            name, model = "", text
        is_address = model.startswith(ADDRESS_PREFIX)
        # A shell expands no ~ after "NAME=".
        if model.startswith(SCHEME):
            of_hub = fetch_hub_model(model)
            name, source = name or of_hub.name, of_hub.folder
        else:
            source = Address.of(model) if is_address else Path(model).expanduser()
        name = name or (source.name if isinstance(source, Address) else source.resolve().name)
        if name in found:
            raise UserError(
                "two models of one name", name, "give --model NAME=MODEL for one of them"
            )
        found[name] = source
    return found


Slot = tuple[Role | None, str]
"""What a version is to a model: its role, None for the version that answers, and the name."""


def title_of(slot: Slot) -> str:
    """A slot as metrics and logs name it: `mood`, `mood (canary)`."""
    role, name = slot
    return name if role is None else f"{name} ({role})"


@dataclass(frozen=True)
class VariantSource:
    """Another version of a model, and its share of the requests, more than 0 and 1 at most."""

    source: Path | Address
    share: float


Variants = Mapping[Slot, VariantSource]
"""The canaries and shadows that are wanted."""


@dataclass(frozen=True)
class Refusal:
    """A version that was refused: which, why, and when (Unix seconds).

    `version` is None for a folder, and where MLflow did not say which one it is.
    """

    version: int | None
    reason: str
    at: float


@dataclass
class SlotState:
    """What is known of the version that is wanted in a slot.

    `pointer_path` is None for a folder, and for an address that MLflow did not answer about; `seen`
    is what was tried last, `refused` what the source stands for now if that was refused, `registry`
    the result of the last question to MLflow.
    """

    source: Path | Address
    pointer_path: Path | None = None
    seen: Path | Pointer | None = None
    refused: Refusal | None = None
    registry: WatchStatus | None = None


def parse_variants(
    models: Mapping[str, Path | Address], canaries: Sequence[str], shadows: Sequence[str]
) -> dict[Slot, VariantSource]:
    """Canaries and shadows, each given as `NAME=MODEL,SHARE`.

    Raises `UserError` for another form, two of one slot, and a name that is not served.
    """
    found: dict[Slot, VariantSource] = {}
    given: dict[Role, Sequence[str]] = {"canary": canaries, "shadow": shadows}
    for role, texts in given.items():
        for text in texts:
            name, has_name, rest = text.partition("=")
            model, has_share, share = rest.rpartition(",")
            is_share = has_share and _SHARE.fullmatch(share) and 0 < float(share) <= 1
            if not has_name or not is_share:
                remedy = "write NAME=MODEL,SHARE with a share above 0 and up to 1"
                raise UserError("not another version", f"--{role} {text}", remedy)
            if (role, name) in found:
                raise UserError(f"two for {name}", f"--{role}", "give one")
            if name not in models:
                raise UserError(
                    f"no model {name!r}{nearest(name, models)}", f"--{role}", "name one of --model"
                )
            (source,) = named_models([model]).values()
            found[role, name] = VariantSource(source, float(share))
    return found


def fetched(source: Path | Address, pointers: Mapping[Address, Path]) -> Path | Pointer:
    """A folder as it is, or what the pointer to an address says now.

    Raises `UserError` where the folder that it points to is not there.
    """
    if isinstance(source, Path):
        return source
    pointer = read_pointer(pointers[source])
    if pointer is None:
        what, remedy = "the pointer's folder is not there", "start again: it is fetched"
        raise UserError(what, str(pointers[source]), remedy)
    return pointer
