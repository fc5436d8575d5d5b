"""The picture of docs/scaling.md: what is left of ideal over the number of H200."""

import hashlib
import json
from pathlib import Path

from benchmarks.scaling.hardware import H200
from benchmarks.scaling.runs import FAST, MODELS, PAPER, Rate, efficiency

COUNTS = tuple(2**power for power in range(11))
COLOURS = {"base": "#2563eb", "large": "#ea580c"}
STYLES = {FAST: ("-", "4,096 rows"), PAPER: ("--", "256 rows")}


def curves(rate: Rate) -> dict[str, list[float]]:
    """Efficiency at each of `COUNTS`, by model and recipe."""
    return {
        f"{model}, {STYLES[recipe][1]}": [
            round(efficiency(model, recipe, H200, count, rate), 6) for count in COUNTS
        ]
        for model in MODELS
        for recipe in STYLES
    }


def fingerprint(rate: Rate) -> str:
    """Of what is drawn; it stands in the file, so that a check needs no matplotlib."""
    drawn = json.dumps({"rate": rate.label, "curves": curves(rate)}, sort_keys=True)
    return "curves " + hashlib.sha256(drawn.encode()).hexdigest()[:16]


def draw(rate: Rate, path: Path) -> None:
    """Writes the picture as SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"svg.hashsalt": "scaling", "font.size": 11}):
        figure, axes = pyplot.subplots(figsize=(8, 4.8))
        found = curves(rate)
        for model in MODELS:
            for recipe, (line, rows) in STYLES.items():
                values = [100 * value for value in found[f"{model}, {rows}"]]
                axes.plot(
                    COUNTS, values, line, color=COLOURS[model], marker="o", markersize=3.5,
                    label=f"BERT {model}, {rows} a step ({recipe.name} recipe)",
                )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(COUNTS, [f"{count:,}" for count in COUNTS])
        axes.set_ylim(0, 103)
        axes.set_xlabel("H200, 8 in a node")
        axes.set_ylabel("efficiency: % of ideal scaling")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(
            frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=9.5
        )
        figure.tight_layout()
        about = {"Date": None, "Description": fingerprint(rate)}
        figure.savefig(path, format="svg", metadata=about)
        pyplot.close(figure)
