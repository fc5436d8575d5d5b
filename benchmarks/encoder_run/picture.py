"""The picture of `benchmarks.encoder_run`: its losses over the tokens read, beside the baseline."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

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

SHOWN_ABOVE_UNIGRAM = 0.6
"""Nats above the baseline at which the picture ends: what falls so steeply shows nothing."""


def draw(results: dict[str, Any], path: Path) -> None:
    """Draws what there is of a run; the ending of `path`, .png or .svg, chooses the format."""
    record = results["pretraining"]
    recipe, device = results["settings"]["recipe"], results["surroundings"]["device"]
    figure = new_figure(9, 4.8)
    axes = figure.add_subplot()
    minutes = record["seconds"] / 60
    title = f"{minutes:.1f} minutes of pre-training, {recipe['size']}, {device.partition(',')[0]}"
    set_title(axes, title)
    tokens = [point["tokens"] / 1e6 for point in record["curve"]]
    losses = [point["masked_token_loss"] for point in record["curve"]]
    axes.plot(
        tokens, losses, color=BLUE, linewidth=1.6, label="training, mean since the last point"
    )
    draw_heldout(axes, record["heldout"])
    unigram = record["heldout"][-1]["unigram_loss"]
    line = axes.axhline(unigram, color=GREY, linewidth=1.3, linestyle=DASHED)
    line.set_label(f"unigram baseline, {unigram:.2f}")
    axes.set_xlabel("million tokens read", color=INK)
    axes.set_ylabel("masked-token loss (nats)", color=INK)
    lowest = min([*losses, *(point["masked_token_loss"] for point in record["heldout"])])
    axes.set_ylim(lowest - 0.2, unigram + SHOWN_ABOVE_UNIGRAM)
    axes.margins(x=0.02)
    axes.legend(frameon=False, labelcolor=INK, loc="upper right")
    tidy(axes)
    save_picture(figure, path)


def draw_heldout(axes: "Axes", heldout: list[dict[str, Any]]) -> None:
    """The held-out points, the last with its figure."""
    tokens = [point["tokens"] / 1e6 for point in heldout]
    losses = [point["masked_token_loss"] for point in heldout]
    axes.plot(tokens, losses, "o-", color=RED, markersize=4.5, linewidth=1.2)
    axes.lines[-1].set_label("held-out documents")
    axes.annotate(
        f"{losses[-1]:.2f}",
        (tokens[-1], losses[-1]),
        xytext=(0, -17),
        textcoords="offset points",
        ha="center",
        color=RED,
        fontweight="bold",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )
