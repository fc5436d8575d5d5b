"""What follows `--model`: folders as they are, and addresses of MLflow's registry.

A server has no MLflow in its process: it starts `python -m serving.watch` for the addresses, and
reads the pointers that this leaves.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bert_core.errors import UserError
from serving.pointers import ADDRESS_PREFIX, Address, Pointer, read_pointer

_LOG = logging.getLogger(__name__)


def named_models(given: Sequence[str]) -> dict[str, Path | Address]:
    """Models by the names that they are asked for: `NAME=MODEL`, or the model's own name.

    A model is a folder, or an address such as `models:/NAME@ALIAS`. Raises `UserError` for two of
    one name, and for what begins as an address and is none.
    """
    found: dict[str, Path | Address] = {}
    for each in given:
        name, has_name, model = each.partition("=")
        if not has_name or each.startswith(ADDRESS_PREFIX):
            name, model = "", each
        source = Address.of(model) if model.startswith(ADDRESS_PREFIX) else Path(model)
        name = name or (source.name if isinstance(source, Address) else source.resolve().name)
        if name in found:
            raise UserError(
                "two models of one name", name, "give --model NAME=MODEL for one of them"
            )
        found[name] = source
    return found


def fetched(
    models: Mapping[str, Path | Address], *, tracking_uri: str | None, cache: Path | None
) -> dict[str, Path | Pointer]:
    """The models with a pointer, and so a folder in the cache, for each address.

    Without a tracking URI or a cache those of `serving.watch` are taken. Logs a warning where
    MLflow does not answer and a folder is there from before. Raises `UserError` where none is, and
    for what MLflow does not have.
    """
    addresses = {each for each in models.values() if isinstance(each, Address)}
    pointers = _watch_once(sorted(addresses, key=str), tracking_uri, cache) if addresses else {}
    return {
        name: pointers[each] if isinstance(each, Address) else each for name, each in models.items()
    }


def _watch_once(
    addresses: Sequence[Address], tracking_uri: str | None, cache: Path | None
) -> dict[Address, Pointer]:
    command = [sys.executable, "-m", "serving.watch"]
    command += [f"--model={each}" for each in addresses]
    command += [f"--tracking_uri={tracking_uri}"] if tracking_uri is not None else []
    command += [f"--cache={cache}"] if cache is not None else []
    ended = subprocess.run(command, capture_output=True, text=True, env=_environment(), check=False)
    lines = [json.loads(each) for each in ended.stdout.splitlines() if each.startswith("{")]
    if ended.returncode == 2 and lines and "remedy" in lines[-1]:
        raise UserError(**lines[-1])
    pointers: dict[Address, Pointer] = {}
    for line in lines:
        if line["warning"] is not None:
            _LOG.warning("warning: %s", line["warning"])
        pointer = read_pointer(Path(line["pointer"]))
        if pointer is not None:
            pointers[Address.of(line["model"])] = pointer
    missing = [str(each) for each in addresses if each not in pointers]
    if missing:
        said = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UserError(
            f"python -m serving.watch ended with {ended.returncode}, {said[:300]}",
            " ".join(missing),
            "run it by hand with the same --model to see more",
        )
    return pointers


def _environment() -> dict[str, str]:
    """That of this process; the code of this project is found from any working folder."""
    project = str(Path(__file__).resolve().parent.parent)
    paths = [project, os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
