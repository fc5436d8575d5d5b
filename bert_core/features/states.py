"""Hidden states at the places of rows: computed batch by batch, and stored once on disk.

A store has one file for each layer; epochs, seeds and layer strategies read it.
Shapes: P places, H hidden size, K layers.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from bert_core.disk import atomic_write, locked
from bert_core.errors import UserError
from bert_core.interface import StoredDtype
from bert_core.model.encoder import Encoder, without_dropout
from bert_core.tasks.encoded_rows import (
    PREDICTION_TOKENS,
    EncodedRows,
    States,
    TaskBatch,
    evaluation_batches,
    layout_for,
)
from bert_core.tasks.task import hidden_states
from bert_core.text.rng import IntArray
from bert_core.training.loop import autocast


class Computing(TypedDict):
    """Where rows are computed, how many tokens at once, and in which type products are."""

    device: torch.device
    max_tokens: int
    autocast_dtype: torch.dtype | None


def states_at_places(
    encoder: Encoder, rows: EncodedRows, layers: Sequence[int], **computing: Unpack[Computing]
) -> Iterator[tuple[IntArray, TaskBatch, list[Tensor]]]:
    """Yields the items of a micro-batch, itself, and the states of `layers`, float32 [P, H] each.

    Every item once, longest first; computing stops at the highest layer. The encoder lies on
    `device`; there is no dropout and no gradient, and its training mode is left as it was.
    """
    device, autocast_dtype = computing["device"], computing["autocast_dtype"]
    max_tokens = computing["max_tokens"]
    layout = layout_for(encoder.config, device, autocast_dtype, training=False)
    with without_dropout(encoder):
        for items, batch in evaluation_batches(rows, max_tokens=max_tokens, layout=layout):
            moved = batch.to(device, non_blocking=True)
            with torch.inference_mode(), autocast(device, autocast_dtype):
                states = hidden_states(encoder, moved, layers)
            yield items, batch, [state.float() for state in states]


def stored_states(
    encoder: Encoder,
    rows: EncodedRows,
    folder: Path,
    layers: Sequence[int],
    *,
    device: torch.device,
    max_tokens: int = PREDICTION_TOKENS,
    autocast_dtype: torch.dtype | None = None,
    dtype: StoredDtype = "float16",
    progress: Callable[[float], None] | None = None,
) -> list[States]:
    """The states of `layers` at all places, each [P, H], mapped from `folder`.

    Layers that are not there yet are computed, stopping at the highest; a file appears whole or
    not at all, and one process at a time writes. The folder is for one encoder and these rows
    alone: name it by their hashes. `progress` gets the share that is done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = {layer: folder / f"layer-{layer:02d}-{dtype}.npy" for layer in layers}
    with locked(folder / "lock"):
        missing = [layer for layer, path in paths.items() if not path.is_file()]
        if missing:
            for left in folder.glob(".*.written"):  # a killed process's
                left.unlink(missing_ok=True)
            _compute(
                encoder,
                rows,
                {layer: paths[layer] for layer in missing},
                device=device,
                max_tokens=max_tokens,
                autocast_dtype=autocast_dtype,
                dtype=dtype,
                progress=progress,
            )
    shape = (len(rows.places), encoder.config.hidden_size)
    return [_open(paths[layer], shape) for layer in layers]


def _compute(
    encoder: Encoder,
    rows: EncodedRows,
    paths: dict[int, Path],
    *,
    device: torch.device,
    max_tokens: int,
    autocast_dtype: torch.dtype | None,
    dtype: StoredDtype,
    progress: Callable[[float], None] | None,
) -> None:
    shape = (len(rows.places), encoder.config.hidden_size)
    with ExitStack() as files:
        beside = {layer: files.enter_context(atomic_write(path)) for layer, path in paths.items()}
        written = {layer: _mapped(path, dtype, shape) for layer, path in beside.items()}
        num_tokens, done = max(int(rows.lengths.sum()), 1), 0
        computed = states_at_places(
            encoder,
            rows,
            list(paths),
            device=device,
            max_tokens=max_tokens,
            autocast_dtype=autocast_dtype,
        )
        for items, batch, states in computed:
            places = rows.places_of(items)
            for layer, state in zip(paths, states, strict=True):
                written[layer][places] = state.cpu().numpy()
            done += batch.num_real_tokens
            if progress is not None:
                progress(done / num_tokens)
        for array in written.values():
            array.flush()


def _mapped(path: Path, dtype: StoredDtype, shape: tuple[int, int]) -> np.memmap:
    """A new array on disk, whose room is taken at once: a full disk would end the process later."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):  # not on macOS
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def _open(path: Path, shape: tuple[int, int]) -> States:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError("damaged features", str(path), "delete the file") from error
    if array.shape != shape:
        raise UserError(f"features of shape {array.shape}, not {shape}", str(path), "delete it")
    return array
