"""The report renderer: a `Page` goes in; a self-contained HTML file and Markdown come out.

All text is escaped here. The page follows the reader's light or dark mode and needs no network.
"""

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from bert_core.disk import write_atomically
from bert_core.errors import one_line
from workflows.reporting.figures import SVG, Figure, svg_file, theme_css

if TYPE_CHECKING:
    from jinja2 import Environment

PAGE, MARKDOWN = "report.html", "report.md"
_TERMINAL_WIDTH = 96
_MARKUP = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)")
"""What Markdown takes for markup, besides HTML; an underscore only at the edge of a word."""


@dataclass(frozen=True)
class Cell:
    """A table cell; `order` sorts it and aligns its column to the right."""

    text: str
    order: float | None = None
    strong: bool = False

    @property
    def sort_key(self) -> str:
        """The order for the page's script; "" sorts after every number."""
        return f"{self.order:.9g}" if self.order is not None and math.isfinite(self.order) else ""


@dataclass(frozen=True)
class Row:
    """A table row; the first cell is its header.

    Everything with the same `key`, rows and marks of figures, is highlighted together.
    """

    cells: Sequence[str | Cell]
    highlighted: bool = False
    key: str = ""


@dataclass(frozen=True)
class Table:
    """A table with column headers; numeric columns align to the right."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Row]
    notes: Sequence[str] = ()

    @property
    def cells(self) -> list[list[Cell]]:
        """All cells, [rows][columns]."""
        return [[_cell(cell) for cell in row.cells] for row in self.rows]

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers."""
        columns = zip(*self.cells, strict=True) if self.rows else [()] * len(self.columns)
        return [any(cell.order is not None for cell in column) for column in columns]


@dataclass(frozen=True)
class Facts:
    """Names with values."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Code:
    """Preformatted text; with a `summary` it is folded."""

    text: str
    summary: str = ""


@dataclass(frozen=True)
class Figures:
    """Figures side by side, as many in a row as fit.

    With a `name` they are one file, NAME.svg; else each is one of its own.
    """

    figures: Sequence[Figure]
    name: str = ""
    caption: str = ""

    @property
    def names(self) -> list[str]:
        """The file names."""
        if self.name:
            return [f"{self.name}{SVG}"] if self.figures else []
        return [f"{figure.name}{figure.suffix}" for figure in self.figures]

    @property
    def files(self) -> dict[str, str]:
        """The SVG files by name."""
        if not self.figures:
            return {}
        texts = (
            [svg_file(self.figures)] if self.name else [figure.file() for figure in self.figures]
        )
        names = zip(self.names, texts, strict=True)
        return {name: text for name, text in names if name.endswith(SVG)}


Part = str | Table | Facts | Code | Figures
"""Content of a section; a string is a paragraph."""


@dataclass(frozen=True)
class Section:
    """A heading and what follows it."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Page:
    """A report: the title, one line that states the result, facts about the run, sections."""

    title: str
    verdict: str
    facts: Sequence[tuple[str, str]] = ()
    sections: Sequence[Section] = field(default_factory=tuple)

    @property
    def files(self) -> dict[str, str]:
        """The SVG files of all figures, by name."""
        parts = [part for section in self.sections for part in section.parts]
        figures = [part for part in parts if isinstance(part, Figures)]
        return {name: text for part in figures for name, text in part.files.items()}


def write_report(page: Page, folder: Path, *, outdated: Iterable[str] = ()) -> None:
    """Writes report.html, report.md and its figures, each file atomically.

    Of the names in `outdated`, files that this page does not have are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_page(page, folder)
    files = page.files
    for name, text in files.items():
        write_atomically(folder / name, text)
    for name in set(outdated) - files.keys():
        (folder / name).unlink(missing_ok=True)


def write_page(page: Page, folder: Path, name: str = "report") -> None:
    """Writes NAME.md and NAME.html, each atomically; the files of figures are the caller's."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{name}.md", markdown(page))
    write_atomically(folder / f"{name}.html", html(page))


def html(page: Page) -> str:
    """The page as one HTML file with styles, script and figures inline."""
    template = _environment().get_template("page.html.j2")
    return template.render(page=page, theme=theme_css())


def markdown(page: Page) -> str:
    """The page as Markdown that refers to its figures as files next to it."""
    lines = [f"# {markdown_text(page.title)}", f"**{markdown_text(page.verdict)}**"]
    lines += [_markdown_part(Facts(page.facts))] if page.facts else []
    for section in page.sections:
        lines.append(f"## {markdown_text(section.title)}")
        lines += [_markdown_part(part) for part in section.parts]
    return "\n\n".join(lines) + "\n"


def aligned_lines(rows: Sequence[Sequence[str]], numeric: Sequence[bool] = ()) -> list[str]:
    """The lines of a table for a terminal; all rows have as many cells.

    Columns align to the left, those that are `numeric` to the right.
    """
    columns = list(zip(*rows, strict=True))
    aligned = []
    for cells, is_numeric in zip(columns, numeric or [False] * len(columns), strict=True):
        width = max(map(len, cells))
        align = str.rjust if is_numeric else str.ljust
        aligned.append([align(cell, width) for cell in cells])
    return ["  ".join(row).rstrip() for row in zip(*aligned, strict=True)]


def terminal_table(table: Table) -> str:
    """The table and its notes for a terminal."""
    rows = [table.columns, *([cell.text for cell in row] for row in table.cells)]
    notes = [
        textwrap.fill(f"- {note}", _TERMINAL_WIDTH, subsequent_indent="  ") for note in table.notes
    ]
    return "\n".join([*aligned_lines(rows, table.numeric), "", *notes]) + "\n"


def markdown_text(text: str) -> str:
    """Escapes any text for Markdown, on one line, in a table too."""
    line = " ".join(one_line(text).split())
    return _MARKUP.sub(r"\\\g<0>", escape(line, quote=False))


def _markdown_part(part: Part) -> str:
    if isinstance(part, str):
        return markdown_text(part)
    if isinstance(part, Code):
        fence = "````" if "```" in part.text else "```"
        return f"{fence}\n{part.text.rstrip()}\n{fence}"
    if isinstance(part, Facts):
        rows = [Row([name, value]) for name, value in part.rows]
        return _markdown_table(["", ""], [[_cell(cell) for cell in row.cells] for row in rows])
    if isinstance(part, Figures):
        alts = [figure.alt for figure in part.figures]
        named = ["; ".join(alts)] if part.name and alts else alts
        images = [
            f"![{markdown_text(alt)}]({name})" for alt, name in zip(named, part.names, strict=True)
        ]
        captions = [part.caption, *(figure.caption for figure in part.figures)]
        return "\n\n".join([*images, *map(markdown_text, filter(None, captions))])
    table = _markdown_table(part.columns, part.cells, part.numeric)
    notes = "\n".join(f"- {markdown_text(note)}" for note in part.notes)
    return "\n\n".join(filter(None, [table, notes]))


def _markdown_table(
    columns: Sequence[str], rows: Iterable[Sequence[Cell]], numeric: Sequence[bool] = ()
) -> str:
    ruler = [("--:" if right else "---") for right in numeric or [False] * len(columns)]
    lines = [f"| {' | '.join(map(markdown_text, columns))} |", f"|{'|'.join(ruler)}|"]
    for row in rows:
        cells = [(markdown_text(cell.text), cell.strong) for cell in row]
        marked = [f"**{text}**" if strong and text else text for text, strong in cells]
        lines.append(f"| {' | '.join(marked)} |")
    return "\n".join(lines)


def _cell(content: str | Cell) -> Cell:
    return content if isinstance(content, Cell) else Cell(content)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("workflows.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["printable"] = one_line
    environment.tests["kind"] = lambda part, name: type(part).__name__ == name
    return environment
