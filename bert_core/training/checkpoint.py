"""A `TrainingState` goes in and a verified folder comes out, and back, bit for bit.

Layout of `<checkpoints>/step-00001234/`: model.safetensors, optimizer.safetensors, state.json,
files/ (the caller's), manifest.json. Nothing is pickled.
"""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bert_core.disk import DiskFullError, is_disk_full
from bert_core.errors import UserError
from bert_core.strict_json import first_fault, read_json_object
from bert_core.training import sealed_folder
from bert_core.training.checkpoint_names import (
    FILES,
    MODEL,
    NEEDED,
    OPTIMIZER,
    STATE,
    checkpoint_name,
    checkpoint_step,
    committed_checkpoints,
)
from bert_core.training.loop import TrainingState
from bert_core.training.ranks import world_size
from bert_core.training.readings import LOWER_THE_LEARNING_RATE
from bert_core.training.state_tensors import (
    MOMENTS_PER_WEIGHT,
    first_difference,
    load_moments,
    moments_by_name,
    num_bytes,
    unwrap_model,
    weights_by_name,
)

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
    """The content of state.json."""

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
    folder: Path,
    state: TrainingState,
    *,
    extra: dict[str, Any],
    files: dict[str, Path],
    keep: int,
) -> Path:
    """Writes `<folder>/step-…` from one rank and keeps the newest `keep`; returns its path.

    `extra` must survive JSON. `files` are copied in under their names. Older checkpoints go only
    after the new one is committed and verified. An intact checkpoint of the same step is kept as
    it is. A killed writer leaves the earlier ones whole.

    Raises `UserError` when the disk is full (what was begun is removed, the previous checkpoint
    is intact) and when weights are not finite.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    final = folder / checkpoint_name(state.step)
    folder.mkdir(parents=True, exist_ok=True)
    sealed_folder.remove_leftovers(folder)
    if final.exists():
        if sealed_folder.damage(final, NEEDED) is None:
            return final
        sealed_folder.remove(final)
    _refuse_weights_that_are_not_finite(state)
    temporary = sealed_folder.temporary_folder(final)
    try:
        _write(temporary, state, extra, files)
        sealed_folder.seal(temporary, final)
    except OSError as error:
        if is_disk_full(error):
            raise _disk_full(folder, state) from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if fault := sealed_folder.damage(final, NEEDED):
        raise UserError(
            f"the checkpoint just written is damaged, {fault}", str(final), "check the disk"
        )
    # A damaged one of a later step, which this run has passed over, takes no whole one's place.
    mine = [path for path in committed_checkpoints(folder) if checkpoint_step(path) <= state.step]
    for path in mine[keep:]:
        sealed_folder.remove(path)
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
    if fault := sealed_folder.damage(path, NEEDED):
        raise _damaged(path, fault)
    try:
        state = _State.model_validate(read_json_object(path / STATE, allow_nan=True), strict=True)
    except ValidationError as error:
        raise _damaged(path, f"{STATE}: {first_fault(error)}") from error
    names = sorted(sealed_folder.sealed_files(path))
    files = {Path(name).name: path / name for name in names if name.startswith(f"{FILES}/")}
    described = state.model_dump(exclude={"optimizer"})
    return CheckpointInfo(path=path, files=files, **described), state.optimizer


def _damaged(path: Path, fault: str) -> UserError:
    return UserError(f"damaged checkpoint, {fault}", str(path), "use an earlier one or start over")


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint whose every byte is right, and a message for each one passed over.

    Deletes nothing; `sealed_folder.remove_leftovers` does, and `save_checkpoint` calls it.
    """
    messages = []
    for path in committed_checkpoints(folder):
        fault = sealed_folder.damage(path, NEEDED)
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
