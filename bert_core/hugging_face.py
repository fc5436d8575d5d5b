"""One table of weight names: our state dict to Hugging Face's BERT layout, and back.

Ours fuses query, key and value into one matrix; theirs keeps three.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

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
    """Leaves one tensor of what is stored twice, and takes the projection for missing words."""
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

    Raises `UnknownWeightError` for a weight that stands there under two names.
    """
    found: dict[str, Any] = {}
    for name, each in named.items():
        if found.setdefault(_full_name(name), each) is not each:
            raise UnknownWeightError(f"{_full_name(name)} stands there under two names")
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
