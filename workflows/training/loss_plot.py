"""Draws the losses of a run with the unigram baseline, and its learning rate, from its journal."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

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
from workflows.runs.journal import read_records

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMOOTHING_SHARE = 0.02  # of the run's points, as the time constant of the average


@dataclass(frozen=True)
class Curves:
    """The losses of a journal to draw, and their labels."""

    train: str
    held_out: str
    held_out_label: str
    loss_label: str


PRETRAINING = Curves(
    "train/masked_token_loss",
    "heldout/masked_token_loss",
    "held-out documents",
    "masked-token loss (nats)",
)
NEXT_TOKENS = Curves(
    "train/next_token_loss",
    "heldout/next_token_loss",
    "held-out documents",
    "next-token loss (nats)",
)
FINETUNING = Curves("train/loss", "dev/loss", "dev examples", "loss")


def plot_losses(
    journal_path: Path,
    output_path: Path,
    *,
    title: str,
    curves: Curves = PRETRAINING,
    unigram_loss: float | None = None,
) -> None:
    """Draws the loss curve to a .png or .svg file; a run without losses gives an empty figure."""
    train, held_out, learning_rate = _read(
        journal_path, (curves.train, curves.held_out, "train/learning_rate")
    )
    figure = new_figure(9, 5.6)
    grid = figure.add_gridspec(2, 1, height_ratios=(4, 1))
    losses = figure.add_subplot(grid[0])
    rates = figure.add_subplot(grid[1], sharex=losses)
    set_title(losses, title)
    losses.set_ylabel(curves.loss_label, color=INK)
    _draw_losses(losses, train, held_out, unigram_loss, held_out_label=curves.held_out_label)
    _draw_rates(rates, learning_rate)
    for axes in (losses, rates):
        tidy(axes)
        axes.margins(x=0.01)
    losses.tick_params(labelbottom=False)
    save_picture(figure, output_path)


def smoothed(values: np.ndarray, time_constant: float) -> np.ndarray:
    """Average of [points] over their neighbours, weighted exponentially by distance.

    Forwards and backwards, so that the curve does not lag behind a steep descent.
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
    axes: "Axes",
    train: np.ndarray,
    held_out: np.ndarray,
    unigram_loss: float | None,
    *,
    held_out_label: str,
) -> None:
    if len(train):
        average = smoothed(train[:, 1], SMOOTHING_SHARE * len(train))
        axes.plot(*train.T, color=BLUE, alpha=0.22, linewidth=0.8)
        axes.plot(train[:, 0], average, color=BLUE, linewidth=2, label="training, smoothed")
    if len(held_out):
        mark = "o" if len(held_out) <= 40 else None
        line = axes.plot(*held_out.T, color=RED, linewidth=2, marker=mark, markersize=4)
        line[0].set_label(held_out_label)
        step, loss = held_out[-1]
        note = {"xytext": (-4, 9), "textcoords": "offset points", "ha": "right"}
        axes.annotate(f"{loss:.2f}", (step, loss), color=RED, fontweight="bold", **note)
    if unigram_loss is not None:
        line = axes.axhline(unigram_loss, color=GREY, linewidth=1.3, linestyle=DASHED)
        line.set_label(f"unigram baseline, {unigram_loss:.2f}")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, labelcolor=INK, loc="upper right")


def _draw_rates(axes: "Axes", learning_rate: np.ndarray) -> None:
    if len(learning_rate):
        axes.plot(*learning_rate.T, color=INK, linewidth=1.2)
        axes.fill_between(*learning_rate.T, color=INK, alpha=0.07, linewidth=0)
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
    axes.set_ylabel("learning rate", color=INK)
    axes.set_xlabel("step", color=INK)
    axes.xaxis.set_major_formatter("{x:,.0f}")


def _read(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    """For each name its (step, value) points, [points, 2]."""
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for record in read_records(path):
        for name in names:
            if name in record.metrics:
                points[name].append((record.step, record.metrics[name]))
    return [np.array(points[name], dtype=np.float64).reshape(-1, 2) for name in names]
