"""Shards + settings + seed -> the batches of any step, for any rank, from any step on.

`RowOrder` names the row at any position of the training sequence, `BatchSource.step` gives the
batch of any step. Both are pure functions: neither the number of workers nor where a run was
resumed changes the rows of a global batch, their masks, or how they are packed.
"""

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from bert_core.disk import atomic_write
from bert_core.errors import UserError
from bert_core.machine import steps_ahead
from bert_core.settings import BatchSettings, RowSettings
from bert_core.text.collation import (
    PretrainingBatch,
    Rows,
    no_rows,
    ragged,
    static_packed,
    static_padded,
)
from bert_core.text.masking import (
    Masker,
    Vocabulary,
    max_predictions,
    next_tokens,
    prediction_counts,
)
from bert_core.text.packing import by_length, pack
from bert_core.text.pairs import RowPlan, RowPlanner, assemble
from bert_core.text.rng import CounterHash, IntArray, permutation
from bert_core.text.shards import TokenShards

SHUFFLED_SHARDS = 16
"""Shards whose rows are shuffled together; the shards themselves are shuffled anew each epoch."""

_MOST_TOKENS = 16_384
"""Of a pass of evaluation, where one of training has not more anyway."""


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

    def plan(self, positions: IntArray) -> RowPlan:
        """The plans of the rows at these positions, in order; arrays [R]."""
        return self.planner.rows(*self.names(positions))

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


@dataclass(frozen=True)
class Replay:
    """A second corpus, with the same tokenizer, and its share of the rows, in (0, 1)."""

    shards: TokenShards
    share: float


@dataclass(frozen=True)
class MixedRows:
    """The rows of a corpus with those of a second one among them, evenly spread.

    Position p holds a row of the second corpus where the whole number of p x share grows: a pure
    function, like each corpus' own order. Its shards count after those of the first.
    """

    first: RowOrder
    second: RowOrder
    share: float
    num_first_shards: int

    def plan(self, positions: IntArray) -> RowPlan:
        """The plans of the rows at these positions, in order; arrays [R]."""
        before = np.floor(positions * self.share).astype(np.int64)
        is_second = np.floor((positions + 1) * self.share) > before
        own = positions[~is_second] - before[~is_second]
        first = self.first.plan(own)
        second = self.second.plan(before[is_second]).shifted(self.num_first_shards)
        order = np.argsort(np.concatenate([np.flatnonzero(~is_second), np.flatnonzero(is_second)]))
        return first.followed_by(second).take(order)


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
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            np.save(file, counts, allow_pickle=False)
    return counts.astype(np.int64)


WINDOW_MICRO_BATCHES = 512
"""Micro-batches of rows that are packed together; a multiple of the global batch is taken.

Half as many bins where rows are half as long as they may be, and about one of them is empty.
"""

SHORTEST_ROW = 3
"""[CLS], a token, [SEP]."""

LEAST_MICRO_BATCH = 16
"""A window has rows for micro-batches of so many at least: a few long rows fit badly together."""


@dataclass(frozen=True)
class StepBatches:
    """What one rank computes in one step, with the counts of the whole global batch.

    The loss is summed and divided by the global counts, so unequal shares do not bias it. The sum
    over all rows of their length squared is what attention costs.
    """

    micro_batches: list[PretrainingBatch]
    num_predictions: int
    num_rows: int
    sum_of_squared_lengths: int

    @property
    def counts(self) -> dict[str, int]:
        """What `compute_loss` divides by."""
        return {"num_predictions": self.num_predictions, "num_rows": self.num_rows}

    def pinned(self) -> "StepBatches":
        """The same in memory from which CUDA copies without the host."""
        return replace(self, micro_batches=[batch.pinned() for batch in self.micro_batches])


def steps_of_window(batch: BatchSettings) -> int:
    """Steps whose rows are packed together: a window is planned in the first of them."""
    rows = WINDOW_MICRO_BATCHES * max(LEAST_MICRO_BATCH, batch.rows_of_a_bin)
    return -(-rows // batch.global_batch_size)


def rows_taken(batch: BatchSettings, steps: int) -> int:
    """How many rows so many steps take from the sequence; packed ones whole windows."""
    if batch.packed:
        window = steps_of_window(batch)
        steps = -(-steps // window) * window
    return steps * batch.global_batch_size


class BatchSource:
    """The training batches of one phase.

    `phase` names the sequence of rows, and `first_row` is the position in it at which step 0
    begins, where earlier steps have taken those before. `static_shapes` pads every micro-batch to
    the same shapes, for accelerators whose programs are compiled; without it batches hold real
    tokens only. With a `replay` rows of a second corpus stand among those of the first, of which
    an epoch is one pass.
    """

    def __init__(
        self,
        shards: TokenShards,
        vocabulary: Vocabulary,
        *,
        rows: RowSettings,
        batch: BatchSettings,
        sequence_length: int,
        seed: int,
        phase: int | str,
        first_row: int = 0,
        static_shapes: bool = False,
        cache_folder: Path | None = None,
        replay: Replay | None = None,
    ) -> None:
        self._key = key = ("bertline", seed, phase)
        self._first_row = first_row
        self._shards = shards
        self._vocabulary = vocabulary
        self._rows = rows
        self._batch = batch
        self._sequence_length = sequence_length
        self._static = static_shapes
        self._order = RowOrder(shards, rows, sequence_length, key, cache_folder=cache_folder)
        self._ordered: RowOrder | MixedRows = self._order
        if replay is not None:
            other_key = (*key, "replay")
            second = RowOrder(
                replay.shards, rows, sequence_length, other_key, cache_folder=cache_folder
            )
            self._ordered = MixedRows(self._order, second, replay.share, len(shards.shards))
            self._shards = replace(shards, shards=[*shards.shards, *replay.shards.shards])
        self._masker = Masker(rows, vocabulary, sequence_length, key)
        self._windows: dict[int, tuple[RowPlan, list[IntArray]]] = {}

    @property
    def rows_per_epoch(self) -> int:
        """Rows in one pass over the corpus."""
        return self._order.rows_per_epoch

    @property
    def steps_per_window(self) -> int:
        """See `steps_of_window`."""
        return steps_of_window(self._batch)

    def step(self, step: int, rank: int = 0, world_size: int = 1) -> StepBatches:
        """The share of `rank` in the global batch of a step (from 0) of this phase.

        A rank always has a micro-batch, if need be one without labels, since all ranks take part
        in the exchange of gradients. Raises `UserError` when a step has fewer rows than workers.
        """
        if self._batch.global_batch_size < world_size:
            raise UserError(
                f"{world_size} workers cannot share {self._batch.global_batch_size} rows a step",
                "batch.global_batch_size",
                "raise it, or use fewer workers",
            )
        if self._batch.packed:
            plan, bins = self._packed_bins(step)
            share = bins[rank::world_size] or [bins[0][:0]]
        else:
            size = self._batch.global_batch_size
            plan = self._plan(self._first_row + step * size, size)
            bins = [by_length(plan.lengths)]
            share = self._dealt(bins[0], rank, world_size)
        whole = plan.take(np.concatenate(bins))
        return StepBatches(
            [self._micro_batch(plan.take(rows), world_size) for rows in share],
            num_predictions=self._num_predictions(whole),
            num_rows=len(whole.start),
            sum_of_squared_lengths=int((whole.lengths**2).sum()),
        )

    def steps(
        self,
        first: int,
        rank: int = 0,
        world_size: int = 1,
        *,
        ahead: int = 2,
        pinned: bool = False,
    ) -> Iterator[StepBatches]:
        """The endless sequence of steps from `first` on, prepared `ahead` in a thread.

        `pinned` is for CUDA alone: the thread also puts them into memory that it copies from.
        """
        make = partial(self.step, rank=rank, world_size=world_size)
        pin = (lambda step: make(step).pinned()) if pinned else make
        return steps_ahead(pin, first, ahead=ahead)

    def epoch_zero(
        self, num_rows: int, rank: int = 0, world_size: int = 1
    ) -> Iterator[PretrainingBatch]:
        """The first rows of epoch 0, each once, in micro-batches: what evaluation reads."""
        total = min(num_rows, self.rows_per_epoch)
        size = self._batch.rows_of_a_bin if self._batch.packed else self._micro_batch_rows(1)
        if not self._static:  # one shape has no room for more than in training; memory may
            few = max(size, _MOST_TOKENS // self._sequence_length)
            size = min(self._batch.micro_batch_size, few)
        for begin in range(rank * size, total, world_size * size):
            plan = self._plan(begin, min(size, total - begin))
            yield self._micro_batch(plan.take(by_length(plan.lengths)), 1)

    def separator_share(self, num_rows: int) -> float:
        """The share of [SEP] in the first rows of epoch 0, [CLS] not counted.

        Left to right it is predicted like any token, and no count of the text knows it.
        """
        plan = self._plan(0, min(num_rows, self.rows_per_epoch))
        others = plan.lengths - 1
        return 1 - float((plan.a_length + plan.b_length).sum() / others.sum())

    def _plan(self, first: int, count: int) -> RowPlan:
        return self._ordered.plan(np.arange(first, first + count))

    def _dealt(self, rows: IntArray, rank: int, world_size: int) -> list[IntArray]:
        """The micro-batches of a rank: rows, sorted by length, dealt out like cards."""
        mine = rows[rank::world_size]
        width = self._micro_batch_rows(world_size)
        return [mine[begin : begin + width] for begin in range(0, len(mine), width)]

    def _micro_batch_rows(self, world_size: int) -> int:
        """Rows of one forward pass: no more than a worker's share of the step."""
        share = -(-self._batch.global_batch_size // world_size)
        return min(self._batch.micro_batch_size, share)

    def _packed_bins(self, step: int) -> tuple[RowPlan, list[IntArray]]:
        """The bins of a step: its share of the bins of the window it lies in."""
        size = self._batch.global_batch_size
        steps_per_window = self.steps_per_window
        window, within = divmod(step, steps_per_window)
        if window not in self._windows:
            rows = steps_per_window * size
            plan = self._plan(self._first_row + window * rows, rows)
            bins = pack(
                plan.lengths,
                token_budget=self.token_budget,
                rows_per_bin=self._rows_per_bin,
                at_least=steps_per_window,  # so that no step is empty
            )
            # They may be sorted by length: no step is to have the long rows alone.
            order = permutation(CounterHash(*self._key, "bins", window), len(bins))
            bins = [bins[index] for index in order]
            while len(self._windows) >= 2:
                self._windows.pop(next(iter(self._windows)))
            self._windows[window] = plan, bins
        plan, bins = self._windows[window]
        begin, end = np.arange(within, within + 2) * len(bins) // steps_per_window
        return plan, bins[begin:end]

    @property
    def token_budget(self) -> int:
        """Tokens that a bin of packed rows has room for."""
        return self._batch.rows_of_a_bin * self._sequence_length

    @property
    def _rows_per_bin(self) -> int:
        """The most rows in one bin: room for a mean length of a quarter of the longest."""
        return 4 * self._batch.rows_of_a_bin

    def _num_predictions(self, plan: RowPlan) -> int:
        if self._rows.whole_word:  # how many whole words fit is known only after choosing them
            return int(self._masked(plan).masked.num_predictions.sum())
        counts = prediction_counts(plan.lengths, self._rows, self._sequence_length)
        if self._rows.objective != "left_to_right":  # [CLS] and [SEP] are never hidden
            counts = np.minimum(counts, plan.a_length + plan.b_length)
        return int(counts.sum())

    def _masked(self, plan: RowPlan) -> Rows:
        input_ids, token_type_ids = assemble(
            self._shards, plan, cls_id=self._vocabulary.cls_id, sep_id=self._vocabulary.sep_id
        )
        if self._rows.objective == "left_to_right":
            masked = next_tokens(input_ids, plan.lengths)
        else:
            masked = self._masker(input_ids, plan.lengths, (plan.copy, plan.shard, plan.start))
        labels = plan.next_sentence
        if self._rows.objective != "mlm_nsp":  # the same pairs, and nobody asks about them
            labels = np.full_like(labels, -1)
        return Rows(plan.lengths, token_type_ids, masked, labels)

    def _micro_batch(self, plan: RowPlan, world_size: int) -> PretrainingBatch:
        rows = self._masked(plan) if len(plan.start) else no_rows(self._vocabulary.pad_id)
        if not self._static:
            return ragged(rows)
        if self._batch.packed:
            predictions = self.token_budget  # left to right, all but one a row
            if self._rows.objective != "left_to_right":
                # A row rounds up by a half at most, or else to the one place that each row has.
                share = self._rows.masked_share
                rounded_up = self._rows_per_bin * max(0.5, 1 - SHORTEST_ROW * share)
                predictions = int(self.token_budget * share + rounded_up)
            return static_packed(
                rows,
                token_budget=self.token_budget,
                max_rows=self._rows_per_bin,
                max_length=self._sequence_length,
                predictions=predictions,
            )
        num_rows = self._micro_batch_rows(world_size)
        return static_padded(
            rows,
            num_rows=num_rows,
            sequence_length=self._sequence_length,
            predictions=num_rows * max_predictions(self._rows, self._sequence_length),
            pad_id=self._vocabulary.pad_id,
        )
