"""Encoded examples of a fine-tuning task, and the batches made from them.

The order of an epoch is a function of the seed and the epoch, as in pre-training.
Shapes: N examples, I items (what a step counts), R rows (sequences), T tokens, P places (where a
head answers), K layers, H hidden size.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt

from bert_core.config import IGNORE_INDEX, ModelConfig
from bert_core.errors import UserError
from bert_core.machine import steps_ahead
from bert_core.text.packing import by_length
from bert_core.text.rng import CounterHash, IntArray, permutation, ragged_arange

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bert_core.model.layout import Layout

# --help reads the tasks: torch is loaded within functions.

LayoutName = Literal["packed", "padded"]

RowPooling = Literal["cls", "mean"]
"""What a row is read at as a whole: its first token, or the mean of all."""

PREDICTION_TOKENS = 4096
"""Default slots of a micro-batch in inference."""


@dataclass(frozen=True)
class TaskBatch:
    """One micro-batch of whole items, rows sorted longest first.

    `places` [P] are indices into the flat tokens, in the order of items and rows as they were
    encoded, and `place_counts` [R] says how many belong to each row. `labels` are the task's, by
    place, row or item; IGNORE_INDEX (or NaN, among real numbers) where there is none.
    """

    input_ids: "Tensor"
    token_type_ids: "Tensor"
    position_ids: "Tensor"
    layout: "Layout"
    places: "Tensor"
    place_counts: "Tensor"
    labels: "Tensor"
    num_real_tokens: int
    num_slots: int

    @property
    def inputs(self) -> "tuple[Tensor, Tensor, Tensor, Layout]":
        """What the encoder reads: ids, segments and positions of the tokens, and their layout."""
        return self.input_ids, self.token_type_ids, self.position_ids, self.layout

    @property
    def places_in_decoder(self) -> "Tensor":
        """The places for a model that attends to the left only, [P].

        A row asked at its first token alone, [CLS], is asked as a whole. There that token has seen
        nothing but itself, so the last one represents the row (Radford et al. 2018, section 3.2).
        """
        import torch

        firsts = self.layout.first_positions  # [R], ascending
        rows = torch.searchsorted(firsts, self.places, right=True) - 1  # [P]
        counts = self.place_counts.repeat_interleave(
            self.place_counts, output_size=len(self.places)
        )
        is_whole = (counts == 1) & (self.places == firsts[rows])
        return torch.where(is_whole, firsts[rows] + self.layout.lengths[rows] - 1, self.places)

    def to(self, device: "torch.device | str", non_blocking: bool = False) -> Self:
        """The same batch on another device."""
        from bert_core.model.layout import to_device

        return to_device(self, device, non_blocking)


@dataclass(frozen=True)
class EncodedRows:
    """Holds the rows of examples, end to end.

    - `input_ids` [T]; `lengths` [R]; `first_lengths` [R], the tokens of segment A
    - `places` [P], positions within the row where a head answers; `place_counts` [R]
    - `labels`, one entry for each place, row or item; `labels_per_item` [I] says how many
    - `rows_per_item` [I], 1 unless several rows are one decision
    - `example` [R], which example a row was made of
    - `num_tokens` [N], those of each example, were it one row (multiple choice: all of them)
    - `truncated` [N], whether it lost tokens to the length
    - `limited_part`, where a part of each example has a limit of its own: its name, its tokens
      [N], and the limit
    - `notes`, arrays of the task's own that its `decode` reads
    - `lost`, the names of examples that teach nothing, by the reason
    - `counts`, what else of the examples is to be told, by what it is: `{"invalid tags": 3}`
    """

    input_ids: IntArray
    lengths: IntArray
    first_lengths: IntArray
    places: IntArray
    place_counts: IntArray
    labels: npt.NDArray[np.int64] | npt.NDArray[np.float32]
    labels_per_item: IntArray
    rows_per_item: IntArray
    example: IntArray
    num_tokens: IntArray
    truncated: npt.NDArray[np.bool_]
    limited_part: tuple[str, IntArray, int] | None = None
    notes: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    lost: dict[str, tuple[str, ...]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def num_truncated(self) -> int:
        """The examples that lost tokens to the length."""
        return int(self.truncated.sum())

    def excess(self, example: int, reader: str = "the model", count: str = "") -> str:
        """Says, for a message, what of a truncated example is too long, and for what.

        `count` stands for its tokens where they were not counted to the end.
        """
        if self.limited_part is not None:
            name, lengths, most = self.limited_part
            if lengths[example] > most:
                return f"the {name} has {lengths[example]:,} tokens, at most {most:,} are read"
        count = count or f"{self.num_tokens[example]:,}"
        return f"{count} tokens are more than {reader} reads at once"

    @property
    def tally(self) -> dict[str, int]:
        """Counts how examples were changed or lost on encoding, by the reason.

        Every summary has it, so that nothing is lost in silence (see `tally_text`).
        """
        lost = {reason: len(names) for reason, names in self.lost.items()}
        return {"examples truncated": self.num_truncated, **self.counts, **lost}

    @property
    def num_items(self) -> int:
        """The number of items in an epoch."""
        return len(self.rows_per_item)

    @cached_property
    def item_lengths(self) -> IntArray:
        """Tokens of each item, all its rows together, [I]."""
        return np.add.reduceat(self.lengths, self._first_rows) if self.num_items else self.lengths

    @cached_property
    def label_counts(self) -> IntArray:
        """Labels of each item that carry a loss, [I]."""
        known = ~_ignored(self.labels)
        ends = np.cumsum(self.labels_per_item)
        sums = np.concatenate([[0], np.cumsum(known)])
        return sums[ends] - sums[ends - self.labels_per_item]

    def sum_of_squared_lengths(self, items: IntArray) -> int:
        """The cost of attention over the rows of these items."""
        return int((self.lengths[self.rows_of(items)] ** 2).sum())

    def batch(
        self, items: IntArray, layout: LayoutName, *, without_labels: bool = False
    ) -> TaskBatch:
        """The micro-batch of these items.

        Padded rows are as long as the longest. `without_labels` makes a batch that teaches nothing,
        for a rank that has to take part in a step without a share.
        """
        import torch

        from bert_core.model.layout import Packed, Padded

        rows = self.rows_of(items)
        lengths = self.lengths[rows]
        order = by_length(lengths)
        width = int(lengths.max())
        slots_of_row = lengths[order] if layout == "packed" else np.full(len(rows), width)
        first_slots = np.empty(len(rows), dtype=np.int64)
        first_slots[order] = np.cumsum(slots_of_row) - slots_of_row
        num_slots = int(slots_of_row.sum())
        slots = ragged_arange(first_slots, lengths)
        within = ragged_arange(np.zeros_like(lengths), lengths)
        input_ids, token_type_ids, position_ids = np.zeros((3, num_slots), dtype=np.int64)
        input_ids[slots] = self.input_ids[ragged_arange(self.first_tokens[rows], lengths)]
        token_type_ids[slots] = within >= np.repeat(self.first_lengths[rows], lengths)
        position_ids[slots] = within
        place_counts = self.place_counts[rows]
        places = self.places[ragged_arange(self._first_places[rows], place_counts)]
        labels = self.labels[ragged_arange(self._first_labels[items], self.labels_per_item[items])]
        if without_labels:
            labels = np.full_like(labels, IGNORE_INDEX if labels.dtype == np.int64 else np.nan)
        ordered = lengths[order].tolist()
        return TaskBatch(
            input_ids=torch.from_numpy(input_ids),
            token_type_ids=torch.from_numpy(token_type_ids),
            position_ids=torch.from_numpy(position_ids),
            layout=Packed.from_lengths(ordered)
            if layout == "packed"
            else Padded.from_lengths(ordered, width),
            places=torch.from_numpy(places + np.repeat(first_slots, place_counts)),
            place_counts=torch.from_numpy(place_counts),
            labels=torch.from_numpy(labels),
            num_real_tokens=0 if without_labels else len(slots),
            num_slots=num_slots,
        )

    def divide(self, items: IntArray, max_tokens: int, layout: LayoutName) -> list[IntArray]:
        """Divides items, in their order, into runs of at most `max_tokens` slots, or of one item.

        In the padded layout each row of a run has as many slots as its longest.
        """
        counts = self.item_lengths, self.rows_per_item, self._longest_rows
        columns = [items.tolist(), *(count[items].tolist() for count in counts)]
        runs: list[list[int]] = []
        tokens = rows = width = 0
        for item, length, num_rows, longest in zip(*columns, strict=True):
            tokens, rows, width = tokens + length, rows + num_rows, max(width, longest)
            if not runs or (tokens if layout == "packed" else rows * width) > max_tokens:
                runs.append([])
                tokens, rows, width = length, num_rows, longest
            runs[-1].append(item)
        return [np.array(run, dtype=np.int64) for run in runs]

    def places_of(self, items: IntArray) -> IntArray:
        """Indices of the places of these items among all of them, in the order of a batch."""
        rows = self.rows_of(items)
        return ragged_arange(self._first_places[rows], self.place_counts[rows])

    def num_answers(self, *, per_row: bool) -> int:
        """How many answers a head gives: one of each place, or of each row."""
        return len(self.lengths) if per_row else len(self.places)

    def answers_of(self, items: IntArray, *, per_row: bool) -> IntArray:
        """Indices of the answers for these items among all of them, in the order of a batch."""
        return self.rows_of(items) if per_row else self.places_of(items)

    @cached_property
    def _first_rows(self) -> IntArray:
        return _starts(self.rows_per_item)

    @cached_property
    def _longest_rows(self) -> IntArray:
        """Tokens of each item's longest row, [I]."""
        if not self.num_items:
            return self.lengths
        return np.maximum.reduceat(self.lengths, self._first_rows)

    @cached_property
    def first_tokens(self) -> IntArray:
        """Where the tokens of each row begin, [R]."""
        return _starts(self.lengths)

    @cached_property
    def _first_places(self) -> IntArray:
        return _starts(self.place_counts)

    @cached_property
    def _first_labels(self) -> IntArray:
        return _starts(self.labels_per_item)

    def rows_of(self, items: IntArray) -> IntArray:
        """Indices of the rows of these items, in their order."""
        return ragged_arange(self._first_rows[items], self.rows_per_item[items])


def whole_rows(lengths: IntArray, pooling: RowPooling) -> tuple[IntArray, IntArray]:
    """Places [P] of rows of these lengths [R] that are read as a whole; how many each has."""
    counts = np.ones_like(lengths) if pooling == "cls" else lengths
    return ragged_arange(np.zeros_like(counts), counts), counts


def gather_items(parts: Sequence[tuple[EncodedRows, IntArray]]) -> EncodedRows:
    """These items of several sets of rows, in this order, as one set: no labels, no notes."""
    rows = [(each, each.rows_of(items)) for each, items in parts]
    num_items = sum(len(items) for _, items in parts)
    return EncodedRows(
        input_ids=concatenated(
            [
                each.input_ids[ragged_arange(each.first_tokens[some], each.lengths[some])]
                for each, some in rows
            ]
        ),
        lengths=concatenated([each.lengths[some] for each, some in rows]),
        first_lengths=concatenated([each.first_lengths[some] for each, some in rows]),
        places=concatenated([each.places[each.places_of(items)] for each, items in parts]),
        place_counts=concatenated([each.place_counts[some] for each, some in rows]),
        labels=np.empty(0, dtype=np.int64),
        labels_per_item=np.zeros(num_items, dtype=np.int64),
        rows_per_item=concatenated([each.rows_per_item[items] for each, items in parts]),
        example=concatenated([each.example[some] for each, some in rows]),
        num_tokens=np.empty(0, dtype=np.int64),
        truncated=np.empty(0, dtype=np.bool_),
    )


def keep_places(rows: EncodedRows, kept: npt.NDArray[np.bool_]) -> EncodedRows:
    """The same rows, without labels or notes, asked at some of their places, [P], alone."""
    row = np.repeat(np.arange(len(rows.lengths)), rows.place_counts)
    return replace(
        rows,
        places=rows.places[kept],
        place_counts=np.bincount(row[kept], minlength=len(rows.lengths)),
        labels=np.empty(0, dtype=np.int64),
        labels_per_item=np.zeros_like(rows.labels_per_item),
        notes={},
    )


def tally_text(tally: Mapping[str, int]) -> str:
    """A tally in words: `3 examples truncated, 0 invalid tags`."""
    return ", ".join(f"{count:,} {name}" for name, count in tally.items())


def concatenated(arrays: Sequence[npt.ArrayLike]) -> IntArray:
    """The arrays end to end, int64; empty where there are none."""
    return np.concatenate([np.empty(0, np.int64), *map(np.asarray, arrays)]).astype(np.int64)


def _starts(counts: IntArray) -> IntArray:
    return np.cumsum(counts) - counts


def _ignored(labels: npt.NDArray[np.int64] | npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Which labels carry no loss, [entries]: those of which any part has no value."""
    ignored = np.isnan(labels) if labels.dtype == np.float32 else labels == IGNORE_INDEX
    return np.asarray(ignored.reshape(len(labels), -1).any(axis=1))


@dataclass(frozen=True)
class TaskStep:
    """One rank's share of a step, with the counts of the whole global batch."""

    micro_batches: list[TaskBatch]
    num_labels: int
    num_rows: int
    sum_of_squared_lengths: int

    @property
    def counts(self) -> dict[str, int]:
        """The denominators of `task_loss`."""
        return {"num_labels": self.num_labels}


class EpochOrder:
    """Which items each step sees: every epoch visits every item once, in its own order.

    The last step of an epoch has what is left.
    """

    def __init__(self, num_items: int, batch_size: int, seed: int) -> None:
        self._num_items = num_items
        self.batch_size = batch_size
        self._seed = seed
        self._order: tuple[int, IntArray] = (-1, np.empty(0, dtype=np.int64))

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every item is seen once."""
        return -(-self._num_items // self.batch_size)

    def items(self, step: int) -> IntArray:
        """The items of the global batch of a step (from 0)."""
        epoch, within = divmod(step, self.steps_per_epoch)
        if self._order[0] != epoch:
            key = CounterHash("bertline", "fine-tuning", self._seed, epoch)
            self._order = epoch, permutation(key, self._num_items)
        return self._order[1][within * self.batch_size : (within + 1) * self.batch_size]

    def refuse_idle_workers(self, world_size: int) -> None:
        """Raises `UserError` when the batch size leaves workers without work."""
        if self.batch_size < world_size:
            raise UserError(
                f"{world_size} workers cannot share {self.batch_size} examples a step",
                "batch_size",
                "raise it, or use fewer workers",
            )


class TaskBatchSource:
    """Makes training batches, in the order of `EpochOrder`.

    `max_tokens` bounds the slots of a micro-batch, which changes speed and memory, not the result.
    """

    def __init__(
        self, rows: EncodedRows, *, batch_size: int, max_tokens: int, seed: int, layout: LayoutName
    ) -> None:
        self._rows = rows
        self._max_tokens = max_tokens
        self._layout: LayoutName = layout
        self._order = EpochOrder(rows.num_items, batch_size, seed)

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every item is seen once."""
        return self._order.steps_per_epoch

    def items(self, step: int) -> IntArray:
        """The items of the global batch of a step (from 0)."""
        return self._order.items(step)

    def step(self, step: int, rank: int = 0, world_size: int = 1) -> TaskStep:
        """The share of `rank` in the global batch of a step (from 0).

        Items are distributed by length, so that ranks have equal work. A rank without a share
        gets a micro-batch that teaches nothing, since all ranks take part in the exchange of
        gradients. Raises `UserError` when the batch size leaves workers without work.
        """
        self._order.refuse_idle_workers(world_size)
        items = self.items(step)
        items = items[longest_first(self._rows.item_lengths[items])]
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


def layout_for(
    config: ModelConfig, device: "torch.device", dtype: "torch.dtype | None", *, training: bool
) -> LayoutName:
    """Returns the cheapest layout: packed wherever attention supports it.

    The packed kernel of CUDA works in 16 bits and knows no dropout; there rows are padded to the
    longest of their micro-batch instead.
    """
    dropout = training and config.attention_probs_dropout_prob > 0
    if device.type == "cpu" or (device.type == "cuda" and dtype is not None and not dropout):
        return "packed"
    return "padded"


def evaluation_batches(
    rows: EncodedRows, *, max_tokens: int, layout: LayoutName, rank: int = 0, world_size: int = 1
) -> Iterator[tuple[IntArray, TaskBatch]]:
    """Every item once, in micro-batches of like lengths, longest first; the share of a rank.

    With each micro-batch come its items. A rank's share may be empty.
    """
    order = longest_first(rows.item_lengths)
    for number, items in enumerate(rows.divide(order, max_tokens, layout)):
        if number % world_size == rank:
            yield items, rows.batch(items, layout)


def longest_first(lengths: IntArray) -> IntArray:
    """The order of these lengths, the longest first, of equals the first."""
    return np.argsort(-lengths, kind="stable")


States = npt.NDArray[np.float16] | npt.NDArray[np.float32]


@dataclass(frozen=True)
class FeatureBatch(TaskBatch):
    """A micro-batch with the encoder's states at its places: `states` [K, P, H]."""

    states: "Tensor"


@dataclass(frozen=True)
class FeatureRows(EncodedRows):
    """Rows whose batches have the states of layers, each [P, H], at their places."""

    states: Sequence[States] = ()

    @classmethod
    def of(cls, rows: EncodedRows, states: Sequence[States]) -> Self:
        """The same rows, with states in the order of their places."""
        values: dict[str, Any] = {each.name: getattr(rows, each.name) for each in fields(rows)}
        return cls(**values, states=states)

    def batch(
        self, items: IntArray, layout: LayoutName, *, without_labels: bool = False
    ) -> FeatureBatch:
        """See `EncodedRows.batch`."""
        batch = super().batch(items, layout, without_labels=without_labels)
        values: dict[str, Any] = {each.name: getattr(batch, each.name) for each in fields(batch)}
        places = self.places_of(items)
        states = np.stack([layer[places] for layer in self.states])
        import torch

        return FeatureBatch(**values, states=torch.from_numpy(states))
