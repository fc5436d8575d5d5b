"""Compares two models on the same examples: differences of metrics with intervals, and tests.

Shapes: N examples, S samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_core.evaluation.intervals import (
    CONFIDENCE,
    NUM_RESAMPLES,
    Interval,
    percentile_interval,
    resampled,
)
from bert_core.evaluation.metrics import measure
from bert_core.evaluation.outcomes import BoolArray, correctness, outcomes
from bert_core.tasks.metrics import FloatArray, less_is_better
from bert_core.tasks.task import Predictions, Task


@dataclass(frozen=True)
class MetricDifference:
    """A metric of both models; `difference` is the second's less the first's.

    `p_value` is the probability of a difference as large if both are equal (two-sided).
    """

    first: float
    second: float
    difference: Interval
    p_value: float


@dataclass(frozen=True)
class RightOrWrong:
    """Numbers of examples that both, one or none of two models get right; McNemar's p-value."""

    both: int
    only_first: int
    only_second: int
    neither: int
    p_value: float


@dataclass(frozen=True)
class Comparison:
    """The comparison of two models; `right_or_wrong` is None where answers are numbers.

    The paired bootstrap is about the reported metric, so it decides. McNemar's exact test is about
    right answers: it fits accuracy and exact match, needs no resampling and holds for few examples
    too, but F1 or Matthews can differ where it sees nothing. Both are about these two models: to
    compare two recipes, train several seeds of each (`mean_difference`).
    """

    metrics: dict[str, MetricDifference]
    right_or_wrong: RightOrWrong | None

    def verdict(self, criterion: str) -> str:
        """One sentence about the criterion, from its paired interval."""
        found = self.metrics[criterion]
        difference = found.difference
        span = f"{difference.value:+.4f} (95 % interval {difference.low:+.4f} to "
        span += f"{difference.high:+.4f}"
        span += f", p = {found.p_value:.3g})"
        if difference.contains(0):
            return f"{criterion}: {span}: these examples do not tell the two apart"
        better = "second" if difference.value > 0 else "first"
        if less_is_better(criterion):
            better = "first" if better == "second" else "second"
        return f"{criterion}: {span}: the {better} is better on data like this"


def compare(
    task: Task,
    first: Predictions,
    second: Predictions,
    examples: Sequence[Any],
    *,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
    groups: Sequence[str] | None = None,
) -> Comparison:
    """Compares the predictions of two models for the same examples; `groups` as in bootstrap.

    Both are measured on the same samples, so what makes an example hard for both cancels out.
    """
    measured = [measure(task, predictions, examples) for predictions in (first, second)]
    drawn = [
        resampled(
            each.compute, len(examples), num_resamples=num_resamples, seed=seed, groups=groups
        )
        for each in measured
    ]
    metrics = {
        name: metric_difference(
            measured[0].values[name], measured[1].values[name], drawn[0][name], drawn[1][name]
        )
        for name in measured[0].values
    }
    right = [correctness(outcomes(task, predictions, examples)) for predictions in (first, second)]
    tested = None
    if right[0] is not None and right[1] is not None:
        tested = mcnemar(right[0], right[1])
    return Comparison(metrics, tested)


def metric_difference(
    first: float, second: float, first_drawn: FloatArray, second_drawn: FloatArray
) -> MetricDifference:
    """The paired bootstrap of one metric, measured on the same samples, [S] each.

    The test shifts the drawn differences so that their centre is no difference, and counts those
    at least as large as the one observed (Berg-Kirkpatrick et al. 2012, section 2, two-sided); the
    observed one is counted too, so that no p-value is 0.
    """
    drawn = second_drawn - first_drawn
    observed = second - first
    as_large = np.abs(drawn - observed) >= abs(observed) - 1e-12
    p_value = float((1 + as_large.sum()) / (1 + len(drawn)))
    return MetricDifference(first, second, percentile_interval(observed, drawn), p_value)


def mcnemar(first: BoolArray, second: BoolArray) -> RightOrWrong:
    """McNemar's exact test of which examples two models get right, [N] each.

    The sign test of the examples on which they differ (McNemar 1947; exact: binomial, 1/2).
    """
    only_first = int((first & ~second).sum())
    only_second = int((~first & second).sum())
    return RightOrWrong(
        both=int((first & second).sum()),
        only_first=only_first,
        only_second=only_second,
        neither=int((~first & ~second).sum()),
        p_value=sign_test(only_first, only_second),
    )


def sign_test(losses: int, wins: int) -> float:
    """The two-sided p-value of as many wins and losses as if by the toss of a coin; 1 of none."""
    from scipy.stats import binomtest

    if losses + wins == 0:
        return 1.0
    return float(binomtest(wins, losses + wins, 0.5).pvalue)


def mean_difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """The mean of paired differences, of runs with the same seeds for one, with its interval.

    Student's t: right for few pairs too, where the differences are roughly normal; wide for 2 or 3.
    """
    from scipy.stats import t

    differences = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    if len(differences) < 2:
        raise ValueError("one pair alone has no spread: give two or more")
    mean = float(differences.mean())
    error = float(differences.std(ddof=1)) / len(differences) ** 0.5
    reach = float(t.ppf((1 + CONFIDENCE) / 2, len(differences) - 1)) * error
    return Interval(mean, mean - reach, mean + reach)
