"""The picture of a run: its losses beside the unigram baseline, the learning rate below.

In: the run's journal. Out: a PNG or SVG file.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workflows.journal import read_records

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRAINING, HELD_OUT, BASELINE = "#4c78a8", "#e45756", "#6b7280"
GRID, INK = "#e5e7eb", "#1f2937"
SMOOTHING_SHARE = 0.02  # of the run's points, as the time constant of the average


def plot_losses(
    journal_path: Path,
    output_path: Path,
    *,
    title: str,
    unigram_loss: float | None = None,
    train_name: str = "train/masked_token_loss",
    held_out_name: str = "heldout/masked_token_loss",
    learning_rate_name: str = "train/learning_rate",
) -> None:
    """Draws the loss curve; the ending of `output_path`, .png or .svg, chooses the format.

    Written beside its name and renamed. A run without a single loss gives an empty picture.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    train, held_out, learning_rate = _read(
        journal_path, (train_name, held_out_name, learning_rate_name)
    )
    figure = Figure(figsize=(9, 5.6), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 1, height_ratios=(4, 1))
    losses = figure.add_subplot(grid[0])
    rates = figure.add_subplot(grid[1], sharex=losses)
    losses.set_title(title, loc="left", color=INK, fontsize=13, fontweight="bold", pad=12)
    _draw_losses(losses, train, held_out, unigram_loss)
    _draw_rates(rates, learning_rate)
    losses.tick_params(labelbottom=False)
    output_path.parent.mkdir(parents=True, exist_ok=True)
    beside = output_path.with_name(f".{output_path.name}")
    # Without a date the same run gives the same bytes.
    written = output_path.suffix.removeprefix(".")
    extra = {"Date": None} if written == "svg" else {}
    figure.savefig(beside, format=written, dpi=150, metadata=extra)
    beside.replace(output_path)


def smoothed(values: np.ndarray, time_constant: float) -> np.ndarray:
    """Average of [points] over their neighbours, weighted exponentially by distance.

    Forwards and backwards, so that the curve does not lag behind a steep fall.
    """
    sums, weights = _running_sums(values, time_constant)
    later_sums, later_weights = _running_sums(values[::-1], time_constant)
    # Summed before they are divided: at an end the few points of one side count as few.
    return (sums + later_sums[::-1] - values) / (weights + later_weights[::-1] - 1)


def _running_sums(values: np.ndarray, time_constant: float) -> tuple[np.ndarray, np.ndarray]:
    """Weighted sums of each point and those before it, and the sums of the weights; [points]."""
    keep = 1 - 1 / max(time_constant, 1.0)
    sums, weights = np.empty((2, len(values)))
    total = weight = 0.0
    for index, value in enumerate(values):
        total, weight = keep * total + value, keep * weight + 1
        sums[index], weights[index] = total, weight
    return sums, weights


def _draw_losses(
    axes: "Axes", train: np.ndarray, held_out: np.ndarray, unigram_loss: float | None
) -> None:
    if len(train):
        average = smoothed(train[:, 1], SMOOTHING_SHARE * len(train))
        axes.plot(*train.T, color=TRAINING, alpha=0.22, linewidth=0.8)
        axes.plot(train[:, 0], average, color=TRAINING, linewidth=2, label="training, smoothed")
    if len(held_out):
        mark = "o" if len(held_out) <= 40 else None
        line = axes.plot(*held_out.T, color=HELD_OUT, linewidth=2, marker=mark, markersize=4)
        line[0].set_label("held-out documents")
        step, loss = held_out[-1]
        note = {"xytext": (-4, 9), "textcoords": "offset points", "ha": "right"}
        axes.annotate(f"{loss:.2f}", (step, loss), color=HELD_OUT, fontweight="bold", **note)
    if unigram_loss is not None:
        line = axes.axhline(unigram_loss, color=BASELINE, linewidth=1.3, linestyle=(0, (5, 3)))
        line.set_label(f"unigram baseline, {unigram_loss:.2f}")
    _tidy(axes)
    axes.set_ylabel("masked-token loss (nats)", color=INK)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, labelcolor=INK, loc="upper right")


def _draw_rates(axes: "Axes", learning_rate: np.ndarray) -> None:
    if len(learning_rate):
        axes.plot(*learning_rate.T, color=INK, linewidth=1.2)
        axes.fill_between(*learning_rate.T, color=INK, alpha=0.07, linewidth=0)
    _tidy(axes)
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
    axes.set_ylabel("learning rate", color=INK)
    axes.set_xlabel("step", color=INK)
    axes.xaxis.set_major_formatter("{x:,.0f}")


def _tidy(axes: "Axes") -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(BASELINE)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    axes.margins(x=0.01)


def _read(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    """For each name its (step, value) points, [points, 2]."""
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for record in read_records(path):
        for name in names:
            if name in record.metrics:
                points[name].append((record.step, record.metrics[name]))
    return [np.array(points[name], dtype=np.float64).reshape(-1, 2) for name in names]
