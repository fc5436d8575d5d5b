"""Figures, drawn with matplotlib: inline SVG for reports, PNG or SVG files elsewhere.

Inline figures are transparent; their theme colors are CSS variables that follow dark mode.
"""

import re
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_core.disk import atomic_write
from bert_core.errors import one_line
from bert_core.evaluation.sweep import is_number

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

SVG = ".svg"
THEME = {  # CSS variable: color in light mode, in dark mode
    "ground": ("#ffffff", "#111827"),
    "ink": ("#1f2937", "#e5e7eb"),
    "quiet": ("#6b7280", "#9ca3af"),
    "line": ("#e5e7eb", "#374151"),
    "ours": ("#eef4fb", "#1e2b3d"),
    "mark": ("#d1343b", "#ff7b7f"),
    "s0": ("#c6c9ce", "#4b5362"),
    "s1": ("#a9b7c6", "#556a84"),
    "s2": ("#86a6c8", "#5f84ab"),
    "s3": ("#5d8cbd", "#71a1d2"),
    "s4": ("#356fa8", "#95c1ec"),
    "s5": ("#154a80", "#c9e3ff"),
}
INK, GREY, GRID, MARK = (THEME[name][0] for name in ("ink", "quiet", "line", "mark"))
SHADES = tuple(light for name, (light, _) in THEME.items() if re.fullmatch(r"s\d", name))
BLUE, RED = "#4c78a8", "#e45756"
"""Readable in both modes, and the same in both."""
DASHED = (0, (5, 3))
DOTS_PER_INCH = 150
LONGEST_LINE = 60  # of a title, in characters
PANEL = (3.75, 2.9)
"""Inches of a figure that fits a narrow screen, 360 pixels wide."""

_VARIABLES = {light: f"var(--{name}, {light})" for name, (light, _) in THEME.items()}


@dataclass(frozen=True)
class Figure:
    """A figure of a report, inline in HTML and a file (`name` + `suffix`) next to Markdown.

    `alt` says what it shows to those who do not see it.
    """

    name: str
    svg: str
    caption: str
    alt: str
    suffix: str = SVG

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in points."""
        width, height = re.findall(r' (?:width|height)="([\d.]+)pt"', self.svg)[:2]
        return float(width), float(height)

    def file(self) -> str:
        """The content of an SVG file that brings its own colors."""
        return svg_file([self])


def svg_file(figures: Sequence[Figure]) -> str:
    """One SVG file of figures in rows of three; it brings its own colors."""
    rows = [figures[first : first + 3] for first in range(0, len(figures), 3)]
    body, y, width = [], 0.0, 0.0
    for row in rows:
        x = 0.0
        for figure in row:
            place = f'<svg x="{x:g}" y="{y:g}" '
            body.append(figure.svg.replace("<svg ", place, 1).replace('pt"', '"'))
            x += figure.size[0]
        width, y = max(width, x), y + max(figure.size[1] for figure in row)
    size = f'width="{width:g}pt" height="{y:g}pt" viewBox="0 0 {width:g} {y:g}"'
    ground = '<rect width="100%" height="100%" style="fill: var(--ground)"/>'
    style = f"<style>\n{theme_css()}\n</style>\n{ground}"
    namespaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return "\n".join([f"<svg {namespaces} {size}>", style, *body, "</svg>", ""])


def theme_css() -> str:
    """The theme's colors as CSS variables, for both modes."""
    light, dark = (
        " ".join(f"--{name}: {colors[mode]};" for name, colors in THEME.items()) for mode in (0, 1)
    )
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


class Chart:
    """A figure being drawn; `axes` is matplotlib's. Marks have a key and a tooltip."""

    def __init__(self, title: str, size: tuple[float, float] = PANEL) -> None:
        self._drawing = new_figure(*size)
        self.axes = self._drawing.add_subplot()
        style = {"color": INK, "fontsize": 10, "fontweight": "bold"}
        self.axes.set_title(shortened(title, int(14 * size[0])), loc="left", pad=8, **style)
        tidy(self.axes)
        self._marks: dict[str, tuple[str, str]] = {}

    def line(  # noqa: ANN201 - matplotlib's line
        self,
        x: Sequence[float] | np.ndarray,
        y: Sequence[float] | np.ndarray,
        *,
        color: str,
        label: str,
        key: str = "",
        style: str = "-",
        width: float = 1.5,
    ):
        """Draws a line; `label` is its tooltip."""
        (line,) = self.axes.plot(x, y, style, color=color, linewidth=width)
        self._mark(line, key, label)
        return line

    def dots(
        self,
        x: Sequence[float],
        y: Sequence[float],
        *,
        color: str,
        label: str,
        key: str = "",
        size: float = 5,
    ) -> None:
        """Draws dots that belong together."""
        style: dict[str, Any] = {"markersize": size, "markeredgecolor": "#ffffff", "zorder": 3}
        (dots,) = self.axes.plot(x, y, "o", color=color, markeredgewidth=0.6, **style)
        self._mark(dots, key, label)

    def bars(self, names: Sequence[str], values: Sequence[float], texts: Sequence[str]) -> None:
        """Draws horizontal bars from top to bottom, each with its text at its end."""
        bars = self.axes.barh(range(len(names)), values, height=0.5, color=SHADES[3])
        for bar, name, text in zip(bars, names, texts, strict=True):
            self._mark(bar, "", f"{name}: {text}")
        self.axes.bar_label(bars, texts, padding=4, color=INK, fontsize=9)
        self.axes.set_yticks(range(len(names)), [shortened(name) for name in names])
        self.axes.invert_yaxis()
        self.axes.grid(visible=False)
        self.axes.margins(x=0.2)

    def finish(self, name: str, *, caption: str, alt: str) -> Figure:
        """Renders the figure as SVG with tooltips and theme colors."""
        return inline_figure(self._drawing, name, caption=caption, alt=alt, marks=self._marks)

    def _mark(self, artist: "Artist", key: str, label: str) -> None:
        mark = f"mark{len(self._marks)}"
        artist.set_gid(mark)
        self._marks[mark] = (key, label)


def inline_figure(
    drawing: "Drawing",
    name: str,
    *,
    caption: str,
    alt: str,
    marks: Mapping[str, tuple[str, str]] | None = None,
    suffix: str = SVG,
) -> Figure:
    """Renders a drawing as transparent SVG in theme colors; `marks` are keys and tooltips by id."""
    import matplotlib as mpl
    from matplotlib.text import Text

    drawing.set_facecolor("none")
    for axes in drawing.axes:
        axes.set_facecolor("none")
    for text in drawing.findobj(Text):
        text.set_parse_math(False)  # a label such as $x$ is no formula
        text.set_text("\n".join(map(one_line, text.get_text().split("\n"))))
        color = text.get_color()
        if isinstance(color, str) and color == "black":  # matplotlib's own, which no theme follows
            text.set_color(INK)
    written = StringIO()
    with warnings.catch_warnings(), mpl.rc_context({"svg.fonttype": "none"}):
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        with mpl.rc_context({"svg.hashsalt": name}):  # the same figure has the same bytes
            drawing.savefig(
                written,
                format="svg",
                bbox_inches="tight",
                pad_inches=0.05,
                metadata={"Date": None, "Creator": None},
            )
    svg = written.getvalue()
    themed = _themed(svg[svg.index("<svg") :], name, alt, marks or {})
    return Figure(name, themed, caption, alt, suffix)


def saved_figure(
    draw: Callable[[str], "Drawing"], path: Path, *, title: str, caption: str
) -> Figure:
    """Saves a drawing with a title as a PNG or SVG file; returns it without one for a page."""
    save_picture(draw(title), path)
    return inline_figure(draw(""), path.stem, caption=caption, alt=caption, suffix=path.suffix)


def _themed(svg: str, name: str, alt: str, marks: Mapping[str, tuple[str, str]]) -> str:
    """SVG with ids that are unique on a page, tooltips, CSS variables for colors."""

    def tooltip(match: re.Match[str]) -> str:
        key, label = marks[match[1]]
        attribute = f' data-key="{escape(key)}"' if key else ""
        return f"<g{attribute}><title>{escape(one_line(label))}</title>"

    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"\d+\.\d{5,}", lambda match: f"{float(match[0]):.2f}", svg)
    svg = re.sub(r"font-family: [^;\"]+", "font-family: system-ui, sans-serif", svg)
    svg = re.sub(r"\s*\n\s*(<?)", lambda match: "\n<" if match[1] else " ", svg)
    svg = re.sub(r'<g id="(mark\d+)">', tooltip, svg)
    svg = re.sub(r'<g id="[a-z]+[\w.]*">', "<g>", svg)
    svg = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{escape(name)}-", svg)
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda match: _VARIABLES.get(match[0], match[0]), svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(one_line(alt))}" ', 1).strip()


@dataclass(frozen=True)
class ParallelAxis:
    """An axis of parallel coordinates: tick labels by their place, 0 at the bottom to 1."""

    title: str
    ticks: Sequence[tuple[float, str]]


@dataclass(frozen=True)
class ParallelLine:
    """A line across all axes: its place on each, 0 to 1."""

    places: Sequence[float]
    color: str
    key: str
    label: str
    width: float = 1.3


def parallel_coordinates(
    axes: Sequence[ParallelAxis], lines: Sequence[ParallelLine], name: str, *, caption: str
) -> Figure:
    """Draws parallel coordinates (Inselberg 1985); later lines lie above earlier ones."""
    chart = Chart("", (2.5 * max(len(axes), 2) - 1.0, 3.6))
    chart.axes.axis("off")
    steps = np.linspace(0, 1, 16)
    ease = steps * steps * (3 - 2 * steps)  # leaves and reaches each axis horizontally
    for line in lines:
        pairs = list(zip(line.places, line.places[1:], strict=False))
        x = np.concatenate([index + steps for index in range(len(pairs))])
        y = np.concatenate([low + ease * (high - low) for low, high in pairs])
        style: dict[str, Any] = {"color": line.color, "width": line.width}
        chart.line(x, y, key=line.key, label=line.label, **style)
    halo: dict[str, Any] = {"facecolor": "#ffffff", "edgecolor": "none", "pad": 1, "alpha": 0.8}
    for index, axis in enumerate(axes):
        chart.axes.vlines(index, -0.03, 1.03, color=GREY, linewidth=1)
        title = {"ha": "center", "color": INK, "fontweight": "bold", "fontsize": 10}
        chart.axes.text(index, 1.1, shortened(axis.title, 24), **title)
        for place, text in axis.ticks:
            label = {"va": "center", "color": INK, "fontsize": 9, "bbox": halo}
            chart.axes.text(index + 0.03, place, shortened(text, 22), **label)
    chart.axes.set_xlim(-0.15, len(axes) - 0.8)
    chart.axes.set_ylim(-0.03, 1.12)
    alt = f"Parallel coordinates, {len(lines)} lines: {', '.join(axis.title for axis in axes)}"
    return chart.finish(name, caption=caption, alt=alt)


def shade(value: float, low: float, high: float) -> str:
    """The color of a mark by its value between two others; the higher, the stronger."""
    share = (min(max(value, low), high) - low) / (high - low) if high > low else 1.0
    return SHADES[min(len(SHADES) - 1, int(share * len(SHADES)))]


def shortened(text: str, length: int = 30) -> str:
    """Text of at most `length` characters, the middle left out."""
    text = one_line(text)
    half = length // 2
    return text if len(text) <= length else f"{text[: length - half - 1]}…{text[-half:]}"


def value_text(value: Any) -> str:  # noqa: ANN401 - a setting's value
    """A setting's value, numbers with three digits: 5e-5, 0.1, 4096, true, null."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if not is_number(value) or isinstance(value, int):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def new_figure(width: float, height: float) -> "Drawing":
    """An empty matplotlib figure, in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    figure = Drawing(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def set_title(axes: "Axes", title: str, *, gap: float = 12) -> None:
    """Writes the title of a figure, in as many lines as it takes, `gap` points above the axes."""
    lines = textwrap.fill(title, LONGEST_LINE)
    axes.set_title(lines, loc="left", color=INK, fontsize=13, fontweight="bold", pad=gap)


def tidy(axes: "Axes") -> None:
    """Leaves of the axes what helps to read them: a line below, thin lines across."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GREY)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)


def save_picture(figure: "Drawing", path: Path) -> None:
    """Writes a PNG or SVG file atomically; the same figure has the same bytes.

    What stands over the edge, such as a long title, makes the picture larger.
    """
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a label such as $x$ is no formula
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.suffix.removeprefix(".")
    with atomic_write(path) as beside:
        figure.savefig(
            beside,
            format=written,
            dpi=DOTS_PER_INCH,
            bbox_inches="tight",
            pad_inches=0.1,
            metadata={"Date": None} if written == "svg" else {},
        )
