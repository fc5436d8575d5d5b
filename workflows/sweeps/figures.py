"""Figures of a sweep: parallel coordinates, scores by axis, learning curves, importances.

The higher a setting's mean score, the stronger the blue; the best setting is red. The key of a
mark is the rank of its setting. Scores are in points (0..100).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_core.evaluation.sweep import (
    MOST_VALUES,
    axis_groups,
    axis_values,
    fences,
    is_number,
    without_fallen,
)
from workflows.reporting.figures import (
    GREY,
    INK,
    MARK,
    PANEL,
    Chart,
    Figure,
    ParallelAxis,
    ParallelLine,
    parallel_coordinates,
    shade,
    shortened,
    value_text,
)
from workflows.sweeps.findings import PointFound, SweepFindings, points_text, scores_text

CURVES = {"score": "{metric} on dev", "dev_loss": "loss on dev", "train_loss": "training loss"}
"""Fields of `EpochFigures` drawn over epochs, and their titles."""
_LOG_FROM = 10  # the largest value is so many times the smallest
_SPREAD = 0.3  # by which dots of one value are moved aside


@dataclass(frozen=True)
class AxisScale:
    """Values of an axis as places: few values, or no numbers, at equal distances from each other.

    Many numbers lie on a line, by logarithms where that spreads them more evenly.
    """

    values: tuple[Any, ...]
    is_number: bool
    is_log: bool

    @classmethod
    def of(cls, values: Sequence[Any]) -> "AxisScale":
        """The scale that suits the values, which come in the order of the axis."""
        many = len(values) > MOST_VALUES and all(map(is_number, values))
        if not many or min(values) <= 0 or max(values) < _LOG_FROM * min(values):
            return cls(tuple(values), many, is_log=False)
        scales = [cls(tuple(values), True, is_log) for is_log in (False, True)]
        median = statistics.median(values)
        return min(scales, key=lambda scale: abs(scale.share(median) - 0.5))

    def share(self, value: Any) -> float:  # noqa: ANN401 - whatever an axis has
        """The place of a value, 0 to 1."""
        if not self.is_number:
            return (list(map(repr, self.values)).index(repr(value)) + 0.5) / len(self.values)
        low, high = min(self.values), max(self.values)
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return (value - low) / (high - low)

    def ticks(self, count: int = 4) -> list[tuple[float, str]]:
        """Places with the text to write there."""
        if not self.is_number:
            return [(self.share(value), value_text(value)) for value in self.values]
        spaced = np.geomspace if self.is_log else np.linspace
        between = spaced(min(self.values), max(self.values), count).tolist()
        return [(self.share(value), value_text(float(f"{value:.2g}"))) for value in between]


def score_bounds(findings: SweepFindings) -> tuple[float, float]:
    """The scores, in points, between which figures spread; outliers are drawn at the edge."""
    return _fenced([100 * (trial.score or 0.0) for trial in findings.finished])


def num_outside(findings: SweepFindings) -> int:
    """How many trials' scores are below the bounds."""
    low, _ = score_bounds(findings)
    return sum(100 * (trial.score or 0.0) < low for trial in findings.finished)


def parallel_figure(findings: SweepFindings) -> Figure:
    """A line for each setting, through its values to its mean score."""
    scores, axes = [point.scores for point in findings.points], []
    places: dict[int, list[float]] = {point.rank: [] for point in findings.points}
    for axis in findings.outcome.axes:
        scale = AxisScale.of(axis_values(scores, axis))
        axes.append(ParallelAxis(findings.axis_titles[axis], scale.ticks()))
        for point, aside in _aside(findings, axis):
            shift = 0 if scale.is_number else aside * _SPREAD / len(scale.values)
            places[point.rank].append(scale.share(point.point[axis]) + shift)
    low, high = score_bounds(findings)
    for point in findings.points:
        score = min(max(100 * point.scores.mean, low), high)
        places[point.rank].append((score - low) / (high - low) if high > low else 0.5)
    ends = [(share, f"{low + share * (high - low):.1f}") for share in (0.0, 0.5, 1.0)]
    axes.append(ParallelAxis(f"mean {findings.metric} on dev", ends))
    lines = [
        ParallelLine(
            places[point.rank],
            _color(findings, point),
            str(point.rank),
            point_label(findings, point),
            2.5 if point.rank == 1 else 1.3,
        )
        for point in reversed(findings.points)
    ]
    return parallel_coordinates(axes, lines, "parallel", caption="")


def axis_figure(findings: SweepFindings, axis: str) -> Figure:
    """Every trial's score by its value on an axis, and the mean of each value or of neighbours."""
    scores = [point.scores for point in findings.points]
    scale = AxisScale.of(axis_values(scores, axis))
    title = f"{findings.metric} on dev by {findings.axis_titles[axis]}"
    chart = Chart(title)
    low, high = score_bounds(findings)
    positions = {repr(value): index for index, value in enumerate(scale.values)}
    for point, aside in reversed(_aside(findings, axis)):
        value = point.point[axis]
        x = value if scale.is_number else positions[repr(value)] + aside * _SPREAD
        ys = [min(max(100 * (trial.score or 0.0), low), high) for trial in point.scored]
        label = point_label(findings, point)
        color, key = _color(findings, point), str(point.rank)
        chart.dots([x] * len(ys), ys, color=color, label=label, key=key)
    for group in axis_groups(without_fallen(scores), axis):
        ends = (group.low, group.high)
        if not scale.is_number:
            middle = positions[repr(group.low)]
            ends = (middle - 1.3 * _SPREAD, middle + 1.3 * _SPREAD)
        label = f"mean {points_text(group.mean)}"
        chart.line(ends, [100 * group.mean] * 2, color=INK, label=label, width=2)
    room = 0.05 * (high - low) or 0.5
    chart.axes.set_ylim(low - room, high + room)
    if scale.is_log:
        chart.axes.set_xscale("log")
        chart.axes.xaxis.set_major_formatter(lambda value, _: value_text(value))
        chart.axes.xaxis.set_minor_formatter("")
    elif not scale.is_number:
        texts = [shortened(value_text(value), 22) for value in scale.values]
        crowded = max(map(len, texts)) * len(texts) > 36
        turn: dict[str, Any] = {"rotation": 25, "ha": "right"} if crowded else {}
        chart.axes.set_xticks(range(len(texts)), texts, **turn)
        chart.axes.set_xlim(-0.6, len(texts) - 0.4)
    return chart.finish(f"axis-{_file_name(axis)}", caption="", alt=title)


def curve_figure(findings: SweepFindings, field: str) -> Figure:
    """A figure of every trial over its epochs, a dot at the best one; `field` is one of CURVES."""
    times = 100 if field == "score" else 1
    points = {id(trial): point for point in findings.points for trial in point.trials}
    from matplotlib.ticker import MaxNLocator

    title = f"{CURVES[field].format(metric=findings.metric)} by epoch"
    chart, values = Chart(title), []
    last = len(findings.points) + 1
    ranks = {trial: point.rank for trial, point in points.items()}
    for trial in sorted(findings.outcome.trials, key=lambda each: -ranks.get(id(each), last)):
        curve = [(each.epoch, times * getattr(each, field)) for each in trial.curve]
        curve = [each for each in curve if math.isfinite(each[1])]
        if not curve:
            continue
        point = points.get(id(trial)) if trial.score is not None else None
        color = GREY if point is None else _color(findings, point)
        key = "" if point is None else str(point.rank)
        label = f"{findings.point_text(trial.point)}, {trial.named}"
        epochs, heights = zip(*curve, strict=True)
        style, width = ":" if point is None else "-", 2 if key == "1" else 1.2
        chart.line(epochs, heights, color=color, label=label, key=key, style=style, width=width)
        # A result rounds its epoch, the curve does not.
        best = [each for each in curve if round(each[0], 4) == trial.best_epoch] or curve[-1:]
        chart.dots(*zip(*best, strict=True), color=color, label=label, key=key, size=4)
        values += heights
    low, high = _fenced(values)
    room = 0.06 * (high - low) or 0.5
    chart.axes.set_ylim(low - room, high + room)
    chart.axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return chart.finish(f"curve-{field}", caption="", alt=title)


def importance_figure(findings: SweepFindings) -> Figure:
    """A bar for each axis: the share of variance that it explains alone, a mark at chance."""
    rows: list[tuple[str, float, float | None]] = [
        (findings.axis_titles[axis], each.share, each.by_chance)
        for axis, each in findings.importances.items()
    ]
    rows.sort(key=lambda row: -row[1])
    rows.append(("not by one axis alone", max(0.0, 1 - sum(share for _, share, _ in rows)), None))
    names, shares, chances = zip(*rows, strict=True)
    chart = Chart("Share of variance", (2 * PANEL[0], 0.8 + 0.42 * len(rows)))
    texts = [f"{share:.0%}" for share in shares]
    chart.bars(names, shares, texts)
    for index, chance in enumerate(chances):
        if chance is not None:
            label = f"by chance {chance:.0%}"
            ends = (index - 0.38, index + 0.38)
            chart.line([chance] * 2, ends, color=MARK, label=label, width=2)
    chart.axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    alt = "Share of variance: " + ", ".join(map(" ".join, zip(names, texts, strict=True)))
    return chart.finish("importance-bars", caption="", alt=alt)


def point_label(findings: SweepFindings, point: PointFound) -> str:
    """The tooltip of a setting's marks."""
    scores = scores_text(point.scores.scores)
    return f"{point.rank}. {findings.point_text(point.point)}: {scores}"


def _aside(findings: SweepFindings, axis: str) -> list[tuple[PointFound, float]]:
    """The settings, each with a place of -1 to 1 among those of the same value, the best last."""
    found = []
    for point in findings.points:
        value = repr(point.point[axis])
        same = [each.rank for each in findings.points if repr(each.point[axis]) == value]
        found.append((point, 1 - 2 * (same.index(point.rank) + 0.5) / len(same)))
    return found


def _color(findings: SweepFindings, point: PointFound) -> str:
    bounds = _fenced([100 * each.scores.mean for each in findings.points])
    return MARK if point.rank == 1 else shade(100 * point.scores.mean, *bounds)


def _fenced(values: Sequence[float]) -> tuple[float, float]:
    """The lowest and the highest of the values that are no outliers."""
    low, high = fences(values)
    within = [value for value in values if low <= value <= high]
    return (min(within), max(within)) if within else (0.0, 1.0)


def _file_name(axis: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in axis)
