"""Cross-encoders that sentence-transformers has saved as modules: the same as a classifier's head.

The first module is an encoder without a head. Pooling, Dense, LayerNorm and Dense behind it are the
head of `ModernBertForSequenceClassification`; Pooling, Dense and Dense that of BERT's.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from bert_core.config import ModelConfig
from bert_core.errors import UserError
from bert_core.hugging_face.family import read_weights_header
from bert_core.hugging_face.sentence_modules import (
    SENTENCE_SETTINGS,
    module_config,
    modules_of,
    pooling_mode,
    read_dense,
    refusal,
)
from bert_core.interface import Pooling
from bert_core.strict_files import read_json_object
from bert_core.tokenizer_settings import MODULES

_EPS = 1e-5
"""That of torch, which the module LayerNorm has."""


def cross_encoder_pooling(folder: Path) -> Pooling | None:
    """How a cross-encoder of modules pools a pair; None for any other folder.

    Raises `UserError` for a damaged list of modules, or a pooling that is not known.
    """
    modules = _modules(folder)
    if not modules:
        return None
    (kind, part), *_ = modules
    if kind != "Pooling":
        raise refusal(f"a cross-encoder whose first module is {kind}", folder / MODULES)
    return pooling_mode(module_config(part), part, {})


def cross_encoder_head(folder: Path, config: ModelConfig) -> Mapping[str, Tensor]:
    """The weights of its head under our names; none for any other folder.

    Raises `UserError` for a head that the classifier of `config` does not compute.
    """
    modules = _modules(folder)
    if not modules:
        return {}
    width, is_modern = config.hidden_size, config.transforms_every_state
    kinds = ["Pooling", "Dense", *(["LayerNorm"] if is_modern else []), "Dense"]
    if [kind for kind, _ in modules] != kinds:
        said = ", ".join(kind for kind, _ in modules)
        what = f"a cross-encoder of {said}; it is read of {', '.join(kinds)}"
        raise refusal(what, folder / MODULES)
    parts = [part for _, part in modules]
    if not is_modern and cross_encoder_pooling(folder) != "cls":
        raise refusal("a cross-encoder of BERT that reads more than [CLS]", parts[0])
    dense, last = read_dense(parts[1], width), read_dense(parts[-1], width, output="scores")
    activation = "GELU" if is_modern else "Tanh"
    if not dense.activation.endswith(f".{activation}") or (dense.bias is None) != is_modern:
        what = f"a Dense of a cross-encoder without {activation}, or with another bias"
        raise refusal(what, parts[1])
    if len(dense.weight) != width or not last.activation.endswith(".Identity"):
        raise refusal("a cross-encoder whose scores are of another width, or activation", parts[-1])
    bias = torch.zeros(len(last.weight)) if last.bias is None else last.bias
    weights = {"heads.pooler.dense.weight": dense.weight}
    if dense.bias is not None:
        weights["heads.pooler.dense.bias"] = dense.bias
    if is_modern:
        if config.layer_norm_eps != _EPS:
            raise refusal(f"a LayerNorm beside norm_eps {config.layer_norm_eps:g}", parts[2])
        scale, shift = _read_norm(parts[2], width)
        weights["heads.pooler.norm.weight"] = scale
        bias = bias + last.weight @ shift  # ModernBERT's norm has no bias, its classifier has
    return weights | {
        "heads.classifier.linear.weight": last.weight,
        "heads.classifier.linear.bias": bias,
    }


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """The modules behind the encoder, of a cross-encoder; without any, the encoder has a head."""
    if not os.path.lexists(folder / MODULES):
        return []
    said = read_json_object(folder / SENTENCE_SETTINGS, is_optional=True)
    return modules_of(folder) if said.get("model_type") == "CrossEncoder" else []


def _read_norm(part: Path, width: int) -> tuple[Tensor, Tensor]:
    path = part / "model.safetensors"
    try:
        header = read_weights_header(path)
    except (OSError, ValueError) as error:
        raise UserError("no weights of LayerNorm", str(path), "restore the folder") from error
    if {name: each.shape for name, each in header.items()} != {
        "norm.weight": (width,),
        "norm.bias": (width,),
    }:
        raise UserError("weights of another LayerNorm", str(path), "restore the folder")
    weights = {name: each.float() for name, each in load_file(path).items()}
    return weights["norm.weight"], weights["norm.bias"]
