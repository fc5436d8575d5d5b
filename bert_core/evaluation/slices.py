"""A task's metrics by slice: predictions, examples and ways to cut them go in, figures come out.

Shapes: N examples, C classes, S samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bert_core.evaluation.bootstrap import (
    NUM_RESAMPLES,
    Interval,
    bootstrap_intervals,
    interval,
    resampled,
    without_each,
)
from bert_core.evaluation.class_counts import ClassCounts, class_counts, f1_of, ratio
from bert_core.evaluation.outcomes import outcomes
from bert_core.evaluation.slicing import (
    Slicing,
    by_answer_length,
    by_question_word,
    by_words,
)
from bert_core.evaluation.table_text import markdown_text
from bert_core.tasks.metrics import FloatArray
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task

SMALL = 30
"""Fewer examples than this tell little: the interval of a share is then some 0.3 wide."""


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


def usual_slicings(
    task: Task, predictions: Sequence[Mapping[str, Any]], examples: Sequence[Any]
) -> list[Slicing]:
    """By length, and for questions by question word and by answer length."""
    results = outcomes(task, predictions, examples)
    found = [by_words(results)]
    if isinstance(task, QuestionAnswering):
        found.append(by_question_word([each.texts["question"] for each in results]))
        found.append(by_answer_length([each.gold for each in results]))
    return found


def slice_metrics(
    task: Task,
    predictions: Sequence[Mapping[str, Any]],
    examples: Sequence[Any],
    slicings: Sequence[Slicing],
    *,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
    groups: Sequence[str] | None = None,
    hurried: bool = False,
) -> list[Slice]:
    """The metrics of each slice, measured as if it were all there is.

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
    predictions: Sequence[Mapping[str, Any]],
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


def markdown_slices(slices: Sequence[Slice], metrics: Sequence[str]) -> str:
    """A table of some metrics of slices, with a mark on those that are small.

    A figure without interval is one that no sample changes, as where all answers are right.
    """
    lines = [
        f"| by | slice | examples | {' | '.join(metrics)} |",
        f"|---|---|--:|{'--:|' * len(metrics)}",
    ]
    for each in slices:
        cells = [_cell(each.metrics.get(metric)) for metric in metrics]
        by, name = markdown_text(each.by), markdown_text(each.name)
        mark = " (few)" if each.is_small else ""
        lines.append(f"| {by} | {name} | {each.count}{mark} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _of_classes(classes: ClassCounts, counts: FloatArray) -> dict[str, FloatArray]:
    """Each metric of samples with these counts of each example, [S, C]."""
    hits, gold, found = classes.sums(counts)
    return {
        "precision": ratio(hits, found),
        "recall": ratio(hits, gold),
        "f1": f1_of(hits, gold, found),
    }


def _cell(figure: Interval | None) -> str:
    if figure is None:
        return "–"
    if figure.is_degenerate:
        return f"{figure.value:.3f}"
    return f"{figure.value:.3f} ({figure.low:.3f}–{figure.high:.3f})"
