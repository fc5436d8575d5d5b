"""A model and its optimizer go in; their tensors by name come out, and go back in.

The names are those of the model without wrappers. Only this module unwraps models.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

MOMENTS_PER_WEIGHT = {"adamw": 2, "lamb": 2}
"""Tensors of a weight's size that each optimizer keeps for it."""


def unwrap_model(model: nn.Module) -> nn.Module:
    """The module itself, out of any order of data-parallel and compiled wrappers."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def weights_by_name(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers, the live tensors, a tied one once (its first name)."""
    weights: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in unwrap_model(model).state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            weights[name] = tensor
    return weights


def moments_by_name(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's live tensors as `<parameter name>.<key>`, such as `….exp_avg`."""
    return {
        f"{name}.{key}": value
        for name, parameter in unwrap_model(model).named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def first_difference(saved: dict[str, Tensor], wanted: dict[str, Tensor]) -> str | None:
    """The first name whose presence, shape or dtype differs, in words, or None."""
    for name in [*wanted, *saved]:
        if name not in saved:
            return f"{name} is missing"
        if name not in wanted:
            return f"{name} is unknown to this model"
        if saved[name].shape != wanted[name].shape or saved[name].dtype != wanted[name].dtype:
            return f"{name} is {_kind(saved[name])}, this model's is {_kind(wanted[name])}"
    return None


def load_moments(
    model: nn.Module, optimizer: torch.optim.Optimizer, moments: dict[str, Tensor]
) -> None:
    """Replaces the optimizer's tensors; its hyperparameters stay.

    A parameter that is not named has none, as before its first gradient. Raises `KeyError` for
    the name of no trained parameter and `ValueError` for a shape that is not its parameter's.
    """
    names = {parameter: name for name, parameter in unwrap_model(model).named_parameters()}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    position = {names[parameter]: index for index, parameter in enumerate(parameters)}
    state: dict[int, dict[str, Tensor]] = {}
    for full_name, value in moments.items():
        name, _, key = full_name.rpartition(".")
        index = position[name]
        if value.ndim and value.shape != parameters[index].shape:
            raise ValueError(f"{full_name} is {_kind(value)}")
        state.setdefault(index, {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of all elements together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
