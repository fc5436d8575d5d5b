"""Parallel coordinates of a sweep: its findings go in, a vector picture comes out.

A line goes from axis to axis, through the values of a setting to its mean score (Inselberg 1985).
"""

import math
from collections.abc import Sequence

import numpy as np

from bert_core.evaluation.sweep import axis_values
from workflows.sweeps.findings import SweepFindings
from workflows.sweeps.pictures import axis_scale, mean_bounds, point_words, score_bounds
from workflows.vector_charts import (
    CHARACTER,
    Numbers,
    Picture,
    Places,
    Scale,
    path_line,
    shade,
    shortened,
    stroke,
    text,
)

_WIDE, _NARROW = (1100, 350), 360
_EDGE = 95.0  # pixels to the left of the first axis, to the right of the last
_LONGEST = 165.0  # pixels of a value's name, on a narrow screen
_BAND = 60  # at most, across which lines with the same value lie


def parallel_picture(findings: SweepFindings, *, upright: bool) -> Picture:
    """Parallel coordinates: a line for each point through its values to its mean score.

    Axes stand upright side by side, or, for narrow screens, lie one under the other.
    """
    axes = findings.outcome.axes
    along = (330.0, 60.0) if upright else (34.0, 326.0)
    if upright:
        width, height = float(_WIDE[0]), float(_WIDE[1])
        places = np.linspace(_EDGE, width - _EDGE, len(axes) + 1).tolist()
    else:
        width, height = float(_NARROW), 66.0 + 96 * len(axes)
        places = [40.0 + 96 * index for index in range(len(axes) + 1)]
    found = [each.scores for each in findings.points]
    scales: list[Scale] = [axis_scale(axis_values(found, axis), *along) for axis in axes]
    scales.append(Numbers(*score_bounds(findings), *along, most_ticks=6 if upright else 4))
    titles = [*(findings.axis_titles[axis] for axis in axes), f"mean {findings.metric} on dev"]
    body = [_axis_line(place, along, upright) for place in places]
    body.append('<g class="lines">')
    positions = _positions(findings, scales)
    low, high = mean_bounds(findings)
    for point in reversed(findings.points):
        ends = list(zip(places, positions[point.rank], strict=True))
        kind = "best" if point.rank == 1 else shade(100 * point.scores.mean, low, high)
        more = f' data-point="{point.rank}"'
        body.append(
            path_line(_curved(ends, upright), kind, point_words(findings, point), more=more)
        )
    body.append("</g>")
    room = min(2 * _EDGE, places[1] - places[0] - 8)
    for place, scale, title in zip(places, scales, titles, strict=True):
        is_last = place == places[-1]
        body += (
            _upright_labels(place, scale, title, room, is_last=is_last)
            if upright
            else _lying_labels(place, scale, title, is_last=is_last)
        )
    label = f"Parallel coordinates of {len(found)} points, {', '.join(titles)}"
    return Picture(width, height, "\n".join(body), label)


def _positions(findings: SweepFindings, scales: Sequence[Scale]) -> dict[int, list[float]]:
    """By rank where a point crosses each axis; those with one value lie in a band, the best first.

    The last scale is that of the score.
    """
    found: dict[int, list[float]] = {each.rank: [] for each in findings.points}
    for axis, scale in zip(findings.outcome.axes, scales, strict=False):
        if isinstance(scale, Numbers):
            for each in findings.points:
                found[each.rank].append(scale.at(each.point[axis]))
            continue
        assert isinstance(scale, Places)
        band = math.copysign(min(_BAND, 0.7 * scale.spacing), scale.end - scale.start)
        for value in scale.values:
            here = [each for each in findings.points if repr(each.point[axis]) == repr(value)]
            for index, each in enumerate(here):
                shift = band * (0.5 - (index + 0.5) / len(here))
                found[each.rank].append(scale.at(value) + shift)
    for each in findings.points:
        found[each.rank].append(scales[-1].at(100 * each.scores.mean))
    return found


def _curved(ends: Sequence[tuple[float, float]], upright: bool) -> str:
    """A smooth line through (place of the axis, position on it), across which it goes straight."""
    points = [each if upright else each[::-1] for each in ends]
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x1, y1), (x2, y2) in zip(points, points[1:], strict=False):
        middle = 0.5 * (x1 + x2) if upright else 0.5 * (y1 + y2)
        first, second = ((middle, y1), (middle, y2)) if upright else ((x1, middle), (x2, middle))
        places = (*first, *second, x2, y2)
        parts.append("C" + " ".join(f"{each:.1f}" for each in places))
    return "".join(parts)


def _axis_line(place: float, along: tuple[float, float], upright: bool) -> str:
    start, end = along
    ends = (place, start, place, end) if upright else (start, place, end, place)
    return stroke(*ends, "axis")


def _upright_labels(
    place: float, scale: Scale, title: str, room: float, *, is_last: bool
) -> list[str]:
    """The title over an axis, and its values at its left, or where there is room for them."""
    ticks = scale.ticks()
    longest = max(len(said) for _, said in ticks)
    is_left = not is_last and place - 16 > longest * CHARACTER
    x, anchor = (place - 8, "end") if is_left else (place + 8, "start")
    values = [text(x, y + 4, said, anchor=anchor) for y, said in ticks]
    return [text(place, 26, shortened(title, room), anchor="middle", kind="title"), *values]


def _lying_labels(place: float, scale: Scale, title: str, *, is_last: bool) -> list[str]:
    """The title and the values of an axis above it; the values of the last one below."""
    y = place + 18 if is_last else place - 7
    room = scale.spacing - 6 if isinstance(scale, Places) else math.inf
    values = [
        text(x, y, shortened(said, min(room, _LONGEST)), anchor="middle")
        for x, said in scale.ticks()
    ]
    return [text(6, place - 24, shortened(title, _NARROW - 12), kind="title"), *values]
