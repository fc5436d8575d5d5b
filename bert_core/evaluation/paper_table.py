"""Our figures next to the paper's, row by row: a table, its cells, and the same for JSON.

For whatever has rows and columns in the paper: a task with its metrics, an ablation with its tasks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from bert_core.evaluation.table7 import DASH, score_text


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
