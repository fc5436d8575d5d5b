"""Rows of unequal length -> bins that fit a token budget and are all about equally full."""

import heapq

import numpy as np

from bert_core.text.counter_hash import IntArray


def by_length(lengths: IntArray) -> IntArray:
    """The indices of rows, longest first, equals in their order; int64 [R]."""
    return np.argsort(-lengths, kind="stable").astype(np.int64)


def pack(lengths: IntArray, *, token_budget: int, rows_per_bin: int) -> list[IntArray]:
    """Divides rows among as few bins as will do; each answer lists the rows of one bin.

    Each row, longest first, goes into the emptiest bin (longest processing time first, Graham
    1969), so that bins are equally full and ranks equally busy. Every length must be within the
    budget.
    """
    order = by_length(lengths)
    fewest = max(-(-int(lengths.sum()) // token_budget), -(-len(lengths) // rows_per_bin))
    for num_bins in range(fewest, len(lengths) + 1):
        bins = _packed_into(num_bins, order, lengths, token_budget, rows_per_bin)
        if bins is not None:
            return [np.array(rows, dtype=np.int64) for rows in bins]
    raise ValueError(f"a row of {lengths.max()} tokens is over the budget of {token_budget}")


def _packed_into(
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
