"""The pictures of Table 7: F1 by layer, and the weights of layers that taggers have learned."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

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

F1_BY_LAYER, LAYER_WEIGHTS = "f1_by_layer.png", "layer_weights.png"


def plot_f1_by_layer(
    by_layer: Mapping[int, Sequence[float]], lines: Mapping[str, float], path: Path, *, title: str
) -> None:
    """Draws F1 (points) of single layers, 0 being the embeddings; each seed a dot.

    `lines` are figures to compare with, by what they are called.
    """
    figure = new_figure(8, 4.8)
    axes = figure.add_subplot()
    set_title(axes, title)
    layers = sorted(by_layer)
    for layer in layers:
        scores = list(by_layer[layer])
        axes.plot([layer] * len(scores), scores, "o", color=BLUE, alpha=0.35, markersize=4)
    means = [mean(by_layer[layer]) for layer in layers]
    axes.plot(layers, means, color=BLUE, linewidth=2, marker="o", markersize=6)
    note = {"xytext": (0, 9), "textcoords": "offset points", "ha": "center"}
    for layer, value in zip(layers, means, strict=True):
        axes.annotate(f"{value:.1f}", (layer, value), color=BLUE, fontweight="bold", **note)
    for color, (name, value) in zip((RED, GREY, INK), lines.items(), strict=False):
        line = axes.axhline(value, color=color, linewidth=1.3, linestyle=DASHED)
        line.set_label(f"{name}, {value:.1f}")
    if lines:
        axes.legend(frameon=False, labelcolor=INK, loc="best")
    axes.set_xlabel("layer (0: embeddings)", color=INK)
    axes.set_ylabel("dev F1 (points)", color=INK)
    axes.set_xticks(layers)
    axes.margins(y=0.12)
    tidy(axes)
    save_picture(figure, path)


def plot_layer_weights(
    weights: Mapping[str, Mapping[int, Sequence[float]]], path: Path, *, title: str
) -> None:
    """Draws the shares (they add up to 1) of layers in learned sums, by strategy; seeds as dots."""
    figure = new_figure(8, 3.2 * max(len(weights), 1) + 0.6)
    for number, (name, shares) in enumerate(weights.items(), start=1):
        axes = figure.add_subplot(len(weights), 1, number)
        set_title(axes, f"{title}: {name}" if number == 1 else name)
        layers = sorted(shares)
        axes.bar(layers, [mean(shares[layer]) for layer in layers], color=BLUE, width=0.6)
        for layer in layers:
            dots = list(shares[layer])
            axes.plot([layer] * len(dots), dots, "o", color=INK, alpha=0.5, markersize=4)
        axes.axhline(1 / max(len(layers), 1), color=GREY, linewidth=1.2, linestyle=DASHED)
        axes.set_xticks(layers)
        axes.set_ylabel("share", color=INK)
        axes.set_xlabel("layer", color=INK)
        tidy(axes)
    save_picture(figure, path)
