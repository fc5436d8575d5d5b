"""Metrics by slice: by length, question word, answer length, column of the data, or class.

Shapes: N examples, C classes, S samples.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_core.evaluation.intervals import (
    NUM_RESAMPLES,
    Interval,
    bootstrap_intervals,
    interval,
    resampled,
    without_each,
)
from bert_core.evaluation.metrics import ClassCounts, class_counts, f1_of, ratio
from bert_core.evaluation.outcomes import Outcome, outcomes
from bert_core.tasks.metrics import FloatArray
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.tables import Record, TaskDataError, column
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Predictions, Task

MOST_SLICES = 20
OTHERS = "(others)"
EMPTY = "(empty)"

_NUM_BUCKETS = 4
_FEW_NUMBERS = 10  # so few different numbers are as good as names
_QUESTION_WORDS = ("what", "which", "who", "whose", "whom", "when", "where", "why", "how")
_COUNTED = ("many", "much", "long", "old", "far", "often")
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Slicing:
    """The slice each example belongs to, [N], and the names of the slices in the order to show."""

    by: str
    slice_of: tuple[str, ...]
    names: tuple[str, ...]


def by_number(by: str, numbers: npt.ArrayLike) -> Slicing:
    """Slices of about as many examples each, by the size of a number of theirs, [N].

    A slice is named by the least and the greatest number in it; equal numbers share one. The names
    have as many digits as it takes to tell these numbers apart, at least six.
    """
    sizes = np.asarray(numbers, dtype=np.float64)
    edges = np.unique(np.quantile(sizes, np.linspace(0, 1, _NUM_BUCKETS + 1)[1:-1]))
    bucket = np.searchsorted(edges, sizes, side="left")
    names = {}
    inside = {index: sizes[bucket == index] for index in np.unique(bucket).tolist()}
    ends = {index: (part.min(), part.max()) for index, part in inside.items()}
    digits = _digits_apart({end for pair in ends.values() for end in pair})
    for index, pair in ends.items():
        least, greatest = (f"{end:.{digits}g}" for end in pair)
        names[index] = least if least == greatest else f"{least} to {greatest}"
    return Slicing(by, tuple(names[index] for index in bucket.tolist()), tuple(names.values()))


def by_value(by: str, values: Sequence[str]) -> Slicing:
    """A slice for each value, the most frequent first; what is beyond 20 slices is `(others)`."""
    ranked = [value for value, _ in Counter(values).most_common()]
    names = ranked if len(ranked) <= MOST_SLICES else [*ranked[: MOST_SLICES - 1], OTHERS]
    known = set(names)
    return Slicing(by, tuple(each if each in known else OTHERS for each in values), tuple(names))


def by_words(results: Sequence[Outcome]) -> Slicing:
    """By the number of words in all the texts of an example."""
    return by_number("words", [_num_words(result) for result in results])


def by_column(results: Sequence[Outcome], name: str) -> Slicing:
    """By a column of the data: numbers in buckets, other values each for itself, empty ones too.

    Raises `TaskDataError`, with the nearest name, for a column that an example does not have, and
    for one that makes no slices.
    """
    values = [column(Record(result.columns, result.where), name) for result in results]
    numbers = [_number(value) for value in values]
    known = [number for number in numbers if number is not None]
    shown = [_shown(value) for value in values]
    are_numbers = len(known) + shown.count(EMPTY) == len(values)
    if are_numbers and len(set(known)) > _FEW_NUMBERS:
        slices = by_number(name, known)
        if len(known) == len(values):
            return slices
        of_known = iter(slices.slice_of)
        of_all = tuple(EMPTY if number is None else next(of_known) for number in numbers)
        return Slicing(name, of_all, (*slices.names, EMPTY))
    if len(set(shown)) == len(shown) > MOST_SLICES:
        raise TaskDataError(
            "another value for every example", f"column {name}", "slice by another column"
        )
    return by_value(name, shown)


def by_question_word(questions: Sequence[str]) -> Slicing:
    """By the first question word, anywhere in the question ("In what year" is what).

    `how` includes the word that it counts: how many, how long.
    """
    return by_value("question word", [_question_word(question) for question in questions])


def by_answer_length(golds: Sequence[Sequence[str]]) -> Slicing:
    """By the words of the first right answer."""
    names = {
        0: "no answer",
        1: "1 word",
        2: "2 or 3 words",
        4: "4 to 6 words",
        7: "7 words or more",
    }
    starts = np.array(list(names))
    lengths = [len(texts[0].split()) if texts else 0 for texts in golds]
    chosen = starts[np.searchsorted(starts, lengths, side="right") - 1].tolist()
    shown = tuple(name for start, name in names.items() if start in chosen)
    return Slicing("answer length", tuple(names[start] for start in chosen), shown)


def _digits_apart(numbers: Collection[float]) -> int:
    """The significant digits that tell numbers of double precision apart.

    Those are 6, or else at least all digits before the point.
    """
    whole = len(f"{max(map(abs, numbers)):.0f}")
    for digits in (6, *range(min(max(whole, 7), 17), 17)):
        if len({f"{number:.{digits}g}" for number in numbers}) == len(numbers):
            return digits
    return 17


def _num_words(result: Outcome) -> int:
    texts: list[Any] = []
    for value in result.texts.values():
        texts += value if isinstance(value, list) else [value]
    return sum(len(text.split()) for text in texts if isinstance(text, str))


def _question_word(question: str) -> str:
    words = [word.lower() for word in _WORD.findall(question)]
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == "how" and after in _COUNTED:
            return f"how {after}"
        if word in _QUESTION_WORDS:
            return word
    return "none"


def _number(value: Any) -> float | None:  # noqa: ANN401 - a table holds anything
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except ValueError:
            return None
        return number if np.isfinite(number) else None
    return None


def _shown(value: Any) -> str:  # noqa: ANN401 - a table holds anything
    if value is None or value == "" or (isinstance(value, float) and np.isnan(value)):
        return EMPTY
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


SMALL = 30
"""Below this number of examples the interval of a share is about 0.3 wide."""


@dataclass(frozen=True)
class Slice:
    """Some of the examples, or one of the classes, and the metrics of it alone.

    `count` is how many examples it has; of a class how many labels or entities are of it.
    """

    by: str
    name: str
    count: int
    metrics: Mapping[str, Interval]

    @property
    def is_small(self) -> bool:
        """Whether it has too few examples to say much."""
        return self.count < SMALL


def usual_slicings(task: Task, predictions: Predictions, examples: Sequence[Any]) -> list[Slicing]:
    """By length, and for questions by question word and by answer length."""
    results = outcomes(task, predictions, examples)
    found = [by_words(results)]
    if isinstance(task, QuestionAnswering):
        found.append(by_question_word([result.texts["question"] for result in results]))
        found.append(by_answer_length([result.gold for result in results]))
    return found


def slice_metrics(
    task: Task,
    predictions: Predictions,
    examples: Sequence[Any],
    slicings: Sequence[Slicing],
    *,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
    groups: Sequence[str] | None = None,
    hurried: bool = False,
) -> list[Slice]:
    """Measures each slice on its own.

    `groups` and `hurried` as in `bootstrap_intervals`.
    """
    found = []
    for slicing in slicings:
        for name in slicing.names:
            inside = [index for index, each in enumerate(slicing.slice_of) if each == name]
            metrics = bootstrap_intervals(
                task,
                [predictions[index] for index in inside],
                [examples[index] for index in inside],
                num_resamples=num_resamples,
                seed=seed,
                groups=None if groups is None else [groups[index] for index in inside],
                hurried=hurried,
            )
            found.append(Slice(slicing.by, name, len(inside), metrics))
    return found


def class_metrics(
    task: Task,
    predictions: Predictions,
    examples: Sequence[Any],
    *,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
    groups: Sequence[str] | None = None,
) -> list[Slice]:
    """Precision, recall and F1 of each label, or of each type of entities; empty for other tasks.

    Recall is the accuracy among the examples that have the label. All examples are measured, not
    these alone, for among them nothing is found wrongly to have the label.
    """
    classes = class_counts(task, outcomes(task, predictions, examples))
    if classes is None:
        return []
    values = _of_classes(classes, np.ones((1, len(examples))))
    compute = partial(_of_classes, classes)
    drawn = resampled(compute, len(examples), num_resamples=num_resamples, seed=seed, groups=groups)
    left_out = without_each(compute, len(examples), groups)
    is_of_entities = isinstance(task, Tagging) and not task.is_plain
    by = "entity type" if is_of_entities else "label"
    num_gold = classes.gold.sum(axis=0)
    return [
        Slice(
            by,
            name,
            int(num_gold[index]),
            {
                metric: interval(
                    float(values[metric][0, index]),
                    drawn[metric][:, index],
                    left_out[metric][:, index],
                )
                for metric in values
            },
        )
        for index, name in enumerate(classes.names)
    ]


def _of_classes(classes: ClassCounts, counts: FloatArray) -> dict[str, FloatArray]:
    """Each metric of samples with these counts of each example, [S, C]."""
    hits, gold, found = classes.sums(counts)
    return {
        "precision": ratio(hits, found),
        "recall": ratio(hits, gold),
        "f1": f1_of(hits, gold, found),
    }
