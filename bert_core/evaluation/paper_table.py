"""Our figures beside the paper's, row by row: a table as Markdown, HTML or for JSON.

For whatever has rows and columns in the paper: a task with its metrics, an ablation with its tasks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from statistics import fmean
from typing import Any

from bert_core.evaluation.table7 import DASH, score_text
from bert_core.evaluation.table_text import markdown_line


@dataclass(frozen=True)
class PaperRow:
    """A row: what our seeds reached and what the paper has, by column, in points (0..100)."""

    name: str
    ours: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperTable:
    """Rows of figures by column, ours and the paper's, and what has to be known to compare them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    notes: tuple[str, ...] = ()


OURS, PAPERS = "ours", "paper"
"""The two halves of a column."""
_OWN = ' class="own"'


def halves(table: PaperTable, column: str) -> tuple[str, ...]:
    """Which halves a column has: one alone where the other has no figure in any row.

    Both where nothing of ours is measured yet.
    """
    ours = any(row.ours.get(column) for row in table.rows)
    papers = any(column in row.paper for row in table.rows)
    if ours == papers or not any(any(row.ours.values()) for row in table.rows):
        return OURS, PAPERS
    return (OURS,) if ours else (PAPERS,)


def paper_cell(row: PaperRow, column: str, half: str) -> str:
    """Ours, with a deviation where there are several seeds, or the paper's; a dash for none."""
    if half == OURS:
        return score_text(row.ours.get(column, ()))
    paper = row.paper.get(column)
    return DASH if paper is None else f"{paper:.1f}"


def _layout(table: PaperTable) -> list[tuple[str, str]]:
    """The columns with their halves, from left to right."""
    return [(column, half) for column in table.columns for half in halves(table, column)]


def markdown_paper_table(table: PaperTable) -> str:
    """The table and its notes, without the title."""
    whose = {OURS: "ours", PAPERS: "the paper's"}
    layout = _layout(table)
    head = [f"{column}, {whose[half]}" for column, half in layout]
    lines = [markdown_line(["", *head]), "|---|" + "--:|" * len(head)]
    for row in table.rows:
        cells = [paper_cell(row, column, half) for column, half in layout]
        lines.append(markdown_line([row.name, *cells]))
    return "\n".join([*lines, "", *(f"- {note}" for note in table.notes)]).rstrip()


def html_paper_table(table: PaperTable) -> str:
    """The table, in a box that scrolls, and its notes, without the title."""
    layout = _layout(table)
    over = "".join(
        f'<th scope="colgroup" colspan="{len(halves(table, column))}">{escape(column)}</th>'
        for column in table.columns
    )
    under = "".join(f'<th scope="col">{half}</th>' for _, half in layout)
    lines = []
    for row in table.rows:
        cells = "".join(
            f"<td{_OWN if half == OURS else ''}>{paper_cell(row, column, half)}</td>"
            for column, half in layout
        )
        lines.append(f'<tr><th scope="row">{escape(row.name)}</th>{cells}</tr>')
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    return (
        '<div class="wide"><table class="paper"><thead>'
        f'<tr><th rowspan="2"></th>{over}</tr><tr>{under}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + f"\n</tbody></table></div>\n<ul>{notes}</ul>"
    )


def json_paper_table(table: PaperTable) -> dict[str, Any]:
    """What stands in the table, for JSON, with our means."""
    rows = [
        {
            "name": row.name,
            "ours": {name: list(scores) for name, scores in row.ours.items()},
            "ours_mean": {name: fmean(scores) for name, scores in row.ours.items() if scores},
            "paper": dict(row.paper),
        }
        for row in table.rows
    ]
    return {"title": table.title, "unit": "points, 0-100", "rows": rows, "notes": table.notes}
