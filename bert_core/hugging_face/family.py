"""How `transformers` writes models of one family; the conversion of weights to ours and back.

The header of a safetensors file, its types and shapes, is read before any weight is: so sizes that
only a configuration claims take no memory.
"""

import os
import re
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bert_core.config import ModelConfig

OUR_LAYER = "encoder.layers.{layer}."

TAGGER = {
    f"heads.feature_tagger{part}": f"feature_tagger{part}"
    for part in ("", ".mix", ".lstm", ".linear")
}
"""A head that no family has: `transformers` loads the encoder and leaves it."""

LEFT_OUT = ""
"""In place of a module of ours, for one of theirs that is not computed here."""

_MASKED_TOKEN, _NEXT_TOKEN = "heads.masked_token", "heads.next_token"
"""Two heads of ours that are one of theirs: what it predicts, the configuration says."""

_OLD_LEAVES = {"gamma": "weight", "beta": "bias"}
"""Layer-norm names in folders converted from the first TensorFlow release."""

_FLOATS = {"F16", "BF16", "F32", "F64"}
_INTEGERS = ("position_ids", "token_type_ids")
"""Endings of the names of what is no weight."""

_MOST_HEADER_BYTES = 1 << 24
"""BERT large has 60,000 bytes."""

_LFS = b"version https://git-lfs"
"""The content of a file that was cloned without Git LFS."""


PRETRAINED = (
    *("BertForMaskedLM", "BertForNextSentencePrediction", "BertForPreTraining"),
    "BertLMHeadModel",
)
"""BERT's classes with heads of pre-training, and of no task."""


class UnknownWeightError(ValueError):
    """A weight of an encoder that its family does not have, or one that is missing."""


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
    if num_bytes > _MOST_HEADER_BYTES:
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


@dataclass(frozen=True)
class Tie:
    """Names of the table of words, the projection that may be the same, and what that adds."""

    words: str
    projection: str
    bias: str
    second_bias: str | None = None
    """Another name of what is added."""


@dataclass(frozen=True)
class Family:
    """The names and shapes of one type of models.

    `modules` are ours to theirs, the number of a layer left open; the last part of a name (weight,
    bias) is the same in both. `stacked` are modules of ours that are several of theirs, along
    dimension 0. `shapes` gives those of an encoder by their names. `prefix` is how names of the
    encoder begin, `alone` how they do in folders of an encoder alone, which lack it.
    """

    model_type: str
    config: type[ModelConfig]
    prefix: str
    alone: tuple[str, ...]
    layer: str
    modules: Mapping[str, str]
    tie: Tie
    shapes: Callable[[ModelConfig], dict[str, tuple[int, ...]]]
    required: Mapping[str, Any]
    """What config.json may say of a model that is computed here; the defaults when absent."""

    read_config: Callable[[Mapping[str, Any]], dict[str, Any]]
    """The fields of `config` in config.json; raises `ValueError` for what is not computed."""

    write_config: Callable[[Any], dict[str, Any]]
    """The fields of config.json but for those of heads and tasks."""

    class_prefix: str
    """How the names of its classes begin."""

    heads_of: Callable[[Collection[str], str | None], dict[str, str]] = lambda *_: {}
    """Modules of theirs to ours that go before those of the table, by names and architecture."""

    position_offset: Callable[[ModelConfig], int] = lambda _: 0
    """Rows of their table of positions before that of the first token."""

    stacked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    """Constants that older folders store among the weights."""

    def class_of(self, architecture: str) -> str:
        """The family's class of the same heads as that of BERT."""
        return self.class_prefix + architecture.removeprefix("Bert")

    def class_of_bert(self, architecture: str) -> str:
        """BERT's class of the same heads as one of the family's."""
        if not architecture.startswith(self.class_prefix):
            return architecture
        heads = architecture.removeprefix(self.class_prefix)
        return f"Bert{'LMHeadModel' if heads == 'ForCausalLM' else heads}"

    def to_theirs(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Renames weights (or gradients) of a `Bert`.

        The parts of a stacked weight are views of it. Raises `UnknownWeightError` for a name that
        is not in the table.
        """
        theirs = {}
        for name, tensor in state.items():
            name = _renamed(name, _NEXT_TOKEN, _MASKED_TOKEN)
            module, layer, leaf = _parse(name, OUR_LAYER)
            if module in self.stacked:
                parts = self.stacked[module]
                for part, piece in zip(parts, tensor.chunk(len(parts)), strict=True):
                    theirs[f"{part.format(layer=layer)}.{leaf}"] = piece
            elif module in self.modules:
                theirs[f"{self.modules[module].format(layer=layer)}.{leaf}"] = tensor
            else:
                raise UnknownWeightError(name)
        tie = self.tie
        if tie.second_bias and tie.projection in theirs:  # only a tied one shares the bias there
            theirs[tie.second_bias] = theirs[tie.bias].clone()
        return theirs

    def to_ours(
        self,
        state: Mapping[str, Tensor],
        *,
        is_decoder: bool = False,
        is_tied: bool = True,
        architecture: str | None = None,
    ) -> dict[str, Tensor]:
        """Renames weights of a model of theirs to those of a `Bert`.

        Names of an encoder alone are understood. The head over the vocabulary is that of next
        tokens where `is_decoder` of their configuration says so; it has a projection of its own
        where theirs differs from the word embeddings, and must have one unless `is_tied`, their
        `tie_word_embeddings`. Heads that are not in the table are left out, as `transformers` does.
        `architecture` is the class that they name first.

        Raises `UnknownWeightError` for an encoder's weight that is not in the table, an incomplete
        stack, a missing projection, and numbers that are not floating-point.
        """
        ours_of = {theirs: ours for ours, theirs in self.modules.items()}
        ours_of |= self.heads_of(state.keys(), architecture)
        part_of = {part: ours for ours, parts in self.stacked.items() for part in parts}
        ours: dict[str, Tensor] = {}
        stacks: dict[str, dict[str, Tensor]] = {}
        for name, tensor in self._without_ties(self.by_full_name(state), is_tied).items():
            module, layer, leaf = _parse(name, self.layer)
            if name == self.tie.projection:
                ours[f"{_MASKED_TOKEN}.decoder.{leaf}"] = tensor
            elif module in part_of:
                stack = f"{part_of[module].format(layer=layer)}.{leaf}"
                stacks.setdefault(stack, {})[module] = tensor
            elif ours_of.get(module) == LEFT_OUT:
                continue
            elif module in ours_of:
                ours[f"{ours_of[module].format(layer=layer)}.{leaf}"] = tensor
            elif name.startswith(self.prefix) and name not in self.ignored:
                raise UnknownWeightError(name)
            else:
                continue
            if not (tensor.is_floating_point() or module.startswith("feature_tagger")):
                raise UnknownWeightError(f"{name} holds {tensor.dtype}, not floating-point numbers")
        for name, parts in stacks.items():
            module, layer, leaf = _parse(name, OUR_LAYER)
            wanted = self.stacked[module]
            if len(parts) < len(wanted):
                lacks = f"query, key and value {leaf} are not complete"
                raise UnknownWeightError(f"layer {layer}: {lacks}")
            ours[name] = torch.cat([parts[part] for part in wanted])
        if is_decoder:
            return {_renamed(name, _MASKED_TOKEN, _NEXT_TOKEN): each for name, each in ours.items()}
        return ours

    def by_full_name(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """The same under the names of a model with heads, of names that may lack their prefix.

        Raises `UnknownWeightError` for a weight that is stored under two names.
        """
        found: dict[str, Any] = {}
        for name, each in named.items():
            full = f"{self.prefix}{name}" if name.startswith(self.alone) else name
            module, _, leaf = full.rpartition(".")
            full = f"{module}.{_OLD_LEAVES.get(leaf, leaf)}"
            if found.setdefault(full, each) is not each:
                raise UnknownWeightError(f"{full} is stored under two names")
        return found

    def check_header(self, header: Mapping[str, TensorHeader], config: ModelConfig) -> None:
        """Raises `ValueError` where the weights do not fit the configuration's encoder.

        `header` is that of all files of the folder together.
        """
        found = self.by_full_name(header)
        for name, each in found.items():
            is_weight = name.startswith(self.prefix) and not name.endswith(_INTEGERS)
            if is_weight and each.dtype not in _FLOATS:
                raise ValueError(f"{name} is of type {each.dtype}, not one of {sorted(_FLOATS)}")
        if self.tie.words not in found and self.tie.projection in found:
            found[self.tie.words] = found[self.tie.projection]
        for name, shape in self.shapes(config).items():
            if name not in found:
                raise ValueError(f"no {name}, which config.json requires")
            if found[name].shape != shape:
                has, wanted = list(found[name].shape), list(shape)
                raise ValueError(f"{name} has the shape {has}, by config.json {wanted}")
        layers = (_parse(name, self.layer)[1] for name in found)
        count = 1 + max(int(number) for number in layers if number)
        if count > config.num_hidden_layers:
            said = config.num_hidden_layers
            raise ValueError(f"weights of {count} layers, by config.json there are {said}")

    def _without_ties(self, state: dict[str, Tensor], is_tied: bool) -> dict[str, Tensor]:
        """Keeps one of each tensor stored twice, and uses the projection for missing embeddings."""
        tie = self.tie
        projection = state.pop(tie.projection, None)
        if tie.second_bias in state:
            state[tie.bias] = state.pop(tie.second_bias)
        if projection is None:
            if tie.bias in state and not is_tied:
                lacks = f"{tie.projection} is missing, and tie_word_embeddings is false"
                raise UnknownWeightError(lacks)
        elif is_tied and tie.words not in state:
            state[tie.words] = projection
        elif tie.words not in state or not torch.equal(projection, state[tie.words]):
            state[tie.projection] = projection
        return state


def _renamed(name: str, old: str, new: str) -> str:
    return new + name.removeprefix(old) if name.startswith(f"{old}.") else name


def _parse(name: str, layer_template: str) -> tuple[str, str, str]:
    """Splits a name into its module with the layer's number left open, that number, the leaf."""
    module, _, leaf = name.rpartition(".")
    pattern = re.escape(layer_template).replace(re.escape("{layer}"), r"(\d+)")
    match = re.match(pattern, name)
    if match is None:
        return module, "", leaf
    return layer_template + module[match.end() :], match.group(1), leaf
