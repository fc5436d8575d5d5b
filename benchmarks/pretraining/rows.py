"""The rows of one step, the same for every contestant, and the forms in which each takes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bert_core.config import IGNORE_INDEX
from bert_core.text import collation
from bert_core.text.collation import PretrainingBatch
from bert_core.text.masking import MaskedRows
from bert_core.text.packing import pack
from bert_core.text.rng import IntArray

MASKED_SHARE = 0.15
SHORTEST = 8
FULL_SHARE = 0.2
"""The share of natural rows that a document cut at the sequence length fills."""

_BUDGET_STEP = 64
_ALIKE = 32


@dataclass(frozen=True)
class Rows:
    """The same rows for every arm, shortest first; ids are [batch, seq], padded at the end."""

    lengths: list[int]
    input_ids: Tensor
    token_type_ids: Tensor
    labels: Tensor
    next_sentence: Tensor

    @property
    def num_predictions(self) -> int:
        """Masked tokens of all rows."""
        return int((self.labels != IGNORE_INDEX).sum())

    @property
    def num_tokens(self) -> int:
        """Real tokens of all rows."""
        return sum(self.lengths)

    @property
    def sequence_length(self) -> int:
        """Places of a padded row."""
        return self.input_ids.shape[1]

    @property
    def counts(self) -> dict[str, int]:
        """What the loss of the whole step is divided by."""
        return {"num_predictions": self.num_predictions, "num_rows": len(self.lengths)}


def natural_lengths(count: int, sequence_length: int) -> IntArray:
    """Lengths that spread as those of Wikipedia's documents in rows do, half full on average.

    A fifth of them are full, the rest beta(1.2, 2) times the sequence length: many short ones. The
    mean of NVIDIA's Wikipedia set for MLPerf is 254.5 of 512. They are the quantiles of a seeded
    draw, so that the mean hardly depends on their number; ascending, int64 [R].
    """
    full = round(FULL_SHARE * count)
    drawn = np.sort(np.random.default_rng(1).beta(1.2, 2.0, 64 * (count - full)))[32::64]
    lengths = np.full(count, sequence_length)
    lengths[: count - full] = np.clip(np.rint(drawn * sequence_length), SHORTEST, sequence_length)
    return lengths


def rows_for(tokens: int, sequence_length: int, *, natural: bool) -> int:
    """How many rows hold about so many real tokens; dividable into equal micro-batches."""
    rows = round((2 if natural else 1) * tokens / sequence_length)
    return max(1, rows if rows < _ALIKE else round(rows / _ALIKE) * _ALIKE)


def make_rows(vocab_size: int, batch: int, sequence_length: int, *, natural: bool) -> Rows:
    """Random rows, seeded, of full or of `natural_lengths`."""
    random = np.random.default_rng(1)
    lengths = natural_lengths(batch, sequence_length)
    if not natural:
        lengths = np.full(batch, sequence_length)
    places = np.arange(sequence_length)
    input_ids = random.integers(5, vocab_size, (batch, sequence_length))
    real = places < lengths[:, None]
    labels = np.full((batch, sequence_length), IGNORE_INDEX)
    for row, length in enumerate(lengths):
        count = max(1, round(MASKED_SHARE * length))
        masked = random.choice(np.arange(1, length - 1), count, replace=False)
        labels[row, masked] = random.integers(5, vocab_size, count)
    segments = (places >= lengths[:, None] // 2) & real
    return Rows(
        lengths.tolist(),
        torch.from_numpy(input_ids * real),
        torch.from_numpy(segments.astype(np.int64)),
        torch.from_numpy(labels),
        torch.from_numpy(random.integers(0, 2, batch)),
    )


def ragged_batch(rows: Rows) -> PretrainingBatch:
    """All rows end to end, real tokens only: what our loader hands a CPU."""
    return collation.ragged(_end_to_end(rows, range(len(rows.lengths))))


def padded_batches(rows: Rows, parts: int) -> list[PretrainingBatch]:
    """The rows dealt out like cards among so many batches, each row in a whole one of places."""
    dealt = [_end_to_end(rows, mine) for mine in _dealt(rows, parts)]
    return [
        collation.static_padded(
            mine,
            num_rows=len(mine.lengths),
            sequence_length=rows.sequence_length,
            predictions=max(len(each.masked.positions) for each in dealt),
            pad_id=0,
        )
        for mine in dealt
    ]


def packed_bins(rows: Rows, parts: int) -> list[PretrainingBatch]:
    """The rows in so many bins of one token budget and one shape, as our loader packs for CUDA.

    The budget is the least multiple of 64 that holds them; how many rows and predictions a bin has
    room for follows from it as in `BatchSource`, slack included.
    """
    lengths, longest = np.array(rows.lengths), rows.sequence_length
    budget = max(-(-rows.num_tokens // (parts * _BUDGET_STEP)) * _BUDGET_STEP, longest)
    while True:
        max_rows = max(4 * budget // longest, 1)
        bins = pack(lengths, token_budget=budget, rows_per_bin=max_rows, at_least=parts)
        if len(bins) == parts:
            break
        budget += _BUDGET_STEP
    return [
        collation.static_packed(
            _end_to_end(rows, mine.tolist()),
            token_budget=budget,
            max_rows=max_rows,
            max_length=longest,
            predictions=int(budget * MASKED_SHARE + max_rows / 2),
        )
        for mine in bins
    ]


def their_inputs(rows: Rows, parts: int) -> list[dict[str, Any]]:
    """What transformers' model is called with, a part of the rows each, dealt out like cards.

    There is no mask where nothing is padding, which lets it use its fastest attention. All parts
    have the same number of rows, and all but the same number of predictions.
    """
    real = torch.arange(rows.sequence_length) < torch.tensor(rows.lengths).unsqueeze(1)
    return [
        {
            "input_ids": rows.input_ids[mine],
            "token_type_ids": rows.token_type_ids[mine],
            "attention_mask": None if real.all() else real[mine].long(),
            "labels": rows.labels[mine],
            "next_sentence_label": rows.next_sentence[mine],
        }
        for mine in _dealt(rows, parts)
    ]


def _dealt(rows: Rows, parts: int) -> list[list[int]]:
    """The rows of each part: dealt from the left and from the right in turns, so as to be alike."""
    if len(rows.lengths) % parts:
        raise ValueError(f"{len(rows.lengths)} rows do not make {parts} equal parts")
    deals = np.arange(len(rows.lengths)).reshape(-1, parts)
    deals[1::2] = deals[1::2, ::-1]
    return deals.T.tolist()


def _end_to_end(rows: Rows, chosen: Sequence[int]) -> collation.Rows:
    """These rows in this order as our loader has them before it lays them out."""
    order = list(chosen)
    lengths = np.array(rows.lengths)[order]
    real = np.arange(rows.sequence_length) < lengths[:, None]
    labels = rows.labels.numpy()[order]
    flat = labels[real]
    positions = np.flatnonzero(flat != IGNORE_INDEX)
    return collation.Rows(
        lengths,
        rows.token_type_ids.numpy()[order][real],
        MaskedRows(
            rows.input_ids.numpy()[order][real],
            positions,
            flat[positions],
            (labels != IGNORE_INDEX).sum(1),
        ),
        rows.next_sentence.numpy()[order],
    )
