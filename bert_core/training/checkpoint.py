"""Writes a `TrainingState` as a verified folder and reads it back, bit for bit.

Layout of `<checkpoints>/step-00001234/`: model.safetensors, optimizer.safetensors, state.json,
files/ (the caller's), manifest.json. Nothing is pickled.
"""

import json
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bert_core.disk import DiskFullError, is_disk_full
from bert_core.errors import UserError
from bert_core.strict_files import first_fault, read_json_object
from bert_core.training import checkpoint_folder
from bert_core.training.checkpoint_folder import (
    FILES,
    MODEL,
    OPTIMIZER,
    STATE,
    checkpoint_name,
    checkpoint_step,
    committed_checkpoints,
)
from bert_core.training.loop import LOWER_THE_LEARNING_RATE, TrainingState
from bert_core.training.ranks import world_size

MOMENTS_PER_WEIGHT = {"adamw": 2, "lamb": 2, "stableadamw": 2}
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


_SMALL_FILES_BYTES = 1 << 20  # state, manifest and journal in the estimate of a checkpoint's size


@dataclass(frozen=True)
class CheckpointInfo:
    """What a checkpoint says besides weights and moments.

    `extra` is the caller's dictionary and `files` the caller's files, by name. `num_threads` is
    torch's thread count and `world_size` the number of ranks when it was written.
    """

    path: Path
    step: int
    num_rows_seen: int
    num_tokens_seen: int
    world_size: int
    num_threads: int
    torch_version: str
    extra: dict[str, Any]
    files: dict[str, Path]


class _State(BaseModel):
    model_config = ConfigDict(extra="forbid")

    step: int = Field(ge=0, lt=1 << 53)
    num_rows_seen: int = Field(ge=0, lt=1 << 63)
    num_tokens_seen: int = Field(ge=0, lt=1 << 63)
    world_size: int = Field(ge=1, lt=1 << 31)
    num_threads: int = Field(ge=1, lt=1 << 31)
    torch_version: str
    optimizer: str
    extra: dict[str, Any]


def save_checkpoint(
    folder: Path, state: TrainingState, *, extra: dict[str, Any], files: dict[str, Path], keep: int
) -> Path:
    """Writes `<folder>/step-…` from one rank, keeps the newest `keep` and those that are marked.

    Returns its path. `extra` must survive JSON. `files` are copied in under their names. Older
    checkpoints go only after the new one is committed and verified. An intact checkpoint of the
    same step is kept as it is. A killed writer leaves the earlier ones whole.

    Raises `UserError` when the disk is full (what was begun is removed, the previous checkpoint
    is intact) and when weights are not finite.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    final = folder / checkpoint_name(state.step)
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint_folder.remove_leftovers(folder)
    if final.exists():
        if checkpoint_folder.damage(final) is None:
            return final
        checkpoint_folder.remove(final)
    _refuse_weights_that_are_not_finite(state)
    temporary = checkpoint_folder.temporary_folder(final)
    try:
        _write(temporary, state, extra, files)
        checkpoint_folder.seal(temporary, final)
    except OSError as error:
        if is_disk_full(error):
            raise _disk_full(folder, state) from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if fault := checkpoint_folder.damage(final):
        raise UserError(
            f"the checkpoint just written is damaged, {fault}", str(final), "check the disk"
        )
    # A damaged one of a later step, which this run has passed over, takes no whole one's place.
    earlier = [
        path for path in committed_checkpoints(folder) if checkpoint_step(path) <= state.step
    ]
    for path in earlier[keep:]:
        if not (path / checkpoint_folder.KEPT).exists():
            checkpoint_folder.remove(path)
    return final


def load_checkpoint(path: Path, state: TrainingState) -> CheckpointInfo:
    """Fills `state` in place from a checkpoint, on any device and any number of ranks.

    Raises `UserError` for a damaged folder and when names, shapes or dtypes of the weights, or
    the optimizer, are not exactly those of `state`. Hyperparameters stay those of `state`.
    """
    info, saved = _read(path)
    if saved != type(state.optimizer).__name__:
        raise UserError(
            f"checkpoint of the optimizer {saved}, not {type(state.optimizer).__name__}",
            str(path),
            "go on with the settings it was made with",
        )
    weights = weights_by_name(state.model)
    try:
        saved_weights, moments = load_file(path / MODEL), load_file(path / OPTIMIZER)
    except SafetensorError as error:
        raise _damaged(path, " ".join(str(error).split())[:200]) from error
    if difference := first_difference(saved_weights, weights):
        raise _other_model(path, difference)
    try:
        load_moments(state.model, state.optimizer, moments)
    except (KeyError, ValueError, RuntimeError) as error:
        raise _other_model(path, f"optimizer state {error}") from error
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(saved_weights[name])
    state.step, state.num_rows_seen = info.step, info.num_rows_seen
    state.num_tokens_seen = info.num_tokens_seen
    return info


def read_checkpoint(path: Path) -> CheckpointInfo:
    """What a checkpoint says, without loading it. Raises `UserError` for a damaged folder."""
    return _read(path)[0]


def _read(path: Path) -> tuple[CheckpointInfo, str]:
    """What a checkpoint says, and the name of its optimizer."""
    if fault := checkpoint_folder.damage(path):
        raise _damaged(path, fault)
    try:
        state = _State.model_validate(read_json_object(path / STATE, allow_nan=True), strict=True)
    except ValidationError as error:
        raise _damaged(path, f"{STATE}: {first_fault(error)}") from error
    names = sorted(checkpoint_folder.sealed_files(path))
    files = {Path(name).name: path / name for name in names if name.startswith(f"{FILES}/")}
    described = state.model_dump(exclude={"optimizer"})
    return CheckpointInfo(path=path, files=files, **described), state.optimizer


def _damaged(path: Path, fault: str) -> UserError:
    return UserError(f"damaged checkpoint, {fault}", str(path), "use an earlier one or start over")


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint whose every byte is right, and a message for each one passed over.

    Deletes nothing; `checkpoint_folder.remove_leftovers` does, and `save_checkpoint` calls it.
    """
    messages = []
    for path in committed_checkpoints(folder):
        fault = checkpoint_folder.damage(path)
        if fault is None:
            return path, messages
        messages.append(f"checkpoint {path} is damaged and passed over: {fault}")
    return None, messages


def checkpoint_bytes(model: nn.Module, optimizer_name: str) -> int:
    """Bytes one checkpoint takes, to within its small files, for a check of the free disk."""
    trained = (p for p in unwrap_model(model).parameters() if p.requires_grad)
    moments = MOMENTS_PER_WEIGHT[optimizer_name] * num_bytes(trained)
    return num_bytes(weights_by_name(model).values()) + moments + _SMALL_FILES_BYTES


def _write(
    temporary: Path, state: TrainingState, extra: dict[str, Any], files: dict[str, Path]
) -> None:
    described = {
        "step": state.step,
        "num_rows_seen": state.num_rows_seen,
        "num_tokens_seen": int(state.num_tokens_seen),
        "world_size": world_size(),
        "num_threads": torch.get_num_threads(),
        "torch_version": str(torch.__version__),
        "optimizer": type(state.optimizer).__name__,
        "extra": extra,
    }
    (temporary / STATE).write_text(json.dumps(described, indent=1), encoding="utf-8")
    (temporary / FILES).mkdir()
    for name, source in files.items():
        shutil.copyfile(source, temporary / FILES / name)
    _save_tensors(weights_by_name(state.model), temporary / MODEL)
    _save_tensors(moments_by_name(state.model, state.optimizer), temporary / OPTIMIZER)


def _save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Writes safetensors; its writer's failures come out as the `OSError` they are."""
    try:
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, path)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), str(error), str(path)) from error


def _refuse_weights_that_are_not_finite(state: TrainingState) -> None:
    tensors = weights_by_name(state.model).items()
    bad = next((name for name, t in tensors if not bool(t.isfinite().all())), None)
    if bad is not None:
        raise UserError(
            f"weights are not finite after step {state.step}, no checkpoint is written",
            bad,
            LOWER_THE_LEARNING_RATE,
        )


def _disk_full(folder: Path, state: TrainingState) -> UserError:
    needed = num_bytes(weights_by_name(state.model).values())
    needed += num_bytes(moments_by_name(state.model, state.optimizer).values())
    free = shutil.disk_usage(folder).free
    return DiskFullError(
        f"no room for the checkpoint of step {state.step}",
        f"{folder}, {free:,} bytes free, {needed + _SMALL_FILES_BYTES:,} needed",
        "free some or choose another --storage; the checkpoint before is intact",
    )


def _other_model(path: Path, difference: str) -> UserError:
    return UserError(
        f"checkpoint of another model, {difference}",
        str(path),
        "go on with the settings it was made with",
    )
