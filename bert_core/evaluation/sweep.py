"""Statistics over runs with several seeds: sweeps (importances, noise) and ablations (differences).

A point gives a value to each axis of a sweep. Higher scores are better. P points, G groups of them.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from numbers import Real
from typing import Any

CONFIDENCE = 0.95
"""Of all intervals and comparisons of an evaluation."""
MOST_VALUES = 8
"""Of numbers that take more values than these on an axis, neighbours are taken together."""
_BINS, _POINTS_PER_BIN = 4, 5
_FENCE = 3.0  # times the width of the middle half: Tukey's outer fence


@dataclass(frozen=True)
class PointScores:
    """A point and the scores of its trials, one per seed."""

    point: dict[str, Any]
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.scores)

    @property
    def deviation(self) -> float | None:
        """The standard deviation over the seeds; None of a single one."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def reach(self) -> float | None:
        """Half of the mean's 95 % interval (Student's t); None of a single one."""
        from scipy.stats import t

        if self.deviation is None:
            return None
        count = len(self.scores)
        return float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * self.deviation / math.sqrt(count)


@dataclass(frozen=True)
class Group:
    """Points that have one value on an axis, or, where `low` is not `high`, neighbouring ones."""

    low: Any
    high: Any
    points: tuple[PointScores, ...]

    @property
    def mean(self) -> float:
        """The mean of the points' means."""
        return statistics.fmean(point.mean for point in self.points)


@dataclass(frozen=True)
class Importance:
    """The share of the variance of the points' means that an axis explains alone, in 0..1.

    `by_chance` is what an axis without any effect would be expected to explain.
    """

    share: float
    by_chance: float
    is_binned: bool


@dataclass(frozen=True)
class SeedNoise:
    """The standard deviation that seeds alone make, and the degrees of freedom behind it."""

    deviation: float
    freedom: int


def ranked(found: Sequence[PointScores]) -> list[PointScores]:
    """Points with scores, the best mean first."""
    return sorted((each for each in found if each.scores), key=lambda each: -each.mean)


def is_number(value: object) -> bool:
    """Whether a value of an axis lies on a line with the others."""
    return isinstance(value, Real) and not isinstance(value, bool)


def axis_values(found: Sequence[PointScores], axis: str) -> list[Any]:
    """The values that an axis takes, each once: numbers by their size, others as they come."""
    values = list({repr(each.point[axis]): each.point[axis] for each in found}.values())
    return sorted(values) if all(map(is_number, values)) else values


def axis_groups(found: Sequence[PointScores], axis: str) -> list[Group]:
    """The points with scores by their value on an axis, or by neighbouring ones, in its order.

    Numbers of more than MOST_VALUES values are cut into groups of as many points each.
    """
    scored = [each for each in found if each.scores]
    values = axis_values(scored, axis)
    if len(values) <= MOST_VALUES or not all(map(is_number, values)):
        by_value: dict[str, list[PointScores]] = {repr(value): [] for value in values}
        for point in scored:
            by_value[repr(point.point[axis])].append(point)
        return [Group(value, value, tuple(by_value[repr(value)])) for value in values]
    scored.sort(key=lambda each: each.point[axis])
    num_groups = max(2, min(_BINS, len(scored) // _POINTS_PER_BIN))
    bounds = [round(index * len(scored) / num_groups) for index in range(num_groups + 1)]
    parts = [tuple(scored[begin:end]) for begin, end in pairwise(bounds)]
    return [Group(part[0].point[axis], part[-1].point[axis], part) for part in parts]


def fences(values: Sequence[float]) -> tuple[float, float]:
    """Below the first and above the second a value is far off (Tukey 1977); infinite for few."""
    if len(values) < 4:
        return -math.inf, math.inf
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    reach = _FENCE * (third - first) or math.inf
    return first - reach, third + reach


def without_fallen(found: Sequence[PointScores]) -> list[PointScores]:
    """Points with scores, without those far below the others, whose training diverged.

    One of them would outweigh all differences between the others.
    """
    scored = [each for each in found if each.scores]
    low, _ = fences([point.mean for point in scored])
    return [point for point in scored if point.mean >= low]


def importances(found: Sequence[PointScores]) -> dict[str, Importance]:
    """How much each axis matters alone: the main effects of an analysis of variance over points.

    Of a full grid they are apart from each other, and what is missing to 1 are interactions and the
    noise of seeds. An axis of many numbers is cut into groups (`axis_groups`). By chance G groups
    of P points explain (G - 1) / (P - 1). 0 for all where nothing varies.
    """
    scored = [each for each in found if each.scores]
    if not scored:
        return {}
    middle = statistics.fmean(point.mean for point in scored)
    whole = sum((point.mean - middle) ** 2 for point in scored)
    shares = {}
    for axis in scored[0].point:
        groups = axis_groups(scored, axis)
        between = sum(len(group.points) * (group.mean - middle) ** 2 for group in groups)
        shares[axis] = Importance(
            share=between / whole if whole else 0.0,
            by_chance=(len(groups) - 1) / (len(scored) - 1) if len(scored) > 1 else 0.0,
            is_binned=len(groups) < len(axis_values(scored, axis)),
        )
    return shares


def seed_noise(found: Sequence[PointScores]) -> SeedNoise | None:
    """The deviation of scores between seeds, pooled over the better half of the points.

    Runs that diverged would inflate it, hence the better half. None if no point there has several
    scores, or if they are all equal.
    """
    best = ranked(found)
    half = [each for each in best[: max(2, math.ceil(len(best) / 2))] if len(each.scores) > 1]
    freedom = sum(len(each.scores) - 1 for each in half)
    squares = sum(statistics.variance(each.scores) * (len(each.scores) - 1) for each in half)
    return SeedNoise(math.sqrt(squares / freedom), freedom) if squares else None


def noise_share(found: Sequence[PointScores]) -> float | None:
    """The share of the variance of the points' means that seeds alone account for, 1 at most.

    None where the noise of seeds is not known, or nothing varies.
    """
    noise, means = seed_noise(found), [each.mean for each in ranked(found)]
    if noise is None or len(means) < 2 or not statistics.variance(means):
        return None
    per_mean = statistics.fmean(1 / len(each.scores) for each in ranked(found))
    return min(1.0, noise.deviation**2 * per_mean / statistics.variance(means))


def margins(found: Sequence[PointScores]) -> list[float] | None:
    """How far each ranked point's mean may lie under the best one's, and still be the best, [P].

    Hsu's multiple comparisons with the best (1984): with a confidence of 95 % in all together, a
    point that is further below is not the best; that the first was picked for being first is
    reckoned with. It takes the noise of seeds to be the same at all points (`seed_noise`); None
    where that is not known.
    """
    best, noise = ranked(found), seed_noise(found)
    if noise is None or len(best) < 2:
        return None
    factor = noise.deviation * one_sided_critical_value(len(best) - 1, noise.freedom)
    first = len(best[0].scores)
    return [factor * math.sqrt(1 / first + 1 / len(each.scores)) for each in best]


@cache
def one_sided_critical_value(num_others: int, freedom: int) -> float:
    """What the largest of so many differences to one mean exceeds in 5 of 100 cases, by chance.

    Dunnett's (1955), in units of a difference's standard error, groups of one size; the deviation
    is estimated with `freedom` degrees of freedom.
    """
    return _critical_value(num_others, freedom, is_two_sided=False)


@cache
def two_sided_critical_value(num_others: int, freedom: int) -> float:
    """The same of the largest difference whichever its sign."""
    return _critical_value(num_others, freedom, is_two_sided=True)


def _critical_value(num_others: int, freedom: int, *, is_two_sided: bool) -> float:
    import numpy as np
    from scipy.optimize import brentq
    from scipy.special import ndtr
    from scipy.stats import chi2

    means = np.linspace(-8, 8, 161)
    weights = np.exp(-0.5 * means**2) / math.sqrt(2 * math.pi) * (means[1] - means[0])
    parts = (np.arange(400) + 0.5) / 400
    deviations = np.sqrt(chi2.ppf(parts, freedom) / freedom)

    def excess(value: float) -> float:
        reach = math.sqrt(2) * value * deviations
        within = ndtr(means[:, None] + reach)
        if is_two_sided:
            within = within - ndtr(means[:, None] - reach)
        return float((weights @ within**num_others).mean()) - CONFIDENCE

    return float(brentq(excess, 0.0, 1000.0, xtol=1e-6))  # pyright: ignore - it returns no tuple


@dataclass(frozen=True)
class Difference:
    """A variant's mean less the reference's, in the scores' unit.

    `reach` is half of its 95 % interval; None where the seeds do not say what they alone do.
    """

    mean: float
    reach: float | None

    @property
    def is_told_apart(self) -> bool | None:
        """Whether the interval leaves out 0; None where there is none."""
        return None if self.reach is None else abs(self.mean) > self.reach


def differences(
    reference: Sequence[float], others: Mapping[str, Sequence[float]]
) -> dict[str, Difference]:
    """For each variant with scores how it differs; {} where the reference has none.

    The intervals hold all together with a confidence of 95 % (Dunnett 1955, two-sided). They take
    what a seed does to be the same for all (the deviation pooled over all that have several
    scores), so a variant whose seeds scatter makes all of them wider, never narrower.
    """
    scored = {name: scores for name, scores in others.items() if scores}
    if not reference or not scored:
        return {}
    several = [each for each in (reference, *scored.values()) if len(each) > 1]
    freedom = sum(len(each) - 1 for each in several)
    squares = sum(statistics.variance(each) * (len(each) - 1) for each in several)
    factor = None
    if squares:
        deviation = math.sqrt(squares / freedom)
        factor = deviation * two_sided_critical_value(len(scored), freedom)

    def difference(scores: Sequence[float]) -> Difference:
        mean = statistics.fmean(scores) - statistics.fmean(reference)
        if factor is None:
            return Difference(mean, None)
        return Difference(mean, factor * math.sqrt(1 / len(reference) + 1 / len(scores)))

    return {name: difference(scores) for name, scores in scored.items()}
