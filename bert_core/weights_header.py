"""What a safetensors file says it holds, read before any of it is, and held against a config.json.

So sizes that only the configuration claims take no memory.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from bert_core.config import ModelConfig
from bert_core.hugging_face import by_full_name, to_hugging_face
from bert_core.model.encoder import Encoder

MOST_HEADER_BYTES = 1 << 24
"""BERT large has 60,000 bytes."""

_FLOATS = {"F16", "BF16", "F32", "F64"}
_INTEGERS = ("position_ids", "token_type_ids", "feature_tagger.layers")
"""Endings of the names of what is no weight."""
_WORDS, _TIED_WORDS = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"


@dataclass(frozen=True)
class TensorHeader:
    """The type, as safetensors names it, and the shape of one tensor."""

    dtype: str
    shape: tuple[int, ...]


def read_weights_header(path: Path) -> dict[str, TensorHeader]:
    """Types and shapes by name; none of the weights is read.

    Raises `ValueError` for what is no whole safetensors file: its tensors have to fill it, without
    holes and without overlaps. `OSError` for what cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("no regular file")
        num_bytes = int.from_bytes(file.read(8), "little")
    if num_bytes > MOST_HEADER_BYTES:
        raise ValueError(f"a header of {num_bytes:,} bytes")
    try:
        with safe_open(path, framework="pt") as weights:
            slices = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118
            return {
                name: TensorHeader(each.get_dtype(), tuple(each.get_shape()))
                for name, each in slices.items()
            }
    except SafetensorError as error:
        raise ValueError(" ".join(str(error).split())[:200]) from error


def check_header(header: Mapping[str, TensorHeader], config: ModelConfig) -> None:
    """Raises `ValueError` where the encoder of a configuration is not what the weights are of.

    `header` is that of all files of the folder together.
    """
    found = by_full_name(header)
    for name, each in found.items():
        if each.dtype not in _FLOATS and not name.endswith(_INTEGERS):
            raise ValueError(f"{name} is of type {each.dtype}, not one of {sorted(_FLOATS)}")
    if _WORDS not in found and _TIED_WORDS in found:
        found[_WORDS] = found[_TIED_WORDS]
    with torch.device("meta"):  # takes no memory, whatever the sizes
        encoder = Encoder(config.model_copy(update={"num_hidden_layers": 1}))
    state = {f"encoder.{name}": each for name, each in encoder.state_dict().items()}
    layer = "bert.encoder.layer.0."
    for name, weight in to_hugging_face(state).items():
        _compare(name, tuple(weight.shape), found)
        if name.startswith(layer):
            for number in range(1, config.num_hidden_layers):
                other = f"bert.encoder.layer.{number}.{name.removeprefix(layer)}"
                _compare(other, tuple(weight.shape), found)


def _compare(name: str, expected: tuple[int, ...], found: Mapping[str, TensorHeader]) -> None:
    if name not in found:
        raise ValueError(f"no {name}, of which config.json speaks")
    if found[name].shape != expected:
        has, wanted = list(found[name].shape), list(expected)
        raise ValueError(f"{name} has the shape {has}, by config.json {wanted}")
