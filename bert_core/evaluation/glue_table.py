"""The GLUE table: our figures beside the rows of Devlin et al. 2018, table 1.

Scores of models go in; a table as Markdown, HTML or JSON comes out.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from bert_core.evaluation.bootstrap import Interval

DASH = "–"


@dataclass(frozen=True)
class Column:
    """A column of the table: the task, the name of its metric, and what people call it."""

    task: str
    metric: str
    metric_title: str
    title: str


COLUMNS: dict[str, Column] = {
    "mnli": Column("mnli", "accuracy", "accuracy", "MNLI-m"),
    "mnli_mm": Column("mnli", "accuracy", "accuracy", "MNLI-mm"),
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
class Row:
    """A model's figures by column, in points (0..100), and what they were measured on."""

    name: str
    measured_on: str
    figures: Mapping[str, Interval | float]

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
    def notes(self) -> list[str]:
        """What a reader has to know to compare the rows."""
        titles = ", ".join(COLUMNS[name].title for name in self.averaged)
        over = f"over {len(self.averaged)} of 9 columns ({titles})"
        notes = [
            "Rows of Devlin et al. 2018 (table 1): test sets, scored by the GLUE server. Other"
            " rows: dev sets, whose figures are usually a little higher than those of the test"
            " sets, all the more where the best epoch was chosen on them.",
            "Points, 0–100. A dash: no data, or no model. WNLI is left out, as in the paper.",
            f"Averages: the plain mean {over}, in every row, so that rows can be compared; MNLI-m"
            " and MNLI-mm count as two. Over all nine the paper has "
            + " and ".join(f"{value} ({name})" for name, value in PAPER_AVERAGES.items())
            + ".",
        ]
        if any(isinstance(each, Interval) for row in self.rows for each in row.figures.values()):
            notes.append("In brackets: 95 % bootstrap intervals over the examples of the dev set.")
        return notes


def glue_table(ours: Mapping[str, Mapping[str, Interval | float]]) -> GlueTable:
    """The paper's rows and ours.

    `ours` has, by the name of a row, the figures by column (a key of COLUMNS) as `Task.metrics`
    gives them, in 0..1; a column that is left out gets a dash. Averages are taken over the columns
    that all of the rows have.
    """
    rows = [Row(name, "dev", _in_points(figures)) for name, figures in ours.items()]
    averaged = tuple(name for name in COLUMNS if all(name in row.figures for row in rows))
    return GlueTable((*PAPER_ROWS, *rows), averaged)


def markdown_table(table: GlueTable) -> str:
    """The table and its notes in Markdown."""
    titles = ["", "set", *(column.title for column in COLUMNS.values()), "average"]
    metrics = ["", "", *(column.metric_title for column in COLUMNS.values()), ""]
    lines = [_line(titles), "|---|---|" + "--:|" * (len(COLUMNS) + 1), _line(metrics)]
    for row in table.rows:
        cells = [" ".join(filter(None, _cell(row.figures.get(name)))) for name in COLUMNS]
        name = row.name.replace("|", "\\|")
        lines.append(_line([name, row.measured_on, *cells, _cell(row.average(table.averaged))[0]]))
    return "\n".join([*lines, "", *(f"- {note}" for note in table.notes)]) + "\n"


def html_table(table: GlueTable) -> str:
    """The table and its notes as a page of its own that needs nothing else; light and dark."""
    heads = "".join(
        f'<th scope="col">{escape(column.title)}<small>{escape(column.metric_title)}</small></th>'
        for column in COLUMNS.values()
    )
    rows = "\n".join(_html_row(row, table.averaged) for row in table.rows)
    notes = "\n".join(f"<li>{escape(note)}</li>" for note in table.notes)
    return _PAGE.format(heads=heads, rows=rows, notes=notes, average=len(table.averaged))


def json_table(table: GlueTable) -> str:
    """The table as JSON: columns, rows with values and intervals, averages, notes."""
    rows = [
        {
            "name": row.name,
            "measured_on": row.measured_on,
            "figures": {name: _json_figure(row.figures.get(name)) for name in COLUMNS},
            "average": row.average(table.averaged),
            "average_of_all_columns": PAPER_AVERAGES.get(row.name) if row in PAPER_ROWS else None,
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


def _in_points(figures: Mapping[str, Interval | float]) -> dict[str, Interval | float]:
    unknown = sorted(set(figures) - set(COLUMNS))
    if unknown:
        raise ValueError(f"not among the columns {', '.join(COLUMNS)}: {', '.join(unknown)}")
    return {
        name: Interval(100 * each.value, 100 * each.low, 100 * each.high)
        if isinstance(each, Interval)
        else 100 * each
        for name, each in figures.items()
    }


def _value(figure: Interval | float) -> float:
    return figure.value if isinstance(figure, Interval) else figure


def _cell(figure: Interval | float | None) -> tuple[str, str]:
    """A figure, and its interval, empty where there is none."""
    if figure is None:
        return DASH, ""
    if isinstance(figure, Interval):
        return f"{figure.value:.1f}", f"({figure.low:.1f}–{figure.high:.1f})"
    return f"{figure:.1f}", ""


def _json_figure(figure: Interval | float | None) -> dict[str, float] | None:
    if figure is None:
        return None
    if isinstance(figure, Interval):
        return {"value": figure.value, "low": figure.low, "high": figure.high}
    return {"value": figure}


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _html_row(row: Row, averaged: Sequence[str]) -> str:
    cells = []
    for name in COLUMNS:
        value, interval = _cell(row.figures.get(name))
        small = f"<small>{interval}</small>" if interval else ""
        cells.append(f"<td>{value}{small}</td>")
    average = _cell(row.average(averaged))[0]
    kind = ' class="paper"' if row in PAPER_ROWS else ""
    head = f'<th scope="row">{escape(row.name)}<small>{escape(row.measured_on)} sets</small></th>'
    return f'<tr{kind}>{head}{"".join(cells)}<td class="average">{average}</td></tr>'


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>GLUE</title>
<style>
:root {{ --ink: #1f2937; --quiet: #6b7280; --line: #e5e7eb; --ground: #fff; --ours: #eef4fb; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e5e7eb; --quiet: #9ca3af; --line: #374151; --ground: #111827; --ours: #1e2b3d; }}
}}
body {{ margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: var(--ink);
  background: var(--ground); font: 16px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.4rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .5rem .6rem; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--line); white-space: nowrap; }}
th:first-child {{ text-align: left; white-space: normal; }}
thead th {{ border-bottom: 2px solid var(--quiet); }}
tbody tr:not(.paper) {{ background: var(--ours); }}
small {{ display: block; color: var(--quiet); font-weight: normal; font-size: .75rem; }}
.average {{ font-weight: bold; }}
li {{ color: var(--quiet); font-size: .875rem; margin: .25rem 0; }}
</style>
</head>
<body>
<h1>GLUE</h1>
<div class="wide"><table>
<thead><tr><th scope="col">model</th>{heads}<th scope="col">average<small>of {average}</small></th>
</tr></thead>
<tbody>
{rows}
</tbody>
</table></div>
<ul>
{notes}
</ul>
</body>
</html>
"""
