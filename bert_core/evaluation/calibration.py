"""Calibration: whether confidence matches accuracy.

Shapes: N decisions, K outcomes of each, B bins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_core.evaluation.outcomes import Outcome, outcomes, spans
from bert_core.tasks.metrics import FloatArray
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Predictions, Task

NUM_BINS = 15


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
    confidences = np.array([each.confidence for each in results], dtype=np.float64)
    correct = np.array([each.correct for each in results], dtype=np.float64)
    brier_score = _brier_of_two(confidences, correct)
    if "scores" in predictions[0]:
        pairs = zip(predictions, results, strict=True)
        squared = [_squared_error(each["scores"], result.gold) for each, result in pairs]
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
    found = []
    for index in np.unique(bin_of).tolist():
        inside = bin_of == index
        found.append(
            Bin(
                low=float(edges[index]),
                high=float(edges[index + 1]),
                count=int(inside.sum()),
                confidence=float(confidences[inside].mean()),
                accuracy=float(correct[inside].mean()),
            )
        )
    return tuple(found)


def expected_error(bins: Sequence[Bin]) -> float:
    """The mean distance of accuracy and confidence over the bins, weighted by their counts."""
    total = sum(each.count for each in bins)
    return sum(each.count * abs(each.accuracy - each.confidence) for each in bins) / total


def _of_labels(predictions: Predictions, results: Sequence[Outcome]) -> Calibration:
    names = list(predictions[0]["scores"])
    given = np.array(
        [[prediction["scores"][name] for name in names] for prediction in predictions]
    )  # [N, K]
    gold = [set(result.gold) for result in results]
    belongs = np.array([[name in each for name in names] for each in gold])
    confidences = np.maximum(given, 1 - given).ravel()
    correct = ((given > 0.5) == belongs).ravel().astype(np.float64)
    brier_score = _brier_of_two(confidences, correct)
    return measured_calibration(confidences, correct, brier_score=brier_score)


def _of_entities(results: Sequence[Outcome]) -> Calibration | None:
    confidences, correct = [], []
    for result in results:
        gold = spans(result.gold)
        confidences += [each["score"] for each in result.found]
        correct += [bool(spans([each]) & gold) for each in result.found]
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
