"""Statistics of a model's training texts in its folder, the reference for drift detection.

Shapes: N texts, B ranges of lengths.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from bert_core.errors import UserError
from bert_core.strict_files import read_bounded
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.text.rng import IntArray

TRAINING_STATISTICS = "training_statistics.json"

LENGTH_EDGES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""The longest text of each range of lengths but the last, in tokens."""

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)

_LEAST_SHARE = 1e-4
"""What an empty range counts as, so that the index stays finite."""


class Lengths(BaseModel):
    """Lengths of texts in tokens, special ones too, each as if it were one row.

    `quantiles` are by the share of texts that are shorter. `counts` [B] are those of texts of at
    most `edges` [B - 1] tokens, and of more than the last.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    mean: float
    quantiles: dict[str, float]
    edges: tuple[int, ...] = LENGTH_EDGES
    counts: tuple[int, ...]

    @model_validator(mode="after")
    def _has_a_count_for_each_range(self) -> Self:
        if len(self.counts) != len(self.edges) + 1:
            raise ValueError("as many counts as edges, and one more")
        return self

    @classmethod
    def of(cls, num_tokens: IntArray) -> Self:
        """Measures the lengths of texts with these numbers of tokens, [N]."""
        found = np.quantile(num_tokens, QUANTILES)
        ranges = np.searchsorted(LENGTH_EDGES, num_tokens)
        return cls(
            mean=float(num_tokens.mean()),
            quantiles=dict(zip(map(str, QUANTILES), found.tolist(), strict=True)),
            counts=tuple(np.bincount(ranges, minlength=len(LENGTH_EDGES) + 1).tolist()),
        )

    @property
    def shares(self) -> list[float]:
        """The share of the texts in each range, [B]."""
        return (np.array(self.counts) / max(sum(self.counts), 1)).tolist()


class TrainingStatistics(BaseModel):
    """Describes the texts that a model was trained on.

    `num_examples` are examples of the task, or documents. `unknown_token_share` is of all tokens
    but the special ones. `lengths` are None of pre-training, whose rows are filled up from
    documents. `label_shares` are those of examples, of tagged ones those of words, and where an
    example may have several labels, those of all that were given; see
    `bert_core.tasks.example_statistics`.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    num_examples: int
    unknown_token_share: float
    lengths: Lengths | None = None
    label_shares: dict[str, float] | None = None


def read_training_statistics(folder: Path) -> TrainingStatistics | None:
    """Reads the statistics in a model folder; None if there are none.

    Another program's file of that name says nothing either: a model is not refused for it.
    """
    try:
        return TrainingStatistics.model_validate_json(read_bounded(folder / TRAINING_STATISTICS))
    except (UserError, ValidationError):
        return None


def statistics_of_documents(
    num_documents: int, token_counts: npt.NDArray[np.integer], unknown_id: int
) -> TrainingStatistics:
    """The statistics of documents, given how often each token of the vocabulary occurs in them."""
    share = int(token_counts[unknown_id]) / max(int(token_counts.sum()), 1)
    return TrainingStatistics(num_examples=num_documents, unknown_token_share=share)


def count_tokens(rows: EncodedRows, unknown_id: int) -> tuple[int, int]:
    """How many tokens of rows are unknown, and how many others; [CLS] and [SEP] are none of them.

    Tokens in two windows count twice.
    """
    num_rows = len(rows.lengths)
    num_special = 2 * num_rows + int(np.count_nonzero(rows.first_lengths < rows.lengths))
    unknown = int(np.count_nonzero(rows.input_ids == unknown_id))
    return unknown, len(rows.input_ids) - num_special - unknown


def population_stability_index(expected: Sequence[float], found: Sequence[float]) -> float:
    """How far two distributions over the same ranges or labels are apart; 0 where they are equal.

    Both are shares or counts; by custom more than 0.1 is a change, more than 0.25 a great one.
    """
    mine, yours = (_shares(each) for each in (expected, found))
    return float(((yours - mine) * np.log(yours / mine)).sum())


def _shares(counts: Sequence[float]) -> npt.NDArray[np.float64]:
    numbers = np.asarray(counts, dtype=np.float64)
    return np.maximum(numbers / max(numbers.sum(), 1e-12), _LEAST_SHARE)
