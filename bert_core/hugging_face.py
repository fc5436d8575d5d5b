"""Weights of Hugging Face model folders: names, shapes, and conversion to and from our model.

A safetensors header is read, and compared with config.json, before any weights are, so that sizes
that only the configuration claims take no memory.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bert_core.config import ModelConfig

_LAYER = "encoder.layers.{layer}."
_THEIR_LAYER = "bert.encoder.layer.{layer}."

_MODULES = {
    "encoder.embeddings.word": "bert.embeddings.word_embeddings",
    "encoder.embeddings.position": "bert.embeddings.position_embeddings",
    "encoder.embeddings.segment": "bert.embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "bert.embeddings.LayerNorm",
    _LAYER + "attention_output": _THEIR_LAYER + "attention.output.dense",
    _LAYER + "attention_norm": _THEIR_LAYER + "attention.output.LayerNorm",
    _LAYER + "intermediate": _THEIR_LAYER + "intermediate.dense",
    _LAYER + "output": _THEIR_LAYER + "output.dense",
    _LAYER + "output_norm": _THEIR_LAYER + "output.LayerNorm",
    "heads.pooler.dense": "bert.pooler.dense",
    "heads.masked_token.transform": "cls.predictions.transform.dense",
    "heads.masked_token.norm": "cls.predictions.transform.LayerNorm",
    "heads.masked_token.decoder": "cls.predictions.decoder",
    "heads.masked_token": "cls.predictions",
    "heads.next_sentence.classifier": "cls.seq_relationship",
    "heads.classifier.linear": "classifier",
    "heads.span.linear": "qa_outputs",
    "heads.feature_tagger": "feature_tagger",
    "heads.feature_tagger.mix": "feature_tagger.mix",
    "heads.feature_tagger.lstm": "feature_tagger.lstm",
    "heads.feature_tagger.linear": "feature_tagger.linear",
}
"""Our module: their module; the last part of a name (weight, bias) is the same in both.

The feature tagger is a head that they lack: `transformers` loads the encoder and leaves it.
"""

_MASKED_TOKEN, _NEXT_TOKEN = "heads.masked_token", "heads.next_token"
"""Two heads of ours that are one of theirs: what it predicts, the configuration says."""

_FUSED = _LAYER + "query_key_value"
_SPLIT = tuple(_THEIR_LAYER + f"attention.self.{part}" for part in ("query", "key", "value"))
"""Our one module, their three, stacked along dimension 0."""

_ENCODER = ("embeddings.", "encoder.", "pooler.")
"""How names of an encoder alone begin, which lack the `bert.` before them."""

_IGNORED = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")
"""Constants that older folders store among the weights."""

_WORDS, _PROJECTION = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
_BIAS, _PROJECTION_BIAS = "cls.predictions.bias", "cls.predictions.decoder.bias"
"""What the head over the vocabulary adds, under its two names; the second one is added there."""

_OLD_LEAVES = {"gamma": "weight", "beta": "bias"}
"""Layer-norm names in folders converted from the first TensorFlow release."""


class UnknownWeightError(ValueError):
    """A weight of an encoder that BERT does not have, or one that is missing."""


def to_hugging_face(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Renames weights (or gradients) of a `Bert`, with their layout of `BertForPreTraining`.

    The three parts of a fused weight are views of it. Raises `UnknownWeightError` for a name that
    is not in the table.
    """
    theirs = {}
    for name, tensor in state.items():
        name = _renamed(name, _NEXT_TOKEN, _MASKED_TOKEN)
        module, layer, leaf = _parse(name, r"encoder\.layers\.(\d+)\.", _LAYER)
        if module == _FUSED:
            for part, piece in zip(_SPLIT, tensor.chunk(3), strict=True):
                theirs[f"{part.format(layer=layer)}.{leaf}"] = piece
        elif module in _MODULES:
            theirs[f"{_MODULES[module].format(layer=layer)}.{leaf}"] = tensor
        else:
            raise UnknownWeightError(name)
    if _PROJECTION in theirs:  # only a tied one shares the bias there
        theirs[_PROJECTION_BIAS] = theirs[_BIAS].clone()
    return theirs


def from_hugging_face(
    state: Mapping[str, Tensor], *, is_decoder: bool = False, is_tied: bool = True
) -> dict[str, Tensor]:
    """Renames weights of a Hugging Face `BertModel` or `BertFor…` to those of a `Bert`.

    Encoder-only names, which lack the `bert.` prefix, are understood. The head over the vocabulary
    is that of next tokens where `is_decoder` of their configuration says so; it has a projection of
    its own where theirs differs from the word embeddings, and must have one unless `is_tied`, their
    `tie_word_embeddings`. Heads that are not in the table are left out, as `transformers` does.
    Raises `UnknownWeightError` for an encoder's weight that is not in the table, a query without
    its key and value, a missing projection, and numbers that are not floating-point.
    """
    ours_of = {theirs: ours for ours, theirs in _MODULES.items()}
    state = _resolve_ties(by_full_name(state), is_tied)
    ours, fused = {}, {}
    for name, tensor in state.items():
        module, layer, leaf = _parse(name, r"bert\.encoder\.layer\.(\d+)\.", _THEIR_LAYER)
        if module in _SPLIT:
            fused.setdefault((layer, leaf), {})[module] = tensor
        elif module in ours_of:
            ours[f"{ours_of[module].format(layer=layer)}.{leaf}"] = tensor
        elif name.startswith("bert.") and name not in _IGNORED:
            raise UnknownWeightError(name)
        else:
            continue
        if not (tensor.is_floating_point() or module.startswith("feature_tagger")):
            raise UnknownWeightError(f"{name} holds {tensor.dtype}, not floating-point numbers")
    for (layer, leaf), parts in fused.items():
        if len(parts) < len(_SPLIT):
            raise UnknownWeightError(f"layer {layer}: query, key and value {leaf} are not complete")
        ours[f"{_FUSED.format(layer=layer)}.{leaf}"] = torch.cat([parts[part] for part in _SPLIT])
    if is_decoder:
        return {_renamed(name, _MASKED_TOKEN, _NEXT_TOKEN): each for name, each in ours.items()}
    return ours


def _resolve_ties(state: dict[str, Tensor], is_tied: bool) -> dict[str, Tensor]:
    """Keeps one of each tensor stored twice, and uses the projection for missing embeddings."""
    projection = state.pop(_PROJECTION, None)
    if _PROJECTION_BIAS in state:
        state[_BIAS] = state.pop(_PROJECTION_BIAS)
    if projection is None:
        if _BIAS in state and not is_tied:
            raise UnknownWeightError(f"{_PROJECTION} is missing, and tie_word_embeddings is false")
    elif is_tied and _WORDS not in state:
        state[_WORDS] = projection
    elif _WORDS not in state or not torch.equal(projection, state[_WORDS]):
        state[_PROJECTION] = projection
    return state


def by_full_name(named: Mapping[str, Any]) -> dict[str, Any]:
    """The same under the names of `BertForPreTraining`, of names that may lack their `bert.`.

    Raises `UnknownWeightError` for a weight that is stored under two names.
    """
    found: dict[str, Any] = {}
    for name, each in named.items():
        if found.setdefault(_full_name(name), each) is not each:
            raise UnknownWeightError(f"{_full_name(name)} is stored under two names")
    return found


def _renamed(name: str, old: str, new: str) -> str:
    return new + name.removeprefix(old) if name.startswith(f"{old}.") else name


def _parse(name: str, layer_pattern: str, layer_template: str) -> tuple[str, str, str]:
    """Splits a name into its module with the layer's number left open, that number, the leaf."""
    module, _, leaf = name.rpartition(".")
    match = re.match(layer_pattern, name)
    if match is None:
        return module, "", leaf
    return layer_template + module[match.end() :], match.group(1), leaf


def _full_name(name: str) -> str:
    if name.startswith(_ENCODER):
        name = f"bert.{name}"
    module, _, leaf = name.rpartition(".")
    return f"{module}.{_OLD_LEAVES.get(leaf, leaf)}"


MOST_HEADER_BYTES = 1 << 24
"""BERT large has 60,000 bytes."""

_LFS = b"version https://git-lfs"
"""The content of a file that was cloned without Git LFS."""

_FLOATS = {"F16", "BF16", "F32", "F64"}
_INTEGERS = ("position_ids", "token_type_ids")
"""Endings of the names of what is no weight."""


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
            raise ValueError("not a regular file")
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
    """Raises `ValueError` where the weights do not fit the configuration's encoder.

    `header` is that of all files of the folder together.
    """
    found = by_full_name(header)
    for name, each in found.items():
        is_weight = name.startswith("bert.") and not name.endswith(_INTEGERS)
        if is_weight and each.dtype not in _FLOATS:
            raise ValueError(f"{name} is of type {each.dtype}, not one of {sorted(_FLOATS)}")
    if _WORDS not in found and _PROJECTION in found:
        found[_WORDS] = found[_PROJECTION]
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
        raise ValueError(f"no {name}, which config.json requires")
    if found[name].shape != expected:
        has, wanted = list(found[name].shape), list(expected)
        raise ValueError(f"{name} has the shape {has}, by config.json {wanted}")
