"""Builds the tensors of a micro-batch from masked rows, in the layout the device needs.

`ragged` holds real tokens only; `static_packed` and `static_padded` always have the same shapes,
for devices whose programs are compiled. Legend: T tokens, R rows, P predictions.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from bert_core.config import IGNORE_INDEX
from bert_core.model.layout import Layout, Packed, Padded, pinned, to_device
from bert_core.text.masking import MaskedRows
from bert_core.text.rng import IntArray, ragged_arange


@dataclass(frozen=True)
class PretrainingBatch:
    """One micro-batch. Ids are int64.

    `masked_positions` are indices into the flat tokens, `masked_ids` the words that stood there;
    both are [P], and an unused place has any position and the id IGNORE_INDEX. Left to right
    nothing is masked: there they are every position but a row's last, and the word after it.
    `next_sentence` is [N]: 0 IsNext, 1 NotNext, IGNORE_INDEX without the task or for a row that
    only fills the batch.
    `num_real_tokens` of the `num_slots` places are not padding.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    position_ids: Tensor
    layout: Layout
    masked_positions: Tensor
    masked_ids: Tensor
    next_sentence: Tensor
    num_real_tokens: int
    num_slots: int

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Layout]:
        """What the encoder reads: ids, segments and positions of the tokens, and their layout."""
        return self.input_ids, self.token_type_ids, self.position_ids, self.layout

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same batch on another device."""
        return to_device(self, device, non_blocking)

    def pinned(self) -> Self:
        """The same batch in memory from which CUDA copies without the host."""
        return pinned(self)


@dataclass(frozen=True)
class Rows:
    """Rows end to end: `lengths` [R], `token_type_ids` [T] and masks.

    `next_sentence` [R] is -1 in rows that are not asked whether B follows A.
    """

    lengths: IntArray
    token_type_ids: IntArray
    masked: MaskedRows
    next_sentence: IntArray

    @property
    def num_real_tokens(self) -> int:
        """Tokens of rows that have something to predict: all but those of `no_rows`."""
        return int(self.lengths[self.masked.num_predictions > 0].sum())

    @property
    def places(self) -> IntArray:
        """The place of each token in its row, from 0; int64 [T]."""
        return ragged_arange(np.zeros_like(self.lengths), self.lengths)

    @property
    def labels(self) -> IntArray:
        """Next-sentence labels, `IGNORE_INDEX` in rows that are not asked; int64 [R]."""
        return np.where(self.next_sentence < 0, IGNORE_INDEX, self.next_sentence)


def no_rows(pad_id: int) -> Rows:
    """A lone [PAD] without labels: what a rank computes when a step has nothing for it."""
    nothing = np.empty(0, dtype=np.int64)
    masked = MaskedRows(np.array([pad_id]), nothing, nothing, np.array([0]))
    return Rows(np.array([1]), np.array([0]), masked, np.array([-1]))


def ragged(rows: Rows) -> PretrainingBatch:
    """A packed batch of just these rows: no padding, shapes as they come."""
    num_tokens = len(rows.token_type_ids)
    return PretrainingBatch(
        input_ids=torch.from_numpy(rows.masked.input_ids),
        token_type_ids=torch.from_numpy(rows.token_type_ids),
        position_ids=torch.from_numpy(rows.places),
        layout=Packed.from_lengths(rows.lengths.tolist()),
        masked_positions=torch.from_numpy(rows.masked.positions),
        masked_ids=torch.from_numpy(rows.masked.labels),
        next_sentence=torch.from_numpy(rows.labels),
        num_real_tokens=rows.num_real_tokens,
        num_slots=num_tokens,
    )


def static_packed(
    rows: Rows, *, token_budget: int, max_rows: int, max_length: int, predictions: int
) -> PretrainingBatch:
    """A packed batch of exactly `token_budget` tokens in a fixed number of sequences.

    The tail is padding in sequences of its own, since every token must be attended by some;
    empty sequences make up their number.
    """
    num_tokens = len(rows.token_type_ids)
    tail = token_budget - num_tokens
    max_tails = -(-token_budget // max_length)
    lengths = np.zeros(max_rows + max_tails, dtype=np.int64)
    lengths[: len(rows.lengths)] = rows.lengths
    tails = np.minimum(max_length, np.maximum(tail - max_length * np.arange(max_tails), 0))
    lengths[len(rows.lengths) : len(rows.lengths) + max_tails] = tails
    return PretrainingBatch(
        input_ids=_filled(rows.masked.input_ids, token_budget, 0),
        token_type_ids=_filled(rows.token_type_ids, token_budget, 0),
        position_ids=torch.from_numpy(ragged_arange(np.zeros_like(lengths), lengths)),
        layout=Packed.from_lengths(lengths.tolist(), max_length),
        masked_positions=_filled(rows.masked.positions, predictions, 0),
        masked_ids=_filled(rows.masked.labels, predictions, IGNORE_INDEX),
        next_sentence=_filled(rows.labels, len(lengths), IGNORE_INDEX),
        num_real_tokens=rows.num_real_tokens,
        num_slots=token_budget,
    )


def static_padded(
    rows: Rows, *, num_rows: int, sequence_length: int, predictions: int, pad_id: int
) -> PretrainingBatch:
    """A padded batch of exactly `num_rows` rows of `sequence_length` slots.

    Rows that are lacking stand as a single [PAD] that sees itself and carries no label.
    """
    num_slots = num_rows * sequence_length
    first = np.arange(len(rows.lengths)) * sequence_length
    slots = ragged_arange(first, rows.lengths)
    input_ids = np.full(num_slots, pad_id, dtype=np.int64)
    token_type_ids = np.zeros(num_slots, dtype=np.int64)
    input_ids[slots] = rows.masked.input_ids
    token_type_ids[slots] = rows.token_type_ids
    mask = np.zeros(num_slots, dtype=bool)
    mask[slots] = True
    mask[len(rows.lengths) * sequence_length :: sequence_length] = True
    return PretrainingBatch(
        input_ids=torch.from_numpy(input_ids),
        token_type_ids=torch.from_numpy(token_type_ids),
        position_ids=torch.arange(sequence_length).repeat(num_rows),
        layout=Padded(
            torch.from_numpy(mask.reshape(num_rows, sequence_length)), is_full=bool(mask.all())
        ),
        masked_positions=_filled(slots[rows.masked.positions], predictions, 0),
        masked_ids=_filled(rows.masked.labels, predictions, IGNORE_INDEX),
        next_sentence=_filled(rows.labels, num_rows, IGNORE_INDEX),
        num_real_tokens=rows.num_real_tokens,
        num_slots=num_slots,
    )


def _filled(values: IntArray, size: int, fill: int) -> torch.Tensor:
    filled = np.full(size, fill, dtype=np.int64)
    filled[: len(values)] = values
    return torch.from_numpy(filled)
