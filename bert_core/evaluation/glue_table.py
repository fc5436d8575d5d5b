"""The GLUE table: our figures beside the rows of Devlin et al. 2018, table 1.

What models reached on the tasks goes in; a table as text, Markdown or JSON comes out (as HTML from
`bert_core.evaluation.glue_page`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bert_core.evaluation.bootstrap import Interval
from bert_core.evaluation.table_text import aligned_table, markdown_line

DASH = "–"


@dataclass(frozen=True)
class Column:
    """A column of the table: the task, the name of its metric, what people call them, the file."""

    task: str
    metric: str
    metric_title: str
    title: str
    split: str = "dev"


COLUMNS: dict[str, Column] = {
    "mnli": Column("mnli", "accuracy", "accuracy", "MNLI-m", "dev_matched"),
    "mnli_mm": Column("mnli", "accuracy", "accuracy", "MNLI-mm", "dev_mismatched"),
    "qqp": Column("qqp", "f1", "F1", "QQP"),
    "qnli": Column("qnli", "accuracy", "accuracy", "QNLI"),
    "sst2": Column("sst2", "accuracy", "accuracy", "SST-2"),
    "cola": Column("cola", "matthews", "Matthews", "CoLA"),
    "stsb": Column("stsb", "spearman", "Spearman", "STS-B"),
    "mrpc": Column("mrpc", "f1", "F1", "MRPC"),
    "rte": Column("rte", "accuracy", "accuracy", "RTE"),
}
"""As the paper has them, in its order; WNLI is none of them (section 4.1)."""

_ORDER = tuple(COLUMNS)
_BASE = (84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4)
_LARGE = (86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1)

PAPER_AVERAGES = {"BERT base": 79.6, "BERT large": 82.1}
"""As printed: the plain mean of the nine figures, in which both of MNLI's count."""


@dataclass(frozen=True)
class Measured:
    """What a model reached on a dev set, in 0..1; it is the best of `num_models` there."""

    figure: Interval
    model: str
    num_examples: int
    num_truncated: int
    num_models: int = 1


@dataclass(frozen=True)
class Row:
    """Figures by column, in points (0..100), and what they were measured on.

    `behind` says by column what is behind a figure, or why there is none.
    """

    name: str
    measured_on: str
    figures: Mapping[str, Interval | float]
    behind: Mapping[str, Measured | str] = field(default_factory=dict)

    def average(self, columns: Sequence[str]) -> float | None:
        """The mean over these columns; None of none."""
        if not columns:
            return None
        return sum(_value(self.figures[name]) for name in columns) / len(columns)


PAPER_ROWS = (
    Row("BERT base", "test", dict(zip(_ORDER, _BASE, strict=True))),
    Row("BERT large", "test", dict(zip(_ORDER, _LARGE, strict=True))),
)


@dataclass(frozen=True)
class GlueTable:
    """The rows of the table; `averaged` are the columns that all of them have."""

    rows: tuple[Row, ...]
    averaged: tuple[str, ...]

    @property
    def ours(self) -> tuple[Row, ...]:
        """The rows that are not the paper's."""
        return self.rows[len(PAPER_ROWS) :]

    @property
    def notes(self) -> list[str]:
        """What a reader has to know to compare the rows."""
        paper = " and ".join(f"{value} ({name})" for name, value in PAPER_AVERAGES.items())
        titles = ", ".join(COLUMNS[name].title for name in self.averaged)
        averages = (
            f"Averages: the plain mean over {len(self.averaged)} of 9 columns ({titles}), in every"
            " row, so that rows can be compared."
            if self.averaged
            else "No averages: no column is in every row."
        )
        notes = [
            "Rows of Devlin et al. 2018 (table 1): test sets, scored by the GLUE server. Other"
            " rows: dev sets, whose figures are usually a little higher than those of the test"
            " sets, all the more where the best epoch was chosen on them.",
            f"Points, 0{DASH}100. A dash: no data, or no model. WNLI is left out, as in the paper.",
            f"{averages} Over all nine, MNLI-m and MNLI-mm as two, the paper has {paper}.",
            "In brackets: 95 % bootstrap intervals over the examples of the dev set.",
        ]
        measured = [each for row in self.ours for each in row.behind.values()]
        if any(isinstance(each, Measured) and each.num_models > 1 for each in measured):
            notes.append(
                "Of several models of a task the one that does best on the same dev set (MNLI: the"
                " matched one) stands here, which flatters its figure."
            )
        return notes


def glue_table(ours: Mapping[str, Mapping[str, Measured | str]]) -> GlueTable:
    """The paper's rows and ours.

    `ours` has, by the name of a row, what was measured by column (a key of COLUMNS), or the reason
    for a dash; a column that is left out gets a dash too. Averages are taken over the columns that
    all of the rows have.
    """
    rows = [
        Row(name, "dev", {key: in_points(found) for key, found in _figures(behind)}, behind)
        for name, behind in ours.items()
    ]
    averaged = tuple(name for name in COLUMNS if all(name in row.figures for row in rows))
    return GlueTable((*PAPER_ROWS, *rows), averaged)


def text_table(table: GlueTable) -> str:
    """The table, a line for each column of the paper's, and its notes; for a terminal."""
    lines = [
        ["", "", *(row.name for row in table.rows)],
        ["", "", *(row.measured_on for row in table.rows)],
        *(
            [column.title, column.metric_title, *(cell(row, name) for row in table.rows)]
            for name, column in COLUMNS.items()
        ),
        ["average", f"of {len(table.averaged)}", *(average(table, row) for row in table.rows)],
    ]
    return aligned_table(lines, table.notes)


def markdown_table(table: GlueTable) -> str:
    """The table, its notes, and what is behind our figures, in Markdown."""
    columns = COLUMNS.values()
    lines = [
        "# GLUE\n",
        markdown_line(["", "set", *(column.title for column in columns), "average"]),
        "|---|---|" + "--:|" * (len(COLUMNS) + 1),
        markdown_line(
            ["", "", *(each.metric_title for each in columns), f"of {len(table.averaged)}"]
        ),
    ]
    for row in table.rows:
        cells = [cell(row, name) for name in COLUMNS]
        lines.append(markdown_line([row.name, row.measured_on, *cells, average(table, row)]))
    lines += ["", *(f"- {note}" for note in table.notes)]
    for row in table.ours:
        lines += [
            f"\n## Behind the figures of {row.name}\n",
            markdown_line(BEHIND),
            "|---|---|--:|--:|",
        ]
        lines += [markdown_line(cells) for cells in behind_cells(row)]
    return "\n".join(lines) + "\n"


def json_table(table: GlueTable) -> str:
    """The table as JSON: columns, rows with values and intervals, averages, notes."""
    rows = [
        {
            "name": row.name,
            "measured_on": row.measured_on,
            "figures": {name: _json_figure(row, name) for name in COLUMNS},
            "average": row.average(table.averaged),
            "average_of_all_columns": PAPER_AVERAGES.get(row.name) if row in PAPER_ROWS else None,
            "missing": {name: why for name, why in row.behind.items() if isinstance(why, str)},
        }
        for row in table.rows
    ]
    columns = {
        name: {"title": column.title, "metric": column.metric} for name, column in COLUMNS.items()
    }
    content = {
        "unit": "points, 0-100",
        "columns": columns,
        "rows": rows,
        "averaged_columns": table.averaged,
        "notes": table.notes,
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


BEHIND = ("", "model", "dev examples", "truncated")
"""The titles over `behind_cells`."""


def behind_cells(row: Row) -> list[tuple[str, str, str, str]]:
    """For each column its title, the model or why there is none, its examples, those truncated."""
    cells = []
    for name, column in COLUMNS.items():
        found = row.behind.get(name, "")
        if isinstance(found, str):
            cells.append((column.title, f"{DASH} {found}".rstrip(), "", ""))
            continue
        best = f" (best of {found.num_models})" if found.num_models > 1 else ""
        counts = f"{found.num_examples:,}", f"{found.num_truncated:,}"
        cells.append((column.title, found.model + best, *counts))
    return cells


def cell(row: Row, column: str) -> str:
    """A row's figure and its interval, or a dash."""
    return in_words(row.figures.get(column))


def in_words(figure: Interval | float | None) -> str:
    """A figure in points with its interval, or a dash."""
    return " ".join(filter(None, figure_text(figure)))


def average(table: GlueTable, row: Row) -> str:
    """The row's average over the columns that all rows have, or a dash."""
    return figure_text(row.average(table.averaged))[0]


def figure_text(figure: Interval | float | None) -> tuple[str, str]:
    """A figure in points, and its interval, empty where there is none that says anything."""
    if figure is None:
        return DASH, ""
    if isinstance(figure, Interval) and not figure.is_degenerate:
        return f"{figure.value:.1f}", f"({figure.low:.1f} to {figure.high:.1f})"
    return f"{_value(figure):.1f}", ""


def _figures(behind: Mapping[str, Measured | str]) -> list[tuple[str, Interval]]:
    unknown = sorted(set(behind) - set(COLUMNS))
    if unknown:
        raise ValueError(f"not among the columns {', '.join(COLUMNS)}: {', '.join(unknown)}")
    return [(name, each.figure) for name, each in behind.items() if isinstance(each, Measured)]


def in_points(figure: Interval) -> Interval:
    """A figure of 0..1 in points, as people write it."""
    return Interval(100 * figure.value, 100 * figure.low, 100 * figure.high)


def _value(figure: Interval | float) -> float:
    return figure.value if isinstance(figure, Interval) else figure


def _json_figure(row: Row, name: str) -> dict[str, Any] | None:
    figure, behind = row.figures.get(name), row.behind.get(name)
    if figure is None:
        return None
    if not isinstance(figure, Interval) or not isinstance(behind, Measured):
        return {"value": figure}
    details = {key: value for key, value in vars(behind).items() if key != "figure"}
    return {**vars(figure), **details}
