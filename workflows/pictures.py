"""How pictures look and how they are saved: the same colours, quiet axes, a file written whole.

In: what is drawn. Out: PNG or SVG files, as the ending of their name says.
"""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from bert_core.disk import written_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, RED, GREY = "#4c78a8", "#e45756", "#6b7280"
GRID, INK = "#e5e7eb", "#1f2937"
DASHED = (0, (5, 3))
DOTS_PER_INCH = 150
LONGEST_LINE = 60  # of a title, in characters


def new_figure(width: float, height: float) -> "Figure":
    """An empty picture, in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def set_title(axes: "Axes", title: str, *, gap: float = 12) -> None:
    """Writes the title of a picture, in as many lines as it takes, `gap` points above the axes."""
    lines = textwrap.fill(title, LONGEST_LINE)
    axes.set_title(lines, loc="left", color=INK, fontsize=13, fontweight="bold", pad=gap)


def tidy(axes: "Axes") -> None:
    """Leaves of the axes what helps to read them: a line below, thin lines across."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GREY)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)


def save_picture(figure: "Figure", path: Path) -> None:
    """Writes beside the name and renames; the same picture has the same bytes again.

    What stands over the edge, such as a long title, makes the picture larger.
    """
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a label such as $x$ is no formula
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.suffix.removeprefix(".")
    with written_whole(path) as beside:
        figure.savefig(
            beside,
            format=written,
            dpi=DOTS_PER_INCH,
            bbox_inches="tight",
            pad_inches=0.1,
            metadata={"Date": None} if written == "svg" else {},
        )
