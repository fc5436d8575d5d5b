"""Statistics of a model's training texts and labels in its folder, for drift detection.

Shapes: N texts, B ranges of lengths.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from tokenizers import Tokenizer

from bert_core.errors import UserError
from bert_core.special_tokens import SpecialTokenIds, special_token_ids
from bert_core.strict_files import read_bounded
from bert_core.tasks.classification import Classification
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.tag_schemes import OUTSIDE, split_tag
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task
from bert_core.text.rng import IntArray

TRAINING_STATISTICS = "training_statistics.json"

ANSWER, NO_ANSWER = "answer", "no_answer"
"""The labels of questions that may have no answer."""

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
        quantiles = np.quantile(num_tokens, QUANTILES)
        ranges = np.searchsorted(LENGTH_EDGES, num_tokens)
        return cls(
            mean=float(num_tokens.mean()),
            quantiles=dict(zip(map(str, QUANTILES), quantiles.tolist(), strict=True)),
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
    example may have several labels, those of all that were given; see `label_names`.
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


def statistics_of_examples(
    task: Task, examples: Sequence[Any], rows: EncodedRows, tokenizer: Tokenizer
) -> TrainingStatistics:
    """The statistics of examples, one at least, and of the rows made of them."""
    unknown, known = count_tokens(rows, special_token_ids(tokenizer))
    return TrainingStatistics(
        num_examples=len(examples),
        unknown_token_share=unknown / max(unknown + known, 1),
        lengths=Lengths.of(rows.num_tokens),
        label_shares=_label_shares(task, examples),
    )


def count_tokens(rows: EncodedRows, special: SpecialTokenIds) -> tuple[int, int]:
    """How many tokens of rows are unknown, and how many others; [CLS] and [SEP] are none of them.

    Tokens in two windows count twice. Rows that are given as ids may lack [CLS] and [SEP].
    """
    num_special = int(np.isin(rows.input_ids, (special.cls, special.sep)).sum())
    unknown = int(np.count_nonzero(rows.input_ids == special.unk))
    return unknown, len(rows.input_ids) - num_special - unknown


def label_names(task: Task | None) -> tuple[str, ...]:
    """Returns the labels whose shares are recorded; none for a task without labels.

    Of words they are the types of entities and O, or plain tags; of questions, where there may be
    no answer, whether there is one.
    """
    if isinstance(task, Classification):
        return () if task.kind == "regression" else task.labels
    if isinstance(task, Tagging):
        return tuple(dict.fromkeys((OUTSIDE, *map(_type_of, task.labels))))
    if isinstance(task, QuestionAnswering) and task.no_answer:
        return (ANSWER, NO_ANSWER)
    return ()


def _label_shares(task: Task, examples: Sequence[Any]) -> dict[str, float] | None:
    names = label_names(task)
    counts = Counter(_labels_of(task, examples)) if names else Counter[str]()
    total = sum(counts[name] for name in names)
    return {name: counts[name] / total for name in names} if total else None


def _labels_of(task: Task, examples: Sequence[Any]) -> Iterable[str]:
    if isinstance(task, Tagging):
        return map(_type_of, chain.from_iterable(example.tags or () for example in examples))
    if isinstance(task, QuestionAnswering):
        return (
            ANSWER if example.answers else NO_ANSWER
            for example in examples
            if example.answers is not None
        )
    answers = (example.answer for example in examples if example.answer is not None)
    return chain.from_iterable(
        answer if isinstance(answer, tuple) else (answer,) for answer in answers
    )


def _type_of(tag: str) -> str:
    return split_tag(tag)[1] or OUTSIDE


def population_stability_index(expected: Sequence[float], found: Sequence[float]) -> float:
    """How far two distributions over the same ranges or labels are apart; 0 where they are equal.

    Both are shares or counts; by custom more than 0.1 is a change, more than 0.25 a great one.
    """
    mine, yours = (_shares(counts) for counts in (expected, found))
    return float(((yours - mine) * np.log(yours / mine)).sum())


def _shares(counts: Sequence[float]) -> npt.NDArray[np.float64]:
    numbers = np.asarray(counts, dtype=np.float64)
    return np.maximum(numbers / max(numbers.sum(), 1e-12), _LEAST_SHARE)
