"""Pictures of an evaluation: what is taken for what, how far off, whether confidence is deserved.

In: a confusion matrix, a calibration, numbers. Out: PNG or SVG files.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bert_core.errors import one_line
from bert_core.evaluation.calibration import Calibration
from bert_core.evaluation.confusion import ConfusionMatrix
from workflows.reporting.figures import (
    BLUE,
    DASHED,
    GREY,
    INK,
    RED,
    new_figure,
    save_picture,
    set_title,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_NUMBERED = 40  # classes; of more the cells are too small for numbers
LONGEST_NAME = 30  # characters; of longer names of classes the middle is left out
POINTS = 72  # to an inch
CHARACTER = 0.62  # the width of one, as a share of the font's size


def plot_confusion(matrix: ConfusionMatrix, output_path: Path, *, title: str) -> None:
    """Draws a confusion matrix, the larger the more classes it has.

    Colours are shares of a row, so that rare classes can be seen; numbers are counts.
    """
    num = len(matrix.names)
    names = [_short(name) for name in matrix.names]
    cell = min(max(0.62, 2.4 / num), 12 / num)  # inches, as all sizes here
    font = min(10.0, 0.75 * POINTS * cell)
    is_wide = max(map(len, names)) * CHARACTER * font > POINTS * cell
    side = num * cell
    figure = new_figure(side, side)
    # The cells decide the size: names and the bar stand around, and saving takes them in.
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    set_title(axes, title)
    totals = matrix.counts.sum(axis=1, keepdims=True)
    shares = matrix.counts / np.maximum(totals, 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if num <= MOST_NUMBERED:
        _write_counts(axes, matrix, shares, cell)
    axes.set_xticks(range(num), names, rotation=90 if is_wide else 0, fontsize=font)
    axes.set_yticks(range(num), names, fontsize=font)
    axes.set_xlabel("found", color=INK)
    axes.set_ylabel("right answer", color=INK)
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=INK, length=0)
    height = min(1.0, 3 / side)
    bar = figure.colorbar(image, cax=figure.add_axes((1 + 0.2 / side, 0, 0.2 / side, height)))
    bar.set_label("share of the row", color=INK)
    bar.ax.tick_params(colors=INK, length=0)
    bar.outline.set_visible(False)  # pyright: ignore - matplotlib's stubs have no such outline
    save_picture(figure, output_path)


def plot_numbers(pairs: Sequence[tuple[float, float]], output_path: Path, *, title: str) -> None:
    """Draws numbers: of each pair the second, which was found, over the first, which is right."""
    gold, found = zip(*pairs, strict=True)
    figure = new_figure(6.4, 6.2)
    axes = figure.add_subplot()
    set_title(axes, title)
    axes.scatter(gold, found, s=14, color=BLUE, alpha=0.35, linewidths=0)
    lowest, highest = min(*gold, *found), max(*gold, *found)
    axes.plot([lowest, highest], [lowest, highest], color=GREY, linewidth=1.3, linestyle=DASHED)
    axes.set_xlabel("right answer", color=INK)
    axes.set_ylabel("found", color=INK)
    tidy(axes)
    save_picture(figure, output_path)


def plot_reliability(calibration: Calibration, output_path: Path, *, title: str) -> None:
    """Draws a reliability diagram (Guo et al. 2017, figure 1), and how many decisions lie where."""
    figure = new_figure(6.4, 6.8)
    grid = figure.add_gridspec(2, 1, height_ratios=(4, 1))
    reliability = figure.add_subplot(grid[0])
    counts = figure.add_subplot(grid[1], sharex=reliability)
    set_title(reliability, title, gap=26)
    _draw_reliability(reliability, calibration)
    _draw_counts(counts, calibration)
    for axes in (reliability, counts):
        tidy(axes)
    reliability.tick_params(labelbottom=False)
    save_picture(figure, output_path)


def _short(name: str) -> str:
    name = one_line(name)
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}"


def _write_counts(axes: "Axes", matrix: ConfusionMatrix, shares: np.ndarray, cell: float) -> None:
    for row, column in np.argwhere(matrix.counts > 0).tolist():
        color = "white" if shares[row, column] > 0.55 else INK
        weight = "bold" if row == column else "normal"
        count = f"{matrix.counts[row, column]:,}"
        size = min(10, 0.85 * POINTS * cell / (CHARACTER * len(count)))
        text = axes.text(
            column, row, count, ha="center", va="center", color=color, weight=weight, size=size
        )
        text.set_in_layout(False)  # it is within its cell, and there are many


def _draw_reliability(axes: "Axes", calibration: Calibration) -> None:
    bins = calibration.bins
    lefts, rights = [each.low for each in bins], [each.high for each in bins]
    axes.bar(
        lefts,
        [each.accuracy for each in bins],
        [each.high - each.low for each in bins],
        align="edge",
        color=BLUE,
        edgecolor="white",
        linewidth=1,
        label="accuracy",
    )
    confidences = [each.confidence for each in bins]
    axes.hlines(
        confidences, lefts, rights, color=RED, linewidth=2.5, label="mean confidence", zorder=3
    )
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1.3, linestyle=DASHED)
    axes.set_ylim(0, 1)
    axes.set_ylabel("accuracy", color=INK)
    axes.legend(frameon=False, labelcolor=INK, loc="upper left")
    figures = (
        f"ECE {calibration.expected_error:.3f}   adaptive {calibration.adaptive_error:.3f}   "
        f"Brier {calibration.brier_score:.3f}   {calibration.num_decisions:,} decisions"
    )
    axes.text(0, 1.02, figures, color=INK, va="bottom", transform=axes.transAxes)


def _draw_counts(axes: "Axes", calibration: Calibration) -> None:
    bins = calibration.bins
    axes.bar(
        [each.low for each in bins],
        [each.count for each in bins],
        [each.high - each.low for each in bins],
        align="edge",
        color=GREY,
        edgecolor="white",
        linewidth=1,
    )
    axes.set_xlim(0, 1)
    axes.set_xlabel("confidence", color=INK)
    axes.set_ylabel("decisions", color=INK)
