"""Packs rows of unequal length into bins that fit a token budget.

All of it is array arithmetic over groups of rows of equal length, a few hundred operations for a
quarter of a million rows: it runs next to the training loop and must not hold the interpreter.
Legend: R rows, longest first; B bins.
"""

import heapq
from itertools import pairwise

import numpy as np

from bert_core.text.rng import IntArray

ROWS_LEFT_TO_FIT = (2, 3, 4, None)
"""How many rows of each bin are chosen to fit, the others dealt out; None: all rows.

Two are best almost everywhere. More need fewer bins where bins hold few rows, most of them long.
"""


def by_length(lengths: IntArray) -> IntArray:
    """The indices of rows, longest first, equals in their order; int64 [R]."""
    return np.argsort(-lengths, kind="stable").astype(np.int64)


def pack(
    lengths: IntArray, *, token_budget: int, rows_per_bin: int, at_least: int = 1
) -> list[IntArray]:
    """Divides rows among few bins, or `at_least` so many; each answer lists the rows of one bin.

    Every length must be within the budget. Most rows are dealt out like cards, there and back, so
    that all bins are alike and have room left for a few rows. A sample of rows of every length is
    held back for these: each, longest first, goes into the fullest bin that takes it (best fit
    decreasing). Of several sizes of the sample the one that needs fewest bins is taken. Where that
    is fewer than asked for, rows go into the emptiest of so many. No bin is empty as long as there
    are rows enough. In a bin the rows stand longest first.
    """
    if not len(lengths):
        return []
    if lengths.max() > token_budget:
        raise ValueError(f"a row of {lengths.max()} tokens is over the budget of {token_budget}")
    order = by_length(lengths)
    sorted_lengths = lengths[order]
    bins = _in_fewest_bins(sorted_lengths, token_budget, rows_per_bin)
    if bins.max() + 1 < at_least:
        bins = next(
            filled
            for num_bins in range(at_least, len(lengths) + 1)
            if (filled := _into_emptiest(num_bins, sorted_lengths, token_budget, rows_per_bin))
            is not None
        )
    ends = np.cumsum(np.bincount(bins))
    return np.split(order[np.argsort(bins, kind="stable")], ends[:-1])


def _in_fewest_bins(lengths: IntArray, token_budget: int, rows_per_bin: int) -> IntArray:
    """The bin of each row, none of them empty; int64 [R]."""
    fewest = max(-(-int(lengths.sum()) // token_budget), -(-len(lengths) // rows_per_bin))
    attempts: list[IntArray] = []
    for left in ROWS_LEFT_TO_FIT:
        room = token_budget if left is None else left * int(lengths[0])
        dealt = _dealt(lengths, fewest, token_budget - room)
        bins = np.empty(len(lengths), dtype=np.int64)
        bins[dealt] = _there_and_back(len(dealt), fewest)
        is_left = np.ones(len(lengths), dtype=np.bool_)
        is_left[dealt] = False
        tokens = np.bincount(bins[dealt], lengths[dealt]).astype(np.int64)
        bins[is_left] = _best_fit(
            lengths[is_left], token_budget - tokens, np.bincount(bins[dealt]),
            token_budget=token_budget, rows_per_bin=rows_per_bin,
        )  # fmt: skip
        attempts.append(bins)
        if bins.max() < fewest:  # no other can do with fewer
            break
    return min(attempts, key=lambda bins: bins.max())


def _dealt(lengths: IntArray, num_bins: int, tokens_of_bin: int) -> IntArray:
    """Rows, spread evenly over all lengths, of about so many tokens for each bin; whole rounds.

    The rows of each round are neighbours in length, and turn about, so no bin gets more than the
    longest row's length above the mean.
    """
    share = min(1.0, max(0, num_bins * tokens_of_bin) / int(lengths.sum()))
    chosen = np.flatnonzero(np.diff(np.floor(np.arange(len(lengths) + 1) * share)))
    return chosen[: len(chosen) - len(chosen) % num_bins]


def _there_and_back(num_rows: int, num_bins: int) -> IntArray:
    """0, 1, … B-1, B-1, … 1, 0, 0, 1, … as cards are dealt; int64 [R]."""
    turn, place = np.divmod(np.arange(num_rows), num_bins)
    return np.where(turn % 2 == 0, place, num_bins - 1 - place)


def _best_fit(
    lengths: IntArray, room: IntArray, num_rows: IntArray, *, token_budget: int, rows_per_bin: int
) -> IntArray:
    """Each row into the fullest bin that takes it, else into a new one; bins of rows, int64 [R].

    `room` and `num_rows` [B] are the tokens left and the rows in each bin to begin with. Of rows
    of equal length the fullest bin takes as many as fit, then the next: the same as one by one.
    """
    bins = np.empty(len(lengths), dtype=np.int64)
    bounds = np.append(np.flatnonzero(np.diff(lengths, prepend=-1)), len(lengths))
    for begin, end in pairwise(bounds.tolist()):
        length = int(lengths[begin])
        fitting = np.flatnonzero((room >= length) & (num_rows < rows_per_bin))
        fitting = fitting[np.argsort(room[fitting], kind="stable")]
        most = np.minimum(room[fitting] // length, rows_per_bin - num_rows[fitting])
        lacking = end - begin - int(most.sum())
        if lacking > 0:
            of_new = min(token_budget // length, rows_per_bin)
            new = -(-lacking // of_new)
            fitting = np.concatenate([fitting, np.arange(len(room), len(room) + new)])
            most = np.concatenate([most, np.full(new, of_new)])
            room = np.concatenate([room, np.full(new, token_budget)])
            num_rows = np.concatenate([num_rows, np.zeros(new, dtype=np.int64)])
        taken = np.diff(np.minimum(np.cumsum(most), end - begin), prepend=0)
        bins[begin:end] = np.repeat(fitting, taken)
        room[fitting] -= taken * length
        num_rows[fitting] += taken
    return bins


def _into_emptiest(
    num_bins: int, lengths: IntArray, token_budget: int, rows_per_bin: int
) -> IntArray | None:
    """The bin of each row, or None where so many bins do not hold them."""
    heap = [(0, number) for number in range(num_bins)]
    num_rows = [0] * num_bins
    bins: list[int] = []
    for length in lengths.tolist():
        filled, number = heap[0]
        if filled + length > token_budget:
            return None
        bins.append(number)
        num_rows[number] += 1
        full = num_rows[number] == rows_per_bin
        heapq.heapreplace(heap, (token_budget if full else filled + length, number))
    return np.array(bins, dtype=np.int64)
