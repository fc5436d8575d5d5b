"""The drawings of an evaluation's report: confusion matrix, reliability diagram, numbers.

They fit a narrow screen; those that are files of their own have a title.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bert_core.evaluation import error_analysis
from workflows.reporting.figures import (
    BLUE,
    DASHED,
    GREY,
    INK,
    RED,
    new_figure,
    set_title,
    shortened,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

MOST_NUMBERED = 40  # classes; with more the cells are too small for numbers
LONGEST_NAME = 30  # characters of a class name
POINTS = 72  # per inch
CHARACTER = 0.62  # width of one, as a share of the font size
SIDES = ("right answer", "predicted")  # rows and columns
_ON_LIGHT, _ON_DARK = "#1f2936", "#fffffe"  # no theme colors: cells look the same in dark mode


def confusion_drawing(
    matrix: error_analysis.ConfusionMatrix, title: str = "", sides: Sequence[str] = SIDES
) -> "Drawing":
    """Draws a confusion matrix, the larger the more classes it has.

    Colors are shares of a row, so that rare classes can be seen; numbers are counts.
    """
    num = len(matrix.names)
    names = [shortened(name, LONGEST_NAME) for name in matrix.names]
    cell = min(max(0.62, 2.0 / num), 12 / num)  # inches, as all sizes here
    font = min(10.0, 0.75 * POINTS * cell)
    is_wide = max(map(len, names)) * CHARACTER * font > POINTS * cell
    side = num * cell
    figure = new_figure(side, side)
    # Cells decide the size; names and the color bar stand outside of it and are saved with it.
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
    axes.set_xlabel(sides[1], color=INK)
    axes.set_ylabel(sides[0], color=INK)
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=INK, length=0)
    height = min(1.0, 3 / side)
    bar = figure.colorbar(image, cax=figure.add_axes((1 + 0.1 / side, 0, 0.15 / side, height)))
    bar.set_label("share of the row", color=INK)
    bar.ax.tick_params(colors=INK, length=0)
    bar.outline.set_visible(False)  # pyright: ignore - matplotlib's stubs have no such outline
    return figure


def numbers_drawing(pairs: Sequence[tuple[float, float]], title: str = "") -> "Drawing":
    """Draws predicted numbers over right ones; `pairs` are (right, predicted)."""
    gold, found = zip(*pairs, strict=True)
    figure = new_figure(3.7, 3.6)
    axes = figure.add_subplot()
    set_title(axes, title)
    # Thousands of dots as vectors would make a page of megabytes.
    axes.scatter(gold, found, s=10, color=BLUE, alpha=0.35, linewidths=0, rasterized=True)
    lowest, highest = min(*gold, *found), max(*gold, *found)
    axes.plot([lowest, highest], [lowest, highest], color=GREY, linewidth=1.3, linestyle=DASHED)
    axes.set_xlabel("right answer", color=INK)
    axes.set_ylabel("predicted", color=INK)
    tidy(axes)
    return figure


def reliability_drawing(calibration: error_analysis.Calibration, title: str = "") -> "Drawing":
    """Draws a reliability diagram (Guo et al. 2017, figure 1) and how many decisions lie where."""
    figure = new_figure(3.7, 4.2)
    grid = figure.add_gridspec(2, 1, height_ratios=(4, 1))
    reliability = figure.add_subplot(grid[0])
    counts = figure.add_subplot(grid[1], sharex=reliability)
    set_title(reliability, title)
    bins = calibration.bins
    lefts, rights = [each.low for each in bins], [each.high for each in bins]
    widths = [each.high - each.low for each in bins]
    bars = {"width": widths, "align": "edge", "edgecolor": "white", "linewidth": 1}
    accuracies = [each.accuracy for each in bins]
    reliability.bar(lefts, accuracies, color=BLUE, label="accuracy", **bars)
    confidences = [each.confidence for each in bins]
    line = {"color": RED, "linewidth": 2.5, "label": "mean confidence", "zorder": 3}
    reliability.hlines(confidences, lefts, rights, **line)
    reliability.plot([0, 1], [0, 1], color=GREY, linewidth=1.3, linestyle=DASHED)
    reliability.set_ylim(0, 1)
    reliability.set_ylabel("accuracy", color=INK)
    reliability.legend(frameon=False, labelcolor=INK, loc="upper left")
    counts.bar(lefts, [each.count for each in bins], color=GREY, **bars)
    counts.set_xlim(0, 1)
    counts.set_xlabel("confidence", color=INK)
    counts.set_ylabel("decisions", color=INK)
    for axes in (reliability, counts):
        tidy(axes)
    reliability.tick_params(labelbottom=False)
    return figure


def _write_counts(
    axes: "Axes", matrix: error_analysis.ConfusionMatrix, shares: np.ndarray, cell: float
) -> None:
    for row, column in np.argwhere(matrix.counts > 0).tolist():
        color = _ON_DARK if shares[row, column] > 0.55 else _ON_LIGHT
        weight = "bold" if row == column else "normal"
        count = f"{matrix.counts[row, column]:,}"
        size = min(10, 0.85 * POINTS * cell / (CHARACTER * len(count)))
        text = axes.text(
            column, row, count, ha="center", va="center", color=color, weight=weight, size=size
        )
        text.set_in_layout(False)  # it is within its cell, and there are many
