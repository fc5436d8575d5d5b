"""Pictures of a sweep: its findings go in; vector pictures for a page or files come out.

A line or dot is the bluer the better its point's mean score, the best point is red; `data-point`
is the point's rank. Scores are in points (0..100).
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from bert_core.evaluation.sweep import (
    MOST_VALUES,
    axis_groups,
    axis_values,
    fences,
    is_number,
    without_fallen,
)
from workflows.sweeps.findings import PointFound, SweepFindings, points_text, scores_text
from workflows.sweeps.outcome import TrialOutcome
from workflows.vector_charts import (
    CHARACTER,
    Numbers,
    Picture,
    Places,
    dot,
    path_line,
    shade,
    shortened,
    stroke,
    text,
    value_text,
)

CURVES = {"score": "{metric} on dev", "dev_loss": "loss on dev", "train_loss": "training loss"}
"""What is drawn over epochs: fields of `EpochFigures`, and their titles."""
_PANEL = (360, 280)
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 350, 34, 236  # the plot within a panel
_ROW = 54  # from one value to the next, where each has a row
_LOG_FROM = 10  # times as large as the smallest value is the largest


def score_bounds(findings: SweepFindings) -> tuple[float, float]:
    """The scores, in points, between which pictures spread; what is far off lies at the edge."""
    return _fenced([100 * (each.score or 0.0) for each in findings.finished])


def num_outside(findings: SweepFindings) -> int:
    """How many trials' scores are beyond the bounds."""
    low, _ = score_bounds(findings)
    return sum(100 * (each.score or 0.0) < low for each in findings.finished)


def axis_picture(findings: SweepFindings, axis: str) -> Picture:
    """Every trial's score by its value on an axis, and the mean of each value or of neighbours.

    Scores go upwards; where values have long names, each has a row and scores go to the right.
    """
    found = [each.scores for each in findings.points]
    scale = axis_scale(axis_values(found, axis), _LEFT + 12, _RIGHT - 12)
    title = f"{findings.metric} on dev by {findings.axis_titles[axis]}"
    longest = max((len(said) for _, said in scale.ticks()), default=0)
    if isinstance(scale, Places) and longest * CHARACTER > scale.spacing:
        return _rows(findings, axis, scale, title)
    heights = _padded(*score_bounds(findings), _BOTTOM, _TOP)
    body = [_frame(heights, title)]
    body += [text(x, _BOTTOM + 20, said, anchor="middle") for x, said in scale.ticks()]
    reach = min(34.0, 0.4 * scale.spacing) if isinstance(scale, Places) else 0.0
    for group in axis_groups(without_fallen(found), axis):
        left, right = scale.at(group.low) - reach - 6, scale.at(group.high) + reach + 6
        y, mean = heights.at(100 * group.mean), points_text(group.mean)
        body.append(stroke(left, y, right, y, "mean"))
        if reach:
            body.append(text((left + right) / 2, _BOTTOM + 38, mean, anchor="middle", kind="quiet"))
    for score, value, shift, kind, said, more in _dots(findings, axis):
        x = scale.at(value) + reach * shift
        body.append(dot(x, heights.at(score), kind, said, more=more))
    return Picture(*_PANEL, "\n".join(body), f"Scores by {axis}")


def _rows(findings: SweepFindings, axis: str, scale: Places, title: str) -> Picture:
    """A row for each value, the name above the scores."""
    widths = _padded(*score_bounds(findings), 14, 346)
    groups = axis_groups(without_fallen([each.scores for each in findings.points]), axis)
    means = {repr(each.low): each.mean for each in groups}
    bottom = 30.0 + _ROW * len(scale.values)
    body = [text(2, 16, shortened(title, _PANEL[0] - 4), kind="title")]
    for x, said in widths.ticks():
        body += [stroke(x, 34, x, bottom, "grid"), text(x, bottom + 20, said, anchor="middle")]
    tops = {repr(value): 46.0 + _ROW * index for index, value in enumerate(scale.values)}
    for value, top in tops.items():
        name = next(value_text(each) for each in scale.values if repr(each) == value)
        body.append(text(14, top, shortened(name, 260)))
        if value in means:
            x = widths.at(100 * means[value])
            body.append(stroke(x, top + 7, x, top + 33, "mean"))
            body.append(text(346, top, points_text(means[value]), anchor="end", kind="quiet"))
    for score, value, shift, kind, said, more in _dots(findings, axis):
        y = tops[repr(value)] + 20 - 9 * shift
        body.append(dot(widths.at(score), y, kind, said, more=more))
    return Picture(360, bottom + 30, "\n".join(body), f"Scores by {axis}")


def _dots(findings: SweepFindings, axis: str) -> Iterator[tuple[float, Any, float, str, str, str]]:
    """For each trial its score, its value, how far aside it lies (-1 to 1), class, words, rank.

    Dots of one value are told apart: the better their point the further to one side.
    """
    low, high = mean_bounds(findings)
    found = list(reversed(findings.points))
    for point in found:
        value = repr(point.point[axis])
        same = [each.rank for each in found if repr(each.point[axis]) == value]
        shift = 2 * (same.index(point.rank) + 0.5) / len(same) - 1
        kind = "best" if point.rank == 1 else shade(100 * point.scores.mean, low, high)
        more = f' data-point="{point.rank}"'
        for trial in point.scored:
            score = trial.score or 0.0
            said = f"{point_words(findings, point)}; seed {trial.seed}: {points_text(score)}"
            yield 100 * score, point.point[axis], shift, kind, said, more


def curve_picture(findings: SweepFindings, field: str) -> Picture:
    """A figure of every trial over its epochs, a dot at the best one; `field` is one of CURVES."""
    times = 100 if field == "score" else 1
    ranks = {id(trial): point for point in findings.points for trial in point.trials}
    curves = [
        (trial, [(e.epoch, times * getattr(e, field)) for e in trial.curve])
        for trial in findings.outcome.trials
    ]
    curves = [(trial, [e for e in some if math.isfinite(e[1])]) for trial, some in curves]
    values = [value for _, some in curves for _, value in some]
    last = max((epoch for _, some in curves for epoch, _ in some), default=1)
    heights = _padded(*_fenced(values), _BOTTOM, _TOP)
    title = CURVES[field].format(metric=findings.metric)
    body = [_frame(heights, f"{title} by epoch")]
    epochs = Numbers(1, max(last, 2), _LEFT + 14, _RIGHT - 14)
    for epoch in range(1, last + 1, math.ceil(last / 8)):
        body.append(text(epochs.at(epoch), _BOTTOM + 20, str(epoch), anchor="middle"))
    body.append('<g class="lines">')
    low, high = mean_bounds(findings)
    for trial, some in sorted(curves, key=lambda each: -_rank(ranks, each[0])):
        point = ranks.get(id(trial))
        kind, more = "failed s0", ""
        if point is not None and trial.score is not None:
            more = f' data-point="{point.rank}"'
            kind = "best" if point.rank == 1 else shade(100 * point.scores.mean, low, high)
        said = f"{findings.point_text(trial.point)}, seed {trial.seed}"
        places = [(epochs.at(epoch), heights.at(value)) for epoch, value in some]
        if len(places) > 1:
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            body.append(path_line(path, kind, said, more=more))
        best = [
            place for place, each in zip(places, some, strict=True) if each[0] == trial.best_epoch
        ]
        body += [dot(x, y, kind, said, radius=3.5, more=more) for x, y in best or places[-1:]]
    body.append("</g>")
    return Picture(*_PANEL, "\n".join(body), f"{title} by epoch, a line for each trial")


def importance_picture(findings: SweepFindings) -> Picture:
    """A bar for each axis, the share of variance it explains alone, a mark at what chance does."""
    rows: list[tuple[str, float, float | None]] = [
        (findings.axis_titles[axis], each.share, each.by_chance)
        for axis, each in findings.importances.items()
    ]
    rows.sort(key=lambda each: -each[1])
    rows.append(("not by one axis alone", max(0.0, 1 - sum(each[1] for each in rows)), None))
    scale = Numbers(0, 1, 2, 300)
    body = []
    for index, (title, share, by_chance) in enumerate(rows):
        y, is_axis = 50.0 * index + 18, by_chance is not None
        kind, faint = ("", "") if is_axis else ("quiet", ' opacity=".45"')
        body.append(text(2, y, shortened(title, _PANEL[0] - 4), kind=kind))
        size = f'width="{scale.at(share) - 2:.1f}" height="14"'
        body.append(f'<rect x="2" y="{y + 7:.1f}" {size} class="bar"{faint}/>')
        body.append(text(scale.at(max(share, by_chance or 0)) + 8, y + 19, f"{share:.0%}"))
        if by_chance is not None:
            x = scale.at(by_chance)
            body.append(stroke(x, y + 4, x, y + 24, "chance"))
    label = "Shares of variance: " + ", ".join(f"{each[0]} {each[1]:.0%}" for each in rows)
    return Picture(360, 50.0 * len(rows) + 4, "\n".join(body), label)


def axis_scale(values: Sequence[Any], start: float, end: float) -> Places | Numbers:
    """Few values side by side, many numbers along a line.

    By logarithms where they range far and lie more evenly so, as if drawn from such a range.
    """
    if len(values) <= MOST_VALUES or not all(map(is_number, values)):
        return Places(tuple(values), start, end)
    low, high = min(values), max(values)
    scales = [Numbers(low, high, start, end)]
    if low > 0 and high >= _LOG_FROM * low:
        scales.append(Numbers(low, high, start, end, is_log=True))
    middle, median = (start + end) / 2, statistics.median(values)
    return min(scales, key=lambda each: abs(each.at(median) - middle))


def _frame(heights: Numbers, title: str) -> str:
    """The title of a panel, lines across it, and what they stand for."""
    parts = [text(2, 16, shortened(title, _PANEL[0] - 4), kind="title")]
    for y, said in heights.ticks():
        parts.append(stroke(_LEFT, y, _RIGHT, y, "grid"))
        parts.append(text(_LEFT - 8, y + 4, said, anchor="end"))
    return "\n".join(parts)


def _padded(low: float, high: float, start: float, end: float) -> Numbers:
    """A scale with some room at both ends."""
    room = 0.05 * (high - low) or 0.5
    return Numbers(low - room, high + room, start, end)


def _fenced(values: Sequence[float]) -> tuple[float, float]:
    """The lowest and the highest of the values that are not far off."""
    low, high = fences(values)
    within = [each for each in values if low <= each <= high]
    return (min(within), max(within)) if within else (0.0, 1.0)


def mean_bounds(findings: SweepFindings) -> tuple[float, float]:
    """The means, in points, between which colours spread."""
    return _fenced([100 * each.scores.mean for each in findings.points])


def point_words(findings: SweepFindings, point: PointFound) -> str:
    """What a line or dot says of its point."""
    scores = scores_text(point.scores.scores)
    return f"{point.rank}. {findings.point_text(point.point)}: {scores}"


def _rank(points: dict[int, PointFound], trial: TrialOutcome) -> float:
    return points[id(trial)].rank if id(trial) in points else math.inf
