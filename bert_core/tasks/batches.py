"""Encoded rows + a seed -> the batches of any step, for any rank, from any step on.

As in pre-training the order is a function: of the seed and the epoch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from bert_core.errors import UserError
from bert_core.prefetch import steps_ahead
from bert_core.tasks.encoded_rows import EncodedRows, LayoutName, TaskBatch
from bert_core.text.rng import CounterHash, IntArray, permutation


@dataclass(frozen=True)
class TaskStep:
    """What one rank computes in one step, with the counts of the whole global batch."""

    micro_batches: list[TaskBatch]
    num_labels: int
    num_rows: int
    sum_of_squared_lengths: int

    @property
    def counts(self) -> dict[str, int]:
        """What `task_loss` divides by."""
        return {"num_labels": self.num_labels}


class TaskBatchSource:
    """The training batches of a task: each epoch goes once through all items, in its own order.

    The last step of an epoch has what is left. `max_tokens` bounds the slots of a micro-batch,
    which changes speed and memory, not the result.
    """

    def __init__(
        self,
        rows: EncodedRows,
        *,
        batch_size: int,
        max_tokens: int,
        seed: int,
        layout: LayoutName,
    ) -> None:
        self._rows = rows
        self._batch_size = batch_size
        self._max_tokens = max_tokens
        self._seed = seed
        self._layout: LayoutName = layout
        self._order: tuple[int, IntArray] = (-1, np.empty(0, dtype=np.int64))

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every item is seen once."""
        return -(-self._rows.num_items // self._batch_size)

    def items(self, step: int) -> IntArray:
        """The items of the global batch of a step (from 0)."""
        epoch, within = divmod(step, self.steps_per_epoch)
        if self._order[0] != epoch:
            key = CounterHash("bertline", "fine-tuning", self._seed, epoch)
            self._order = epoch, permutation(key, self._rows.num_items)
        return self._order[1][within * self._batch_size : (within + 1) * self._batch_size]

    def step(self, step: int, rank: int = 0, world_size: int = 1) -> TaskStep:
        """The share of `rank` in the global batch of a step (from 0).

        Items are dealt out by length, so that ranks have alike much to do. A rank without a share
        gets a micro-batch that teaches nothing, since all ranks take part in the exchange of
        gradients. Raises `UserError` when the batch size leaves workers without work.
        """
        if self._batch_size < world_size:
            raise UserError(
                f"{world_size} workers cannot share {self._batch_size} examples a step",
                "batch_size",
                "raise it, or use fewer workers",
            )
        items = self.items(step)
        items = items[_longest_first(self._rows.item_lengths[items])]
        mine = self._rows.divide(items[rank::world_size], self._max_tokens, self._layout)
        batches = [self._rows.batch(some, self._layout) for some in mine]
        if not batches:
            batches = [self._rows.batch(items[-1:], self._layout, without_labels=True)]
        return TaskStep(
            batches,
            num_labels=int(self._rows.label_counts[items].sum()),
            num_rows=int(self._rows.rows_per_item[items].sum()),
            sum_of_squared_lengths=self._rows.sum_of_squared_lengths(items),
        )

    def steps(self, first: int, rank: int = 0, world_size: int = 1) -> Iterator[TaskStep]:
        """The endless sequence of steps from `first` on, prepared ahead."""
        return steps_ahead(partial(self.step, rank=rank, world_size=world_size), first)


def evaluation_batches(
    rows: EncodedRows, *, max_tokens: int, layout: LayoutName, rank: int = 0, world_size: int = 1
) -> Iterator[tuple[IntArray, TaskBatch]]:
    """Every item once, in micro-batches of like lengths, longest first; the share of a rank.

    With each micro-batch come its items. A rank's share may be empty.
    """
    order = _longest_first(rows.item_lengths)
    for number, items in enumerate(rows.divide(order, max_tokens, layout)):
        if number % world_size == rank:
            yield items, rows.batch(items, layout)


def _longest_first(lengths: IntArray) -> IntArray:
    """The order of falling lengths; equal ones stay as they are."""
    return np.argsort(-lengths, kind="stable")
