"""Tables of our figures next to the paper's, for reports and JSON.

Rows and columns are those of the paper: a task with its metrics, an ablation with its tasks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, mean, stdev
from typing import Any

from workflows.paper.published import Published, published
from workflows.reporting.render import Cell, Row, Table

DASH = "–"
_TITLES = {"f1": "F1", "matthews": "Matthews", "pearson": "Pearson", "spearman": "Spearman"}


@dataclass(frozen=True)
class PaperRow:
    """A row: scores of our seeds and the paper's figure by column, in points (0..100)."""

    name: str
    ours: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperTable:
    """Rows of figures by column, ours and the paper's, with notes on how to compare them."""

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


def report_table(table: PaperTable, rows_are: str = "figures") -> Table:
    """The table for a report, the halves of each column side by side; `rows_are` heads names."""
    layout = [(column, half) for column in table.columns for half in halves(table, column)]
    rows = []
    for row in table.rows:
        texts = [paper_cell(row, column, half) for column, half in layout]
        # Also a dash has an order, so that columns without any figure align to the right.
        cells = [Cell(text, 0.0 if text == DASH else float(text.split()[0])) for text in texts]
        rows.append(Row([row.name, *cells]))
    heads = [f"{column}, {half}" for column, half in layout]
    return Table(f"{table.title}, in points (0 to 100)", [rows_are, *heads], rows, table.notes)


def json_paper_table(table: PaperTable) -> dict[str, Any]:
    """The table for JSON, with our means."""
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


def beside_published(
    task: str, figures: Mapping[str, Sequence[float]], *, criterion: str, num_dev: int
) -> PaperTable | None:
    """Our dev figures next to the paper's; None for a task that is not in the paper.

    `figures` are those of each seed by metric, in 0..1; `criterion` is the one that decided.
    """
    found = published(task)
    if not found:
        return None
    metrics = list(dict.fromkeys(name for each in found for name in each.figures))
    rows = tuple(
        PaperRow(
            each.name,
            {
                metric_title(name): tuple(100 * value for value in figures.get(name, ()))
                for name in each.figures
            },
            {metric_title(name): points for name, points in each.figures.items()},
        )
        for each in found
    )
    columns = tuple(map(metric_title, metrics))
    notes = (*_notes(found, criterion), *_of_few_examples(figures.get("accuracy", ()), num_dev))
    return PaperTable("Beside the paper", columns, rows, notes)


def metric_title(name: str) -> str:
    """The usual spelling of a metric."""
    return _TITLES.get(name, name.replace("_", " "))


def _notes(found: Sequence[Published], criterion: str) -> list[str]:
    notes = [
        "In points. Ours are of the dev set, mean ± standard deviation over the seeds of the best"
        " setting; this dev set also chose setting and epoch, which flatters them a little.",
        "The paper's encoders are 12 layers of 768 and 24 of 1024, pre-trained on 3.3 billion"
        " words: a smaller encoder is not expected to reach them.",
    ]
    splits = {each.split for each in found}
    if "dev" not in splits:
        notes.append(
            "The paper has no dev figure for this task: these are of the test set, scored by the"
            " GLUE server, and not the same examples."
        )
    elif "test" in splits:
        notes.append("Figures of the test set are of other examples: they are no like for like.")
    on_dev = {name for each in found if each.split == "dev" for name in each.figures}
    if on_dev and criterion not in on_dev:
        notes.append(
            f"On dev the paper has {' and '.join(map(metric_title, sorted(on_dev)))}, so that is"
            f" what compares; here {metric_title(criterion)} chose setting and epoch."
        )
    if any(each.table == 6 for each in found):
        notes.append("Table 6 has averages of five restarts, as the paper says.")
    return notes


def _of_few_examples(accuracy: Sequence[float], num_dev: int) -> list[str]:
    """How far an accuracy may be off by the choice of examples alone."""
    if not accuracy or not num_dev:
        return []
    mean = fmean(accuracy)
    reach = 196 * (mean * (1 - mean) / num_dev) ** 0.5
    return [
        f"On {num_dev:,} dev examples an accuracy of {100 * mean:.1f} has by itself a 95 %"
        f" interval of ±{reach:.1f} points."
    ]


def score_text(scores: Sequence[float]) -> str:
    """Mean and standard deviation: `95.12 ± 0.10`; of one seed the figure alone."""
    if not scores:
        return DASH
    if len(scores) == 1:
        return f"{scores[0]:.2f}"
    return f"{mean(scores):.2f} ± {stdev(scores):.2f}"
