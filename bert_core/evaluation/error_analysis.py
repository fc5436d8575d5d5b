"""Error analysis: confused classes, the most confident mistakes, calibration, and a baseline.

The baseline is the majority classifier, which reads nothing: a model that gives every example the
same answer is one. Shapes: C classes; N decisions, K outcomes of each, B bins.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_core.evaluation.outcomes import Entity, Outcome, outcomes, spans
from bert_core.tasks.classification import Classification
from bert_core.tasks.metrics import FloatArray
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Predictions, Task

NO_ENTITY = "no entity"
NUM_MISTAKES = 20
NUM_BINS = 15


@dataclass(frozen=True)
class ConfusionMatrix:
    """Counts of the right class (row) and the predicted class (column), [C, C]."""

    names: tuple[str, ...]
    counts: npt.NDArray[np.int64]

    def most_confused(self, num: int) -> list[tuple[str, str, int]]:
        """The most frequent mistakes: right class, predicted class, count."""
        wrong = self.counts * ~np.eye(len(self.names), dtype=bool)
        rows, columns = np.unravel_index(np.argsort(-wrong, axis=None, kind="stable"), wrong.shape)
        cells = list(zip(rows.tolist(), columns.tolist(), strict=True))[:num]
        return [
            (self.names[row], self.names[column], int(wrong[row, column]))
            for row, column in cells
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

    Of several labels the surest wrong one counts. Sentences of a tagger are ordered by their most
    confident wrong entity; those that only lack entities come last.
    """
    results = zip(outcomes(task, predictions, examples), predictions, strict=True)
    wrong = [each for each in results if each[0].correct is False or each[0].is_number]
    wrong.sort(key=lambda each: _badness(*each), reverse=True)
    return [result for result, _ in wrong[:num]]


def _badness(result: Outcome, prediction: Mapping[str, Any]) -> float:
    if result.is_number:
        return abs(result.found - result.gold)
    if "labels" in prediction:  # of several, each decided by itself
        scores, found = prediction["scores"], set(result.found)
        wrong = found ^ set(result.gold)
        return max(scores[name] if name in found else 1 - scores[name] for name in wrong)
    if result.confidence is None and isinstance(result.found, list):
        return max((_score_of_wrong(entity, result.gold) for entity in result.found), default=0.0)
    return result.confidence or 0.0


def _score_of_wrong(found: Any, gold: Sequence[Any]) -> float:  # noqa: ANN401 - entity or label
    if isinstance(found, Mapping) and not spans([found]) & spans(gold):
        return found["score"]
    return 0.0


def _types_by_span(gold: Sequence[Entity], found: Sequence[Entity]) -> list[tuple[str, str]]:
    right, predicted = ({span: kind for kind, span in spans(side)} for side in (gold, found))
    return [
        (right.get(span, NO_ENTITY), predicted.get(span, NO_ENTITY))
        for span in sorted(right.keys() | predicted.keys())
    ]


@dataclass(frozen=True)
class Bin:
    """Decisions of like confidence, those above `low` and up to `high`.

    `confidence` is their mean confidence, `accuracy` the share that came true.
    """

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Calibration:
    """The distance between confidence and accuracy, overall and by bin.

    `expected_error` is ECE over 15 bins of equal width (Guo et al. 2017, equation 3),
    `adaptive_error` the same over bins of like many decisions, which the crowd near 1 does not
    blur (Nguyen and O'Connor 2015). Neither is 0 of few examples even if the model is calibrated:
    about 0.03 and 0.05 of 400, 0.006 and 0.009 of 10,000. `brier_score` is Brier's own of 1950,
    the summed squared error over the outcomes, 0..2.
    """

    num_decisions: int
    accuracy: float
    mean_confidence: float
    expected_error: float
    adaptive_error: float
    brier_score: float
    bins: tuple[Bin, ...]


def calibration(
    task: Task, predictions: Predictions, examples: Sequence[Any]
) -> Calibration | None:
    """Calibration of a task's decisions; None where predictions have no probabilities.

    A decision is an answer; of several labels for an example, whether one of them belongs there;
    of a tagger, an entity that it found.
    """
    results = outcomes(task, predictions, examples)
    if not results:
        return None
    if isinstance(task, Tagging):
        return _of_entities(results)
    if "labels" in predictions[0]:
        return _of_labels(predictions, results)
    if results[0].confidence is None:
        return None
    confidences = np.array([result.confidence for result in results], dtype=np.float64)
    correct = np.array([result.correct for result in results], dtype=np.float64)
    brier_score = _brier_of_two(confidences, correct)
    if "scores" in predictions[0]:
        pairs = zip(predictions, results, strict=True)
        squared = [
            _squared_error(prediction["scores"], result.gold) for prediction, result in pairs
        ]
        brier_score = float(np.mean(squared))
    return measured_calibration(confidences, correct, brier_score=brier_score)


def measured_calibration(
    confidences: npt.ArrayLike, correct: npt.ArrayLike, *, brier_score: float
) -> Calibration:
    """Calibration of decisions made with these confidences [N], of which some came true [N]."""
    sure = np.asarray(confidences, dtype=np.float64)
    true = np.asarray(correct, dtype=np.float64)
    bins = reliability_bins(sure, true, np.linspace(0, 1, NUM_BINS + 1))
    # Equal confidences share a bin, so there may be fewer bins.
    inner = np.quantile(sure, np.linspace(0, 1, NUM_BINS + 1)[1:-1])
    edges = np.unique([0.0, *inner, 1.0])
    return Calibration(
        num_decisions=len(sure),
        accuracy=float(true.mean()),
        mean_confidence=float(sure.mean()),
        expected_error=expected_error(bins),
        adaptive_error=expected_error(reliability_bins(sure, true, edges)),
        brier_score=brier_score,
        bins=bins,
    )


def reliability_bins(
    confidences: FloatArray, correct: FloatArray, edges: FloatArray
) -> tuple[Bin, ...]:
    """The bins between edges [B+1] that have decisions in them; a decision on an edge is below."""
    bin_of = np.clip(np.searchsorted(edges, confidences, side="left") - 1, 0, len(edges) - 2)
    bins = []
    for index in np.unique(bin_of).tolist():
        inside = bin_of == index
        bins.append(
            Bin(
                low=float(edges[index]),
                high=float(edges[index + 1]),
                count=int(inside.sum()),
                confidence=float(confidences[inside].mean()),
                accuracy=float(correct[inside].mean()),
            )
        )
    return tuple(bins)


def expected_error(bins: Sequence[Bin]) -> float:
    """The mean distance of accuracy and confidence over the bins, weighted by their counts."""
    total = sum(group.count for group in bins)
    return sum(group.count * abs(group.accuracy - group.confidence) for group in bins) / total


def _of_labels(predictions: Predictions, results: Sequence[Outcome]) -> Calibration:
    names = list(predictions[0]["scores"])
    given = np.array(
        [[prediction["scores"][name] for name in names] for prediction in predictions]
    )  # [N, K]
    gold = [set(result.gold) for result in results]
    belongs = np.array([[name in labels for name in names] for labels in gold])
    decided = np.array([[name in each["labels"] for name in names] for each in predictions])
    confidences = np.where(decided, given, 1 - given).ravel()
    correct = (decided == belongs).ravel().astype(np.float64)
    brier_score = _brier_of_two(confidences, correct)
    return measured_calibration(confidences, correct, brier_score=brier_score)


def _of_entities(results: Sequence[Outcome]) -> Calibration | None:
    confidences, correct = [], []
    for result in results:
        gold = spans(result.gold)
        confidences += [entity["score"] for entity in result.found]
        correct += [bool(spans([entity]) & gold) for entity in result.found]
    if not confidences:
        return None
    given, true = np.array(confidences), np.array(correct, dtype=np.float64)
    return measured_calibration(given, true, brier_score=_brier_of_two(given, true))


def _brier_of_two(confidences: FloatArray, correct: FloatArray) -> float:
    """Brier's score of what comes true or does not: two outcomes, whose errors are alike."""
    return float(2 * ((confidences - correct) ** 2).mean())


def _squared_error(scores: Mapping[str, float] | Sequence[float], gold: str | int) -> float:
    """Summed over the answers to choose from; one that is none of them had no probability."""
    named = dict(scores) if isinstance(scores, Mapping) else dict(enumerate(scores))
    error = sum((score - (name == gold)) ** 2 for name, score in named.items())
    return error + (gold not in named)


@dataclass(frozen=True)
class MajorityClassifier:
    """Gives every example the same `answer`: the most frequent label, or the set of labels.

    Of several labels each belongs there that more than half of the examples have. `share` is the
    share of the examples for which the answer is right, `metrics` are the task's.
    """

    answer: tuple[str, ...]
    share: float
    metrics: dict[str, float]

    @property
    def text(self) -> str:
        """What it answers."""
        return _shown(self.answer)


def majority_classifier(task: Task, examples: Sequence[Any]) -> MajorityClassifier | None:
    """The majority classifier of labelled examples; None for a task without labels of texts."""
    if not isinstance(task, Classification) or task.kind == "regression" or not examples:
        return None
    gold = [_labels(example.answer) for example in examples]
    counts = Counter(label for labels in gold for label in labels)
    if task.kind == "multiple":
        answer = tuple(name for name in task.labels if counts[name] > len(gold) / 2)
        prediction: dict[str, Any] = {"labels": list(answer)}
    else:
        answer = (max(task.labels, key=counts.__getitem__),)
        prediction = {"label": answer[0]}
    right = sum(set(answer) == set(labels) for labels in gold)
    metrics = task.metrics([prediction] * len(gold), examples)
    return MajorityClassifier(answer, right / len(gold), metrics)


def same_answer(
    task: Task, predictions: Predictions, results: Sequence[Outcome]
) -> tuple[str, ...] | None:
    """The labels that all predictions give although the right answers differ; None where none."""
    if not isinstance(task, Classification) or task.kind == "regression":
        return None
    found = {_labels(each["label" if "label" in each else "labels"]) for each in predictions}
    gold = {frozenset(_labels(each.gold)) for each in results}
    return next(iter(found)) if len(found) == 1 < len(gold) else None


def same_answer_warning(answer: tuple[str, ...] | None, num_examples: int) -> str:
    """One line about predictions that are all the same; empty where they are not."""
    if answer is None:
        return ""
    return f"all {num_examples:,} predictions are the same: {_shown(answer)}"


def _shown(answer: Sequence[str]) -> str:
    return ", ".join(answer) or "no label"


def _labels(answer: str | Sequence[str]) -> tuple[str, ...]:
    return (answer,) if isinstance(answer, str) else tuple(answer)
