"""A task's metrics, over all examples and over samples of them: predictions and examples go in.

Shapes: N examples, S samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import eq
from typing import Any

import numpy as np

from bert_core.evaluation.class_counts import class_counts
from bert_core.evaluation.outcomes import outcomes
from bert_core.evaluation.weighted_metrics import (
    WeightedMetrics,
    correlations,
    means,
    of_answers,
    of_entities,
    of_label_sets,
    of_labels,
    of_words,
)
from bert_core.tasks.classification import Classification
from bert_core.tasks.metrics import FloatArray, answer_scores
from bert_core.tasks.multiple_choice import MultipleChoice
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Question
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task
from bert_core.text.rng import IntArray

_AGREEMENT = 1e-9


@dataclass(frozen=True)
class Measurement:
    """A task's metrics over all examples, as `Task.metrics` has them, and over samples of them."""

    values: dict[str, float]
    compute: WeightedMetrics
    is_fast: bool


def measure(
    task: Task, predictions: Sequence[Mapping[str, Any]], examples: Sequence[Any]
) -> Measurement:
    """Measures all examples, and finds the fastest exact way to measure samples of them.

    A fast way is taken only if it has, over all examples, the very metrics of the task, so that a
    task whose metrics are its own is measured by them.
    """
    values = task.metrics(predictions, examples)
    fast = _fast_metrics(task, predictions, examples)
    if fast is not None:
        found = fast(np.ones((1, len(examples))))
        same = found.keys() == values.keys() and all(
            abs(found[name][0] - value) <= _AGREEMENT for name, value in values.items()
        )
        if same:
            return Measurement(values, fast, is_fast=True)
    return Measurement(values, plain_metrics(task, predictions, examples), is_fast=False)


def plain_metrics(
    task: Task, predictions: Sequence[Mapping[str, Any]], examples: Sequence[Any]
) -> WeightedMetrics:
    """Any task's metrics, from `Task.metrics` itself, one sample after the other."""

    def compute(counts: FloatArray) -> dict[str, FloatArray]:
        samples = []
        for row in counts.astype(np.int64):
            drawn = np.repeat(np.arange(len(row)), row).tolist()
            some = [predictions[index] for index in drawn]
            samples.append(task.metrics(some, [examples[index] for index in drawn]))
        names = {name: None for metrics in samples for name in metrics}
        return {
            name: np.array([metrics.get(name, np.nan) for metrics in samples]) for name in names
        }

    return compute


def _fast_metrics(
    task: Task, predictions: Sequence[Mapping[str, Any]], examples: Sequence[Any]
) -> WeightedMetrics | None:
    if isinstance(task, QuestionAnswering):
        return _of_questions(task, predictions, examples)
    if isinstance(task, MultipleChoice):
        pairs = zip(predictions, examples, strict=True)
        return means({"accuracy": [found["choice"] == each.answer for found, each in pairs]})
    if isinstance(task, Classification) and task.kind == "regression":
        gold = [each.answer for each in examples]
        return correlations(gold, [each["value"] for each in predictions])
    classes = class_counts(task, outcomes(task, predictions, examples))
    if classes is None:
        return None
    if isinstance(task, Tagging):
        right, count = _right_words(task, predictions, examples)
        return of_words(right, count) if task.is_plain else of_entities(classes, right, count)
    several = isinstance(task, Classification) and task.kind == "multiple"
    return of_label_sets(classes) if several else of_labels(classes)


def _of_questions(
    task: QuestionAnswering,
    predictions: Sequence[Mapping[str, Any]],
    examples: Sequence[Question],
) -> WeightedMetrics:
    golds = [[answer.text for answer in each.answers or ()] for each in examples]
    texts = [each["text"] for each in predictions]
    if not task.no_answer:
        exact, f1 = answer_scores(texts, golds, no_answer=False)
        return means({"exact_match": exact, "f1": f1})
    best = [
        next((answer["text"] for answer in each["n_best"] if answer["text"]), "")
        for each in predictions
    ]
    null_scores = np.array([each["null_score"] for each in predictions])
    return of_answers(texts, best, null_scores, golds)


def _right_words(
    task: Tagging, predictions: Sequence[Mapping[str, Any]], examples: Sequence[TaggedSentence]
) -> tuple[IntArray, IntArray]:
    """Words with the right tag, and all words, of each sentence, [N]."""
    lengths = np.array([len(each.words) for each in examples])
    pairs = zip(task.gold_tags(examples), predictions, strict=True)
    right = np.array([sum(map(eq, gold, found["tags"])) for gold, found in pairs])
    return right, lengths
