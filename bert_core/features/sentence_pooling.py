"""How a folder of sentence-transformers makes one vector of a text: modules.json and what it names.

Public servers of embeddings follow these files, so that their clients need not say it.
"""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from bert_core.errors import UserError
from bert_core.features.units import Pooling
from bert_core.strict_json import read_json

_MODULES = "modules.json"
_LIMITS = "sentence_bert_config.json"

_MODES: dict[str, Pooling] = {"cls": "cls", "cls_token": "cls", "max": "max", "max_tokens": "max"}
_MODES |= {"mean": "mean", "mean_tokens": "mean"}
_SWITCH = "pooling_mode_"


@dataclass(frozen=True)
class SentencePooling:
    """The pooling of a text's tokens, whether its vector gets the length 1, the tokens of a row.

    `max_length` is None where the folder does not say it.
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    max_length: int | None = None


def read_sentence_pooling(folder: Path) -> SentencePooling | None:
    """What a model folder says of it; None of one that is not of sentence-transformers.

    Raises `UserError` for what we would have to do otherwise than it says.
    """
    if not (folder / _MODULES).is_file():
        return None
    modules = _read(folder / _MODULES)
    pooling: Pooling = "mean"
    normalize = False
    for module in modules if isinstance(modules, list) else []:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Normalize":
            normalize = True
        elif kind == "Pooling":
            path = folder / PurePosixPath(str(module.get("path", ""))).name / "config.json"
            pooling = _mode(_read(path), path)
        elif kind != "Transformer":
            raise UserError(
                f"a module of sentence-transformers, {kind}, that is not known here",
                str(folder / _MODULES),
                "take features at /v1/features instead, or a model without it",
            )
    limits = _read(folder / _LIMITS) if (folder / _LIMITS).is_file() else {}
    longest = limits.get("max_seq_length") if isinstance(limits, dict) else None
    return SentencePooling(pooling, normalize, longest if isinstance(longest, int) else None)


def _mode(config: Any, path: Path) -> Pooling:  # noqa: ANN401 - whatever JSON holds
    """The pooling that the configuration of one says, in its new form or its old one."""
    named = config.get("pooling_mode")
    if named is None:
        named = [
            name.removeprefix(_SWITCH)
            for name, is_on in config.items()
            if name.startswith(_SWITCH) and is_on
        ]
    modes = [named] if isinstance(named, str) else list(named)
    if len(modes) != 1 or modes[0] not in _MODES:
        raise UserError(
            f"a pooling that is not known here: {' and '.join(map(str, modes)) or 'none'}",
            str(path),
            "take features at /v1/features instead, or another model",
        )
    return _MODES[modes[0]]


def _read(path: Path) -> Any:  # noqa: ANN401 - whatever JSON holds
    return read_json(path, "restore the folder")
