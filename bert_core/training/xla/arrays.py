"""Micro-batches in the padded layout -> arrays of one shape that divide by rows among devices.

Legend: M micro-batches, N rows of n slots, K places for predictions of one row.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bert_core.config import IGNORE_INDEX
from bert_core.errors import UserError
from bert_core.model.layout import Padded
from bert_core.pretraining import PretrainingBatch

Arrays = dict[str, npt.NDArray[np.generic]]


def stacked(micro_batches: Sequence[PretrainingBatch], *, count: int, rows_multiple: int) -> Arrays:
    """`arrays_of` of each, with a first dimension of `count`; those that lack carry no label.

    Raises `ValueError` where there are more.
    """
    made = [arrays_of(each, rows_multiple=rows_multiple) for each in micro_batches]
    if len(made) > count:
        raise ValueError(f"{len(made)} micro-batches where {count} were to be expected")
    empty = {name: np.full_like(each, _FILL.get(name, 0)) for name, each in made[0].items()}
    made += [empty] * (count - len(made))
    return {name: np.stack([each[name] for each in made]) for name in empty}


def in_parts(arrays: Arrays, parts: int) -> Arrays:
    """What `stacked` gives, each micro-batch as so many of fewer rows, which must divide its rows.

    [M, N, …] becomes [M * parts, N / parts, …].
    """
    return {
        name: each.reshape(len(each) * parts, each.shape[1] // parts, *each.shape[2:])
        for name, each in arrays.items()
    }


def arrays_of(batch: PretrainingBatch, *, rows_multiple: int) -> Arrays:
    """The rows of a micro-batch, filled up to a multiple of so many by rows without tokens.

    `input_ids` and `token_type_ids` are int32 [N, n], `mask` bool [N, n], `next_sentence` int32
    [N]; `masked_places`, a place within its row, and `masked_ids` are int32 [N, K]: predictions
    stand with their row, so that no device needs what another one holds. The labels and what is
    hidden stay as they are.

    Raises `UserError` for packed rows and `ValueError` for shapes that are not static.
    """
    if not isinstance(batch.layout, Padded):
        raise UserError(
            "XLA trains on rows of one shape",
            "batch.packed=true",
            "set --batch.packed false",
        )
    num_rows, length = batch.layout.mask.shape
    places, ids = _by_row(batch, num_rows, length)
    arrays = {
        "input_ids": batch.input_ids.numpy().reshape(num_rows, length),
        "token_type_ids": batch.token_type_ids.numpy().reshape(num_rows, length),
        "mask": batch.layout.mask.numpy(),
        "masked_places": places,
        "masked_ids": ids,
        "next_sentence": batch.next_sentence.numpy(),
    }
    missing = -num_rows % rows_multiple
    return {name: _filled_up(name, each, missing) for name, each in arrays.items()}


def _by_row(
    batch: PretrainingBatch, num_rows: int, length: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Places within rows and labels, both [N, K], the order within a row as it is."""
    positions, labels = batch.masked_positions.numpy(), batch.masked_ids.numpy()
    width, left = divmod(len(positions), num_rows)
    used = labels != IGNORE_INDEX
    row, place = np.divmod(positions[used], length)
    by_row = np.argsort(row, kind="stable")
    counts = np.bincount(row, minlength=num_rows)
    if left or counts.max(initial=0) > width:
        raise ValueError(f"{len(positions)} places for predictions in {num_rows} rows")
    within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.zeros((num_rows, width), dtype=np.int64)
    ids = np.full((num_rows, width), IGNORE_INDEX, dtype=np.int64)
    places[row[by_row], within] = place[by_row]
    ids[row[by_row], within] = labels[used][by_row]
    return places, ids


_FILL = {"masked_ids": IGNORE_INDEX, "next_sentence": IGNORE_INDEX}


def _filled_up(name: str, rows: npt.NDArray[np.generic], missing: int) -> npt.NDArray[np.generic]:
    width = [(0, missing)] + [(0, 0)] * (rows.ndim - 1)
    filled = np.pad(rows, width, constant_values=_FILL.get(name, 0))
    return filled if filled.dtype == np.bool_ else filled.astype(np.int32)
