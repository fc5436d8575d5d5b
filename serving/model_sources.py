"""What follows `--model`: folders as they are, and addresses of MLflow's registry.

A server has no MLflow in its process: `serving.watch` fetches what addresses stand for, and leaves
pointers, which are read here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_core.errors import UserError, nearest
from serving.pointers import ADDRESS_PREFIX, Address, Pointer, read_pointer
from serving.traffic import Role

_SHARE = re.compile(r"\d*\.?\d+")


def named_models(given: Sequence[str]) -> dict[str, Path | Address]:
    """Models by the names that they are asked for: `NAME=MODEL`, or the model's own name.

    A model is a folder, or an address such as `models:/NAME@ALIAS`. Raises `UserError` for two of
    one name, and for what begins as an address and is none.
    """
    found: dict[str, Path | Address] = {}
    for each in given:
        name, has_name, model = each.partition("=")
        if not has_name or "/" in name or each.startswith(ADDRESS_PREFIX):  # "=" is in the path
            name, model = "", each
        source = Address.of(model) if model.startswith(ADDRESS_PREFIX) else Path(model)
        name = name or (source.name if isinstance(source, Address) else source.resolve().name)
        if name in found:
            raise UserError(
                "two models of one name", name, "give --model NAME=MODEL for one of them"
            )
        found[name] = source
    return found


@dataclass(frozen=True)
class SharedSource:
    """Another version of a model, and its share of the requests, more than 0 and 1 at most."""

    source: Path | Address
    share: float


def shared_models(given: Sequence[str], option: str) -> dict[str, SharedSource]:
    """Versions beside others by the names of those: `NAME=MODEL,SHARE`.

    Raises `UserError` for anything else.
    """
    found: dict[str, SharedSource] = {}
    for each in given:
        name, has_name, rest = each.partition("=")
        model, has_share, share = rest.rpartition(",")
        is_share = has_share and _SHARE.fullmatch(share) and 0 < float(share) <= 1
        if not has_name or not is_share:
            remedy = "write NAME=MODEL,SHARE with a share above 0 and up to 1"
            raise UserError("not another version", f"--{option} {each}", remedy)
        if name in found:
            raise UserError(f"two for {name}", f"--{option}", "give one")
        (source,) = named_models([model]).values()
        found[name] = SharedSource(source, float(share))
    return found


def versions_beside(
    models: Mapping[str, Path | Address], given: Mapping[Role, Sequence[str]]
) -> dict[Role, dict[str, SharedSource]]:
    """Other versions of models, by role and name; raises `UserError` for those of no model."""
    found: dict[Role, dict[str, SharedSource]] = {}
    for role, some in given.items():
        found[role] = shared_models(some, role)
        for name in found[role].keys() - models.keys():
            raise UserError(
                f"no model {name!r}{nearest(name, models)}", f"--{role}", "name one of --model"
            )
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
