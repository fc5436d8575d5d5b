"""Confusion matrices, and the wrong answers with the highest confidence.

Shapes: C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_core.evaluation.outcomes import Entity, Outcome, outcomes, spans
from bert_core.tasks.classification import Classification
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Predictions, Task

NO_ENTITY = "no entity"
NUM_MISTAKES = 20


@dataclass(frozen=True)
class ConfusionMatrix:
    """Counts of the right class (row) and the predicted class (column), [C, C]."""

    names: tuple[str, ...]
    counts: npt.NDArray[np.int64]

    def most_confused(self, num: int) -> list[tuple[str, str, int]]:
        """The most frequent mistakes: right class, predicted class, count."""
        wrong = self.counts * ~np.eye(len(self.names), dtype=bool)
        gold, found = np.unravel_index(np.argsort(-wrong, axis=None, kind="stable"), wrong.shape)
        places = list(zip(gold.tolist(), found.tolist(), strict=True))[:num]
        return [
            (self.names[row], self.names[column], int(wrong[row, column]))
            for row, column in places
            if wrong[row, column]
        ]


def confusion_matrix(
    task: Task, predictions: Predictions, examples: Sequence[Any]
) -> ConfusionMatrix | None:
    """The labels of single-label examples, or the types of entities; None for other tasks.

    Entities are compared span by span; where only one side has one, the other has NO_ENTITY.
    """
    results = outcomes(task, predictions, examples)
    if isinstance(task, Tagging):
        pairs = [pair for result in results for pair in _types_by_span(result.gold, result.found)]
        return count_pairs(pairs, [*task.type_names, NO_ENTITY])
    if isinstance(task, Classification) and task.kind == "single":
        return count_pairs([(result.gold, result.found) for result in results], task.labels)
    return None


def count_pairs(pairs: Sequence[tuple[str, str]], names: Sequence[str]) -> ConfusionMatrix:
    """Counts pairs (right, predicted); classes that are not among `names` follow them."""
    seen = {name for pair in pairs for name in pair}
    all_names = (*names, *sorted(seen - set(names)))
    number = {name: index for index, name in enumerate(all_names)}
    counts = np.zeros((len(all_names), len(all_names)), dtype=np.int64)
    for gold, found in pairs:
        counts[number[gold], number[found]] += 1
    return ConfusionMatrix(all_names, counts)


def worst_mistakes(
    task: Task, predictions: Predictions, examples: Sequence[Any], *, num: int = NUM_MISTAKES
) -> list[Outcome]:
    """The wrong answers with the highest confidence, or the numbers that are furthest off.

    Sentences of a tagger are ordered by their most confident wrong entity; those that only lack
    entities come last.
    """
    results = outcomes(task, predictions, examples)
    wrong = [result for result in results if result.correct is False or result.is_number]
    return sorted(wrong, key=_badness, reverse=True)[:num]


def _badness(result: Outcome) -> float:
    if result.is_number:
        return abs(result.found - result.gold)
    if result.confidence is None and isinstance(result.found, list):
        return max((_score_of_wrong(each, result.gold) for each in result.found), default=0.0)
    return result.confidence or 0.0


def _score_of_wrong(found: Any, gold: Sequence[Any]) -> float:  # noqa: ANN401 - entity or label
    if isinstance(found, Mapping) and not spans([found]) & spans(gold):
        return found["score"]
    return 0.0


def _types_by_span(gold: Sequence[Entity], found: Sequence[Entity]) -> list[tuple[str, str]]:
    golds, founds = ({span: kind for kind, span in spans(each)} for each in (gold, found))
    return [
        (golds.get(span, NO_ENTITY), founds.get(span, NO_ENTITY))
        for span in sorted(golds.keys() | founds.keys())
    ]
