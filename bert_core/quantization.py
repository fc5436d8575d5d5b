"""Prepares a model for inference, in float32 or, where its folder says so, in int8."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import torch

from bert_core.errors import UserError
from bert_core.model.bert import Bert
from bert_core.model.cpu.linear import Int8Linear, PrepackedLinear, onednn_is_faster_here
from bert_core.model.operations import CpuOperations, use_operations
from bert_core.model_folder import CONFIG, ModelFolderError
from bert_core.strict_files import read_json_object

Precision = Literal["float32", "int8"]

PRECISION_FIELD = "bertline_precision"
"""Where config.json of a model folder says in which numbers it is computed; float32 without it."""

_LINEAR_MAPS = ("query_key_value", "attention_output", "intermediate", "output")
"""Of each layer. Embeddings, norms, attention and heads stay in float32: for the few rows that a
head reads 8 bits save nothing, and the vocabulary's projection is also the embeddings."""


def read_precision(folder: Path) -> Precision:
    """In which numbers a model folder is to be computed.

    Raises `ModelFolderError` for what this version does not know.
    """
    config = read_json_object(folder / CONFIG, error=ModelFolderError)
    precision = config.get(PRECISION_FIELD, "float32")
    if precision not in get_args(Precision):
        raise ModelFolderError(
            f"unsupported precision {precision!r}",
            f"{PRECISION_FIELD} in {folder / CONFIG}",
            f"one of {' and '.join(get_args(Precision))} is",
        )
    return precision


def for_inference(model: Bert, precision: Precision, device: torch.device) -> Bert:
    """The same model, moved to a device, without dropout, and in int8 if so it is to be computed.

    It can then no longer be trained, in int8 not saved either: its float32 weights are freed. Done
    twice it does nothing more. Raises `UserError` for int8 on any device but the CPU.
    """
    if precision == "int8":
        if device.type != "cpu":
            raise UserError(
                "int8 models run on the CPU only",
                f"device {device.type}",
                "compute it on the CPU, or take the float32 folder that it was made of",
            )
        _replace_linear_maps(model, Int8Linear)
    elif device.type == "cpu" and onednn_is_faster_here():
        _replace_linear_maps(model, PrepackedLinear)
    model.to(device).eval()
    if device.type == "cpu":
        use_operations(model, CpuOperations(keeps_rows_apart=True))
    return model


def _replace_linear_maps(model: Bert, by: Callable[[torch.nn.Linear], torch.nn.Module]) -> None:
    for layer in model.encoder.layers:
        for name in _LINEAR_MAPS:
            linear = layer.get_submodule(name)
            if isinstance(linear, torch.nn.Linear):
                setattr(layer, name, by(linear))
    model.requires_grad_(False)
