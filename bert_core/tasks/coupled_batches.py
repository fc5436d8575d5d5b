"""Steps whose loss is one of all their texts together, in micro-batches of any size.

A step's vectors are computed without gradients, micro-batch by micro-batch, and put together over
all ranks. The loss of the whole gives the gradient of each vector; then each micro-batch is
computed again, with the same dropout, and its vectors pass their gradients on (GradCache, Gao et
al. 2021, arXiv 2101.06983). So memory is that of one micro-batch, and a batch of thousands of texts
has the gradients that it would have at once. A step of one micro-batch is computed once.
Shapes: U texts of a step, R rows of a micro-batch, H numbers of a vector.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from bert_core.machine import steps_ahead
from bert_core.model.bert import Bert
from bert_core.model.layout import to_device
from bert_core.tasks.contrastive import Groups
from bert_core.tasks.encoded_rows import (
    EncodedRows,
    EpochOrder,
    LayoutName,
    TaskBatch,
    longest_first,
)
from bert_core.tasks.task import compute_outputs
from bert_core.text.rng import IntArray
from bert_core.training.loop import autocast, dropout_seed
from bert_core.training.ranks import rank, world_size


class CoupledTask(Protocol):
    """What a task says whose examples share texts, and whose loss is that of a whole step."""

    def step_texts(self, rows: EncodedRows, examples: IntArray) -> tuple[IntArray, Groups]:
        """The rows of these examples' texts [U], and how they belong together."""
        ...

    def step_loss(self, vectors: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
        """The mean loss of a step from its vectors [U, H], and how many examples are right."""
        ...


@dataclass(frozen=True)
class VectorBatch:
    """A micro-batch of texts, and what its vectors are to be told.

    Either the `gradients` [R, H] of its vectors, with its share of the step's `loss` and `sums`; or
    `groups`, where the step has no other texts, of which `order` [U] says where they stand.
    """

    texts: TaskBatch
    loss: Tensor
    sums: Tensor
    gradients: Tensor | None = None
    groups: Groups | None = None
    order: Tensor | None = None

    @property
    def num_real_tokens(self) -> int:
        """Tokens that are not padding."""
        return self.texts.num_real_tokens

    @property
    def num_slots(self) -> int:
        """Places for tokens, padding included."""
        return self.texts.num_slots

    def to(self, device: torch.device, non_blocking: bool = False) -> Self:
        """The same micro-batch on another device."""
        groups = None if self.groups is None else to_device(self.groups, device, non_blocking)
        moved = to_device(self, device, non_blocking)
        return replace(moved, texts=self.texts.to(device, non_blocking), groups=groups)


@dataclass(frozen=True)
class CoupledStep:
    """One rank's share of a step: `positions` says which of the U texts each micro-batch has."""

    micro_batches: Sequence[TaskBatch | VectorBatch]
    positions: Sequence[IntArray]
    groups: Groups
    num_texts: int
    sum_of_squared_lengths: int

    @property
    def num_rows(self) -> int:
        """Texts of the step, all ranks together."""
        return self.num_texts

    @property
    def counts(self) -> Mapping[str, int]:
        """Of the loss of a step nothing is divided."""
        return {}


class CoupledBatchSource:
    """Makes the steps of a coupled task, in the order of `EpochOrder`.

    A text that several examples of a step share is computed once.
    """

    def __init__(
        self,
        task: CoupledTask,
        rows: EncodedRows,
        num_examples: int,
        *,
        batch_size: int,
        max_tokens: int,
        seed: int,
        layout: LayoutName,
    ) -> None:
        self._task = task
        self._rows = rows
        self._max_tokens = max_tokens
        self._layout: LayoutName = layout
        self.order = EpochOrder(num_examples, batch_size, seed)

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every example is seen once."""
        return self.order.steps_per_epoch

    def step(self, step: int, rank: int = 0, world_size: int = 1) -> CoupledStep:
        """The share of `rank` in a step (from 0); see `TaskBatchSource.step`."""
        self.order.refuse_idle_workers(world_size)
        texts, groups = self._task.step_texts(self._rows, self.order.items(step))
        order = longest_first(self._rows.item_lengths[texts])
        mine = order[rank::world_size]
        parts = self._divided(texts, mine)
        batches = [self._rows.batch(texts[part], self._layout) for part in parts]
        if not batches:
            parts = [order[:0]]
            batches = [self._rows.batch(texts[order[-1:]], self._layout, without_labels=True)]
        return CoupledStep(
            batches,
            parts,
            groups,
            num_texts=len(texts),
            sum_of_squared_lengths=self._rows.sum_of_squared_lengths(texts),
        )

    def steps(self, first: int, rank: int = 0, world_size: int = 1) -> Iterator[CoupledStep]:
        """The endless sequence of steps from `first` on, prepared ahead."""
        return steps_ahead(partial(self.step, rank=rank, world_size=world_size), first)

    def _divided(self, texts: IntArray, positions: IntArray) -> list[IntArray]:
        """Divides texts into runs, as positions."""
        runs = self._rows.divide(texts[positions], self._max_tokens, self._layout)
        ends = np.cumsum([len(run) for run in runs], dtype=np.int64)
        return [positions[end - len(run) : end] for run, end in zip(runs, ends, strict=True)]


def told_steps(
    steps: Iterator[CoupledStep],
    task: CoupledTask,
    model: Bert,
    *,
    first: int,
    device: torch.device,
    autocast_dtype: torch.dtype | None,
    seed: int,
) -> Iterator[CoupledStep]:
    """The steps from `first` on, whose micro-batches know the gradients of their vectors.

    Each is computed when it is asked for, with the weights that `model` has then; all ranks ask
    alike. `seed` is that of `train`, whose dropout this repeats.
    """
    several = world_size() > 1
    for number, step in enumerate(steps, first):
        batches = [batch for batch in step.micro_batches if isinstance(batch, TaskBatch)]
        zero = torch.zeros(())
        if len(batches) == 1 and not several:
            order = torch.from_numpy(np.argsort(step.positions[0]))
            told = [VectorBatch(batches[0], zero, zero, groups=step.groups, order=order)]
            yield replace(step, micro_batches=told)
            continue
        model.train()
        found = []
        for index, batch in enumerate(batches):
            torch.manual_seed(dropout_seed(seed, number, rank(), index))
            with torch.no_grad(), autocast(device, autocast_dtype):
                found.append(compute_outputs(model, batch.to(device)).float())
        vectors = found[0].new_zeros(step.num_texts, found[0].shape[1])
        for positions, some in zip(step.positions, found, strict=True):
            vectors[torch.from_numpy(positions)] = some[: len(positions)]
        if several:
            dist.all_reduce(vectors)  # each text is one rank's, and 0 elsewhere
        vectors.requires_grad_()
        loss, right = task.step_loss(vectors, to_device(step.groups, device))
        (gradients,) = torch.autograd.grad(loss, vectors)
        sums = _sums(loss, right, step.groups)
        told = []
        for index, (positions, batch) in enumerate(zip(step.positions, batches, strict=True)):
            of_batch = vectors.new_zeros(len(batch.place_counts), vectors.shape[1])
            of_batch[: len(positions)] = gradients[torch.from_numpy(positions)]
            tells = index == 0 and rank() == 0  # the step's loss, once
            share = (loss.detach(), sums) if tells else (torch.zeros_like(loss), sums * 0)
            told.append(VectorBatch(batch, *share, gradients=of_batch))
        yield replace(step, micro_batches=told)


def vector_loss(task: CoupledTask, model: Bert, batch: VectorBatch) -> tuple[Tensor, Tensor]:
    """The micro-batch's share of the step's loss, with its gradient, and its sums (SUM_NAMES)."""
    vectors = compute_outputs(model, batch.texts).float()
    if batch.groups is not None and batch.order is not None:
        loss, right = task.step_loss(vectors[batch.order], batch.groups)
        return loss, _sums(loss, right, batch.groups)
    assert batch.gradients is not None
    told = (vectors * batch.gradients).sum()
    return told - told.detach() + batch.loss, batch.sums


def loss_of_examples(
    task: CoupledTask, vectors: Tensor, rows: EncodedRows, num_examples: int, batch_size: int
) -> float:
    """The mean loss of examples, `batch_size` after another, from the vectors of all rows, [R, H].

    As a step's loss depends on what else is in it, so does this.
    """
    total = 0.0
    for begin in range(0, num_examples, batch_size):
        some = np.arange(begin, min(begin + batch_size, num_examples))
        texts, groups = task.step_texts(rows, some)
        total += len(some) * float(task.step_loss(vectors[torch.from_numpy(texts)], groups)[0])
    return total / max(num_examples, 1)


def _sums(loss: Tensor, right: Tensor, groups: Groups) -> Tensor:
    count = len(groups.queries)
    return torch.stack(
        [loss.detach() * count, right.float(), torch.full_like(loss, count).detach()]
    )
