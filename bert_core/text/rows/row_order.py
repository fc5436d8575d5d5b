"""The order of rows over all shards and epochs: a position goes in, the name of a row comes out.

A pure function of (data, settings, seed, phase), so a loader has no state but its position.
"""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from bert_core.disk import written_whole
from bert_core.errors import UserError
from bert_core.text.rows.counter_hash import CounterHash, IntArray, permutation
from bert_core.text.rows.pairs import RowPlanner
from bert_core.text.rows.settings import RowSettings
from bert_core.text.shards import TokenShards

SHUFFLED_SHARDS = 16
"""Shards whose rows are shuffled together; the shards themselves are shuffled anew each epoch."""


Key = TypeVar("Key")
Value = TypeVar("Value")


class RowOrder:
    """Names the row at any position of the endless sequence of a training phase.

    An epoch has as many rows of each shard as the shard's first plan; the plans of later copies
    differ by a few in a thousand, and their surplus is left out, or their lack made up from the
    start, at a place that moves with the epoch. So a position can be found without planning the
    epochs before it, and a start anywhere costs the plans of one group of shards.

    `cache_folder` keeps the row counts of a corpus, which take some seconds per billion tokens.
    """

    def __init__(
        self,
        shards: TokenShards,
        settings: RowSettings,
        sequence_length: int,
        key: tuple[int | str, ...],
        *,
        cache_folder: Path | None = None,
    ) -> None:
        self.planner = RowPlanner(shards, settings, sequence_length, key)
        self._key = key
        self._copies = settings.static_masks
        name = {
            "data": shards.data_hash,
            "rows": settings.model_dump(mode="json"),
            "sequence_length": sequence_length,
            "key": key,
        }
        self._counts = _cached_counts(self.planner, len(shards.shards), name, cache_folder)
        if not self.rows_per_epoch:
            raise UserError("no text to make rows of", str(shards.folder), "prepare more text")
        self._groups: dict[tuple[int, int], tuple[IntArray, IntArray, IntArray]] = {}
        self._starts: dict[tuple[int, int], IntArray] = {}

    @property
    def rows_per_epoch(self) -> int:
        """Rows in one pass over the corpus."""
        return int(self._counts.sum())

    def copy_of_epoch(self, epoch: IntArray) -> IntArray:
        """Which copy of the corpus an epoch reads: its own, or one of the static ones."""
        return epoch if self._copies is None else epoch % self._copies

    def names(self, positions: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Copy, shard and first sentence of the rows at these positions; each int64 [R]."""
        epochs, within = np.divmod(positions, self.rows_per_epoch)
        shard, start = np.empty((2, len(positions)), dtype=np.int64)
        for epoch in np.unique(epochs).tolist():
            of_epoch = np.flatnonzero(epochs == epoch)
            order = permutation(CounterHash(*self._key, "shards", epoch), len(self._counts))
            ends = np.cumsum(self._counts[order])[SHUFFLED_SHARDS - 1 :: SHUFFLED_SHARDS]
            group = np.searchsorted(ends, within[of_epoch], side="right")
            for index in np.unique(group).tolist():
                here = of_epoch[group == index]
                first = int(ends[index - 1]) if index else 0
                members = order[index * SHUFFLED_SHARDS : (index + 1) * SHUFFLED_SHARDS]
                shard[here], start[here] = self._in_group(
                    (epoch, index), members, within[here] - first
                )
        return self.copy_of_epoch(epochs), shard, start

    def _in_group(
        self, group: tuple[int, int], members: IntArray, position: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Shard and first sentence of the rows at positions of one shuffled group."""
        if group not in self._groups:
            counts = self._counts[members]
            shuffled = permutation(CounterHash(*self._key, "order", *group), int(counts.sum()))
            _keep(self._groups, group, (shuffled, np.cumsum(counts), members), limit=2)
        shuffled, ends, members = self._groups[group]
        row = shuffled[position]
        member = np.searchsorted(ends, row, side="right")
        row = row - np.concatenate([[0], ends[:-1]])[member]
        epoch = group[0]
        copy = int(self.copy_of_epoch(np.asarray(epoch)))
        start = np.empty(len(row), dtype=np.int64)
        for index in np.unique(member).tolist():
            here = np.flatnonzero(member == index)
            shard = int(members[index])
            starts = self._row_starts(copy, shard)
            turn = int(CounterHash(*self._key, "turn").below(len(starts), epoch, shard)[0])
            start[here] = starts[(row[here] + turn) % len(starts)]
        return members[member], start

    def _row_starts(self, copy: int, shard: int) -> IntArray:
        if (copy, shard) not in self._starts:
            starts = self.planner.row_starts(copy, shard)
            _keep(self._starts, (copy, shard), starts, limit=2 * SHUFFLED_SHARDS)
        return self._starts[copy, shard]


def _keep(cache: dict[Key, Value], key: Key, value: Value, *, limit: int) -> None:
    while len(cache) >= limit:
        cache.pop(next(iter(cache)))
    cache[key] = value


def _cached_counts(
    planner: RowPlanner, num_shards: int, name: dict[str, object], folder: Path | None
) -> IntArray:
    """Rows of each shard in the first copy, from the cache when it is there; int64 [shards]."""
    text = json.dumps(name, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = folder / f"row-counts-{digest}.npy" if folder else None
    if path is not None and path.exists():
        counts = np.load(path, allow_pickle=False)
        if counts.shape == (num_shards,):
            return counts.astype(np.int64)
    with ThreadPoolExecutor() as threads:
        starts = threads.map(lambda shard: len(planner.row_starts(0, shard)), range(num_shards))
        counts = np.array(list(starts))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as beside, beside.open("wb") as file:
            np.save(file, counts, allow_pickle=False)
    return counts.astype(np.int64)
