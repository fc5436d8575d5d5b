"""Pictures as SVG, drawn by hand: marks and scales go in; what a page or a file holds comes out.

In a page a picture takes the page's colours, light and dark; as a file it brings its own. Lengths
are pixels at natural size, y grows downwards. All text is escaped here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Protocol

from bert_core.evaluation.sweep import is_number

CHARACTER = 7.2
"""About the width of one, in pixels."""
NUM_SHADES = 6
"""Classes `s0` (the lowest) to `s5` colour a mark by its value."""

COLORS = """\
:root { --ink: #1f2937; --quiet: #6b7280; --line: #e5e7eb; --ground: #fff; --mark: #d1343b;
  --s0: #c6c9ce; --s1: #a9b7c6; --s2: #86a6c8; --s3: #5d8cbd; --s4: #356fa8; --s5: #154a80; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e5e7eb; --quiet: #9ca3af; --line: #374151; --ground: #111827; --mark: #ff7b7f;
    --s0: #4b5362; --s1: #556a84; --s2: #5f84ab; --s3: #71a1d2; --s4: #95c1ec; --s5: #c9e3ff; }
}
"""
STYLE = (
    """\
.chart text { font: 13px system-ui, sans-serif; fill: var(--ink); paint-order: stroke;
  stroke: var(--ground); stroke-width: 4px; stroke-linejoin: round; }
.chart .quiet { fill: var(--quiet); }
.chart .title { font-weight: 600; }
.chart .axis { stroke: var(--quiet); stroke-width: 1; }
.chart .grid { stroke: var(--line); stroke-width: 1; }
.chart .mean { stroke: var(--ink); stroke-width: 2.5; }
.chart .chance { stroke: var(--mark); stroke-width: 2; }
.chart .line path { fill: none; stroke: var(--shade); stroke-width: 1.8; stroke-linecap: round; }
.chart .line .hit { stroke: transparent; stroke-width: 9; }
.chart .line.failed path { stroke-dasharray: 3 4; }
.chart .dot { fill: var(--shade); stroke: var(--ground); stroke-width: 1; }
.chart .bar { fill: var(--s3); }
.chart .best { --shade: var(--mark); }
.chart .line.best path.seen { stroke-width: 3; }
.chart .lines:hover .line .seen { opacity: .15; }
.chart .lines .line:hover .seen, .chart .lines .line.on .seen { opacity: 1; stroke-width: 4; }
.chart .dot.on { stroke: var(--ink); stroke-width: 2.5; }
"""
    + "".join(f".chart .s{n} {{ --shade: var(--s{n}); }}\n" for n in range(NUM_SHADES))
    + ".chart .best { --shade: var(--mark); }\n"
)


@dataclass(frozen=True)
class Picture:
    """The inside of an SVG, and what it shows, for those who do not see it."""

    width: float
    height: float
    body: str
    label: str

    def inline(self, kind: str = "") -> str:
        """The element for a page that has `COLORS` and `STYLE`."""
        return (
            f'<svg class="{f"chart {kind}".strip()}" viewBox="0 0 {self.width:g} {self.height:g}"'
            f' role="img" aria-label="{escape(self.label)}">{self.body}</svg>'
        )

    def file(self) -> str:
        """The content of a file of its own."""
        size = f'width="{self.width:g}" height="{self.height:g}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" {size}'
            f' viewBox="0 0 {self.width:g} {self.height:g}" role="img">\n'
            f"<title>{escape(self.label)}</title>\n<style>\n{COLORS}{STYLE}</style>\n"
            f'<rect width="100%" height="100%" style="fill: var(--ground)"/>{self.body}</svg>\n'
        )


def side_by_side(pictures: Sequence[Picture], *, columns: int, label: str) -> Picture:
    """Several pictures as one, in rows of `columns`."""
    columns = min(columns, len(pictures))
    width = max(each.width for each in pictures)
    height = max(each.height for each in pictures)
    body = "".join(
        f'<svg x="{index % columns * width:g}" y="{index // columns * height:g}"'
        f' width="{each.width:g}" height="{each.height:g}">{each.body}</svg>\n'
        for index, each in enumerate(pictures)
    )
    return Picture(columns * width, math.ceil(len(pictures) / columns) * height, body, label)


class Scale(Protocol):
    """Values of an axis as places on the picture."""

    def at(self, value: Any) -> float:  # noqa: ANN401 - whatever an axis holds
        """The place of a value."""
        ...

    def ticks(self) -> list[tuple[float, str]]:
        """Places, and what to write there."""
        ...


@dataclass(frozen=True)
class Numbers:
    """Numbers along a line; what lies outside is drawn at its end."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False
    most_ticks: int = 5

    def at(self, value: float) -> float:
        """The place of a number."""
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Round numbers within."""
        if self.is_log:
            values = self._log_ticks()
            return [(self.at(value), value_text(value)) for value in values]
        if self.high <= self.low:
            return [(self.at(self.low), value_text(self.low))]
        step = self._step()
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [index * step for index in range(first, last + 1)]
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        is_plain = step >= 1e-3 and abs(values[-1]) < 1e6
        texts = [f"{each:.{decimals}f}" if is_plain else value_text(each) for each in values]
        return [(self.at(each), said) for each, said in zip(values, texts, strict=True)]

    def _step(self) -> float:
        rough = (self.high - self.low) / self.most_ticks
        power = 10.0 ** math.floor(math.log10(rough))
        return next(each * power for each in (1, 2, 5, 10) if each * power >= 0.999 * rough)

    def _log_ticks(self) -> list[float]:
        """Of powers of ten, with 3 or with 2 and 5 between them where they are few; or the ends."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found: list[float] = []
        for digits in ((1,), (1, 3), (1, 2, 5)):
            values = [float(f"{digit}e{power}") for power in powers for digit in digits]
            found = [each for each in values if self.low <= each <= self.high]
            if len(found) > 2:
                break
        if len(found) < 2:
            return [self.low, self.high]
        return found[:: math.ceil(len(found) / (self.most_ticks + 1))]


@dataclass(frozen=True)
class Places:
    """Values side by side, as far apart from each other as there is room."""

    values: tuple[Any, ...]
    start: float
    end: float

    @property
    def spacing(self) -> float:
        """From one to the next."""
        return abs(self.end - self.start) / max(1, len(self.values))

    def at(self, value: Any) -> float:  # noqa: ANN401 - whatever an axis holds
        """The place of a value."""
        index = list(map(repr, self.values)).index(repr(value))
        return self.start + (index + 0.5) * (self.end - self.start) / len(self.values)

    def ticks(self) -> list[tuple[float, str]]:
        """All of them."""
        return [(self.at(value), value_text(value)) for value in self.values]


def value_text(value: Any) -> str:  # noqa: ANN401 - whatever an axis holds
    """A value as one writes it, numbers with three digits: 5e-5, 0.1, 4096, true, null."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if not is_number(value) or isinstance(value, int):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def shortened(content: str, width: float) -> str:
    """As much of both ends of some words as there is room for."""
    most = max(3, int(width / CHARACTER))
    half = most // 2
    return content if len(content) <= most else f"{content[: most - half - 1]}…{content[-half:]}"


def shade(value: float, low: float, high: float) -> str:
    """The class that colours a mark by its value between two others."""
    share = (min(max(value, low), high) - low) / (high - low) if high > low else 1.0
    return f"s{min(NUM_SHADES - 1, int(share * NUM_SHADES))}"


def text(
    x: float, y: float, content: str, *, anchor: str = "start", kind: str = "", degrees: float = 0
) -> str:
    """Words at a place; `anchor` says which part of them is there: start, middle, end."""
    named = f' class="{kind}"' if kind else ""
    placed = f' text-anchor="{anchor}"' if anchor != "start" else ""
    turned = f' transform="rotate({degrees:g} {x:.1f} {y:.1f})"' if degrees else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{placed}{named}{turned}>{escape(content)}</text>'


def stroke(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def dot(x: float, y: float, kind: str, label: str, *, radius: float = 4.5, more: str = "") -> str:
    """A dot that says what it is."""
    shape = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" class="dot {kind}"{more}>'
    return f"{shape}<title>{escape(label)}</title></circle>"


def path_line(path: str, kind: str, label: str, *, more: str = "") -> str:
    """A line that says what it is; a broader one that is not seen takes the pointer."""
    return (
        f'<g class="line {kind}"{more}><title>{escape(label)}</title>'
        f'<path class="hit" d="{path}"/><path class="seen" d="{path}"/></g>'
    )
