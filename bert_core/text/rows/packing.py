"""Rows of unequal length -> bins that fit a token budget."""

import heapq
from bisect import bisect_left, insort

import numpy as np

from bert_core.text.rows.counter_hash import IntArray


def by_length(lengths: IntArray) -> IntArray:
    """The indices of rows, longest first, equals in their order; int64 [R]."""
    return np.argsort(-lengths, kind="stable").astype(np.int64)


def pack(
    lengths: IntArray, *, token_budget: int, rows_per_bin: int, at_least: int = 1
) -> list[IntArray]:
    """Divides rows among few bins, or `at_least` so many; each answer lists the rows of one bin.

    Every length must be within the budget. Each row, longest first, goes into the fullest bin
    that takes it (best fit decreasing); where that needs fewer bins than asked for, into the
    emptiest of so many. No bin is empty as long as there are rows enough.
    """
    if len(lengths) and lengths.max() > token_budget:
        raise ValueError(f"a row of {lengths.max()} tokens is over the budget of {token_budget}")
    order = by_length(lengths)
    bins = _into_fullest(order, lengths, token_budget, rows_per_bin)
    if len(bins) < at_least:
        bins = next(
            filled
            for num_bins in range(at_least, len(lengths) + 1)
            if (filled := _into_emptiest(num_bins, order, lengths, token_budget, rows_per_bin))
        )
    return [np.array(rows, dtype=np.int64) for rows in bins]


def _into_fullest(
    order: IntArray, lengths: IntArray, token_budget: int, rows_per_bin: int
) -> list[list[int]]:
    room: list[tuple[int, int]] = []  # (tokens left, bin), ascending
    bins: list[list[int]] = []
    for row, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        place = bisect_left(room, (length, 0))
        if place == len(room):
            left, number = token_budget, len(bins)
            bins.append([])
        else:
            left, number = room.pop(place)
        bins[number].append(row)
        if len(bins[number]) < rows_per_bin:
            insort(room, (left - length, number))
    return bins


def _into_emptiest(
    num_bins: int, order: IntArray, lengths: IntArray, token_budget: int, rows_per_bin: int
) -> list[list[int]] | None:
    """The rows of each bin, or None where so many bins do not hold them."""
    heap = [(0, number) for number in range(num_bins)]
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    for row, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        filled, number = heap[0]
        if filled + length > token_budget:
            return None
        bins[number].append(row)
        full = len(bins[number]) == rows_per_bin
        heapq.heapreplace(heap, (token_budget if full else filled + length, number))
    return bins
