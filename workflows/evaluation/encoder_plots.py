"""Pictures of what an encoder has learned: what its heads look at, and which words lie together.

Shapes: L layers, A heads, n tokens, P points.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bert_core.features.attention_maps import AttentionMaps
from bert_core.tasks.task import FloatArray
from workflows.evaluation.pictures_settings import Projection
from workflows.reporting.figures import GREY, INK, new_figure, save_picture

_CELL, _PER_TOKEN, _MARGIN = 1.25, 0.105, 1.3  # inches
_COLORS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518", "#72b7b2", "#9d755d", "#d8a500")
_NEIGHBOURS = 30  # the perplexity of t-SNE


def plot_attention(maps: AttentionMaps, path: Path, *, title: str) -> None:
    """Draws a square for each head of each layer: rows look at columns, dark is much.

    The tokens stand at the left and at the bottom.
    """
    num_layers, num_heads, num_tokens, _ = maps.probabilities.shape
    cell = max(_CELL, _PER_TOKEN * num_tokens)
    figure = new_figure(num_heads * cell + _MARGIN, num_layers * cell + _MARGIN)
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=13, fontweight="bold")
    cells = figure.subplots(num_layers, num_heads, squeeze=False)
    for layer, row in enumerate(cells):
        for head, axes in enumerate(row):
            shares = maps.probabilities[layer, head].numpy()
            axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
            axes.tick_params(length=0, labelsize=6, colors=INK, pad=1)
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set_color(GREY)
                spine.set_linewidth(0.5)
            if layer == 0:
                axes.set_title(f"head {head + 1}", color=INK, fontsize=8, pad=4)
            if layer == num_layers - 1:
                axes.set_xticks(range(num_tokens), maps.tokens, rotation=90)
            if head == 0:
                axes.set_yticks(range(num_tokens), maps.tokens)
                axes.set_ylabel(f"layer {layer + 1}", color=INK, fontsize=8)
    save_picture(figure, path)


def plot_map(
    states: Mapping[int, FloatArray],
    labels: Sequence[str],
    path: Path,
    *,
    projection: Projection,
    title: str,
) -> None:
    """Draws the states [P, H] of each layer in two dimensions, coloured by their labels [P].

    Each layer is projected on its own. The axes have no unit: only what lies together means
    something. The labels beyond the eight most frequent are grey.
    """
    figure = new_figure(4.6 * len(states), 5.2)
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=13, fontweight="bold")
    frequent = [label for label, _ in Counter(labels).most_common(len(_COLORS))]
    colors = dict(zip(sorted(frequent), _COLORS, strict=False))
    names, array = [*colors, "other"], np.array(labels)
    for number, (layer, vectors) in enumerate(states.items(), start=1):
        axes = figure.add_subplot(1, len(states), number)
        points = project(vectors, projection)
        for name in names:
            chosen = ~np.isin(array, frequent) if name == "other" else array == name
            if chosen.any():
                x, y = points[chosen].T
                color = colors.get(name, GREY)
                axes.scatter(x, y, s=9, color=color, alpha=0.65, linewidths=0, label=name)
        axes.set_title("embeddings" if layer == 0 else f"layer {layer}", color=INK, fontsize=11)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[["top", "right", "left", "bottom"]].set_color(GREY)
    handles, shown = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        shown,
        loc="outside lower center",
        ncols=len(shown),
        frameon=False,
        labelcolor=INK,
        markerscale=2,
    )
    save_picture(figure, path)


def project(vectors: FloatArray, projection: Projection) -> FloatArray:
    """The vectors [P, H] in two dimensions, [P, 2], by scikit-learn; the same again every time."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    if projection == "pca":
        return PCA(2, random_state=0).fit_transform(vectors)
    perplexity = min(_NEIGHBOURS, max((len(vectors) - 1) / 3, 1))
    # Its threads meet several times a step: on a busy machine two took a hundred times as long.
    with threadpool_limits(1):
        return TSNE(2, init="pca", perplexity=perplexity, random_state=0).fit_transform(vectors)
