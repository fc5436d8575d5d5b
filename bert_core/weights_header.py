"""What a safetensors file says it holds, read before any of it is, and held against a config.json.

So sizes that only the configuration claims take no memory.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from bert_core.config import ModelConfig
from bert_core.hugging_face import by_full_name

MOST_HEADER_BYTES = 1 << 24
"""BERT large has 60,000 bytes."""

_LFS = b"version https://git-lfs"
"""What stands in place of a file that was cloned without Git LFS."""

_FLOATS = {"F16", "BF16", "F32", "F64"}
_INTEGERS = ("position_ids", "token_type_ids")
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
        head = file.read(len(_LFS))
        num_bytes = int.from_bytes(head[:8], "little")
    if head == _LFS:
        raise ValueError("a pointer of Git LFS; fetch the file itself with git lfs pull")
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
        is_weight = name.startswith("bert.") and not name.endswith(_INTEGERS)
        if is_weight and each.dtype not in _FLOATS:
            raise ValueError(f"{name} is of type {each.dtype}, not one of {sorted(_FLOATS)}")
    if _WORDS not in found and _TIED_WORDS in found:
        found[_WORDS] = found[_TIED_WORDS]
    for name, shape in _shapes(config).items():
        _compare(f"bert.embeddings.{name}", shape, found)
    for number in range(config.num_hidden_layers):
        for name, shape in _shapes_of_layer(config).items():
            _compare(f"bert.encoder.layer.{number}.{name}", shape, found)


def check_tagger(weights: Mapping[str, Tensor]) -> None:
    """Raises `ValueError` or `KeyError` where a tagger would be larger than its weights are."""
    size = weights["lstm.weight_hh_l0"].shape[-1]
    expected: dict[str, tuple[int, ...]] = {
        "linear.weight": (len(weights["linear.weight"]), 2 * size)
    }
    for name, weight in weights.items():
        kind, _, layer = name.removeprefix("lstm.").partition("_l")
        if name.startswith("lstm.weight_ih") and not layer.startswith("0"):
            expected[name] = (4 * size, 2 * size)
        elif name.startswith("lstm."):
            last = weight.shape[1:] if kind == "weight_ih" else (size,)
            expected[name] = (4 * size, *last) if kind.startswith("weight") else (4 * size,)
    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape or 0 in shape:
            raise ValueError(f"{name} of a tagger, of the shape {list(weights[name].shape)}")


def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    width = config.hidden_size
    return {
        "word_embeddings.weight": (config.vocab_size, width),
        "position_embeddings.weight": (config.max_position_embeddings, width),
        "token_type_embeddings.weight": (config.type_vocab_size, width),
        "LayerNorm.weight": (width,),
        "LayerNorm.bias": (width,),
    }


def _shapes_of_layer(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    width, inner = config.hidden_size, config.intermediate_size
    maps = {f"attention.self.{part}": (width, width) for part in ("query", "key", "value")}
    maps |= {
        "attention.output.dense": (width, width),
        "intermediate.dense": (inner, width),
        "output.dense": (width, inner),
    }
    shapes = {f"{name}.weight": shape for name, shape in maps.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in maps.items()}
    for name in ("attention.output.LayerNorm", "output.LayerNorm"):
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    return shapes


def _compare(name: str, expected: tuple[int, ...], found: Mapping[str, TensorHeader]) -> None:
    if name not in found:
        raise ValueError(f"no {name}, of which config.json speaks")
    if found[name].shape != expected:
        has, wanted = list(found[name].shape), list(expected)
        raise ValueError(f"{name} has the shape {has}, by config.json {wanted}")
