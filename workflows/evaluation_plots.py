"""Pictures of an evaluation: what is taken for what, and whether confidence is deserved.

In: a confusion matrix or a calibration. Out: a PNG or SVG file.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bert_core.evaluation.calibration import Calibration
from bert_core.evaluation.confusion import ConfusionMatrix
from workflows.loss_plot import BASELINE, GRID, HELD_OUT, INK, TRAINING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NUMBERED = 20  # classes; of more the cells are too small for numbers


def plot_confusion(matrix: ConfusionMatrix, output_path: Path, *, title: str) -> None:
    """Draws a confusion matrix; the ending of `output_path`, .png or .svg, chooses the format.

    Colours are shares of a row, so that rare classes can be seen; numbers are counts.
    """
    num = len(matrix.names)
    side = min(max(2.6 + 0.62 * num, 4.6), 14)
    figure = _figure((side + 0.8, side))
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", color=INK, fontsize=13, fontweight="bold", pad=12)
    totals = matrix.counts.sum(axis=1, keepdims=True)
    shares = matrix.counts / np.maximum(totals, 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if num <= MOST_NUMBERED:
        _write_counts(axes, matrix, shares)
    font = min(10.0, 30 * side / num)  # in points; a cell is some 55 side / num
    is_wide = max(map(len, matrix.names)) * font / 2 > 55 * side / num
    axes.set_xticks(range(num), matrix.names, rotation=90 if is_wide else 0, fontsize=font)
    axes.set_yticks(range(num), matrix.names, fontsize=font)
    axes.set_xlabel("found", color=INK)
    axes.set_ylabel("right answer", color=INK)
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=INK, length=0)
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03)
    bar.set_label("share of the row", color=INK)
    bar.ax.tick_params(colors=INK, length=0)
    bar.outline.set_visible(False)  # pyright: ignore - matplotlib's stubs have no such outline
    _save(figure, output_path)


def plot_reliability(calibration: Calibration, output_path: Path, *, title: str) -> None:
    """Draws a reliability diagram (Guo et al. 2017, figure 1), and how many decisions lie where.

    The ending of `output_path`, .png or .svg, chooses the format.
    """
    figure = _figure((6.4, 6.8))
    grid = figure.add_gridspec(2, 1, height_ratios=(4, 1))
    reliability = figure.add_subplot(grid[0])
    counts = figure.add_subplot(grid[1], sharex=reliability)
    reliability.set_title(title, loc="left", color=INK, fontsize=13, fontweight="bold", pad=26)
    _draw_reliability(reliability, calibration)
    _draw_counts(counts, calibration)
    reliability.tick_params(labelbottom=False)
    _save(figure, output_path)


def _write_counts(axes: "Axes", matrix: ConfusionMatrix, shares: np.ndarray) -> None:
    for row, column in np.argwhere(matrix.counts > 0).tolist():
        color = "white" if shares[row, column] > 0.55 else INK
        weight = "bold" if row == column else "normal"
        count = f"{matrix.counts[row, column]:,}"
        size = 10 if len(count) < 5 else 8
        axes.text(
            column, row, count, ha="center", va="center", color=color, weight=weight, size=size
        )


def _draw_reliability(axes: "Axes", calibration: Calibration) -> None:
    bins = calibration.bins
    lefts, rights = [each.low for each in bins], [each.high for each in bins]
    axes.bar(
        lefts,
        [each.accuracy for each in bins],
        [each.high - each.low for each in bins],
        align="edge",
        color=TRAINING,
        edgecolor="white",
        linewidth=1,
        label="accuracy",
    )
    confidences = [each.confidence for each in bins]
    axes.hlines(
        confidences, lefts, rights, color=HELD_OUT, linewidth=2.5, label="mean confidence", zorder=3
    )
    axes.plot([0, 1], [0, 1], color=BASELINE, linewidth=1.3, linestyle=(0, (5, 3)))
    axes.set_ylim(0, 1)
    axes.set_ylabel("accuracy", color=INK)
    axes.legend(frameon=False, labelcolor=INK, loc="upper left")
    figures = (
        f"ECE {calibration.expected_error:.3f}   adaptive {calibration.adaptive_error:.3f}   "
        f"Brier {calibration.brier_score:.3f}   {calibration.num_decisions:,} decisions"
    )
    axes.text(0, 1.02, figures, color=INK, va="bottom", transform=axes.transAxes)
    _tidy(axes)


def _draw_counts(axes: "Axes", calibration: Calibration) -> None:
    bins = calibration.bins
    axes.bar(
        [each.low for each in bins],
        [each.count for each in bins],
        [each.high - each.low for each in bins],
        align="edge",
        color=BASELINE,
        edgecolor="white",
        linewidth=1,
    )
    axes.set_xlim(0, 1)
    axes.set_xlabel("confidence", color=INK)
    axes.set_ylabel("decisions", color=INK)
    _tidy(axes)


def _figure(size: tuple[float, float]) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _tidy(axes: "Axes") -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(BASELINE)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)


def _save(figure: "Figure", output_path: Path) -> None:
    """Writes beside the name and renames; without a date, so that the bytes are the same again."""
    output_path.parent.mkdir(parents=True, exist_ok=True)
    beside = output_path.with_name(f".{output_path.name}")
    written = output_path.suffix.removeprefix(".")
    metadata = {"Date": None} if written == "svg" else {}
    figure.savefig(beside, format=written, dpi=150, metadata=metadata)
    beside.replace(output_path)
