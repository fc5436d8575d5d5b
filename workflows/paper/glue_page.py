"""The GLUE table as a page: a table goes in; HTML that needs nothing else comes out."""

from html import escape

from workflows.paper.glue import (
    BEHIND,
    GlueTable,
    Row,
    average,
    behind_cells,
    figure_text,
)
from workflows.paper.paper_table import DASH
from workflows.paper.published import COLUMNS


def html_page(table: GlueTable) -> str:
    """The table, its notes and what is behind our figures; light and dark, wide and narrow."""
    heads = "".join(
        f'<th scope="col">{escape(column.title)}<small>{escape(column.metric_title)}</small></th>'
        for column in COLUMNS.values()
    )
    return _PAGE.format(
        heads=heads,
        num_averaged=len(table.averaged),
        num_cells=len(COLUMNS) + 2,
        rows="\n".join(_row(table, row) for row in table.rows),
        notes="\n".join(f"<li>{escape(note)}</li>" for note in table.notes),
        behind="\n".join(_behind(row) for row in table.ours),
    )


def _row(table: GlueTable, row: Row) -> str:
    cells = []
    for name in COLUMNS:
        value, interval = figure_text(row.figures.get(name))
        small = f"<small>{interval}</small>" if interval else ""
        cells.append(f"<td>{value}{small}</td>")
    kind = ' class="ours"' if row in table.ours else ""
    sets = f"{row.measured_on} sets"
    head = f'<th scope="row">{escape(row.name)}<small>{escape(sets)}</small></th>'
    return f'<tr{kind}>{head}{"".join(cells)}<td class="average">{average(table, row)}</td></tr>'


def _behind(row: Row) -> str:
    heads = "".join(f'<th scope="col">{title}</th>' for title in BEHIND)
    lines = []
    for title, *cells in behind_cells(row):
        rest = "".join(f"<td>{escape(each)}</td>" for each in cells)
        kind = ' class="missing"' if cells[0].startswith(DASH) else ""
        lines.append(f'<tr{kind}><th scope="row">{escape(title)}</th>{rest}</tr>')
    return (
        f"<h2>Behind the figures of {escape(row.name)}</h2>\n"
        f'<div class="wide"><table class="behind"><thead><tr>{heads}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table></div>"
    )


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
body {{ margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: var(--ink);
  background: var(--ground); font: 16px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.4rem; }}
h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .5rem .6rem; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--line); white-space: nowrap; }}
thead th {{ border-bottom: 2px solid var(--quiet); }}
th:first-child {{ text-align: left; white-space: normal; overflow-wrap: anywhere; }}
small {{ display: block; color: var(--quiet); font-weight: normal; font-size: .75rem; }}
.figures {{ width: 100%; }}
.figures td {{ width: 8.2%; }}
.figures th:first-child {{ min-width: 8rem; }}
.figures .ours > * {{ background: var(--ours); }}
.figures .average {{ font-weight: bold; }}
.behind {{ font-size: .875rem; }}
.behind th, .behind td {{ padding: .25rem .8rem .25rem 0; }}
.behind thead th {{ white-space: normal; }}
.behind tbody th {{ font-weight: normal; white-space: nowrap; }}
.behind tr > :nth-child(2) {{ min-width: 5rem; text-align: left; white-space: normal;
  overflow-wrap: anywhere; }}
.behind .missing {{ color: var(--quiet); }}
ul {{ padding-left: 1.2rem; }}
li {{ color: var(--quiet); font-size: .875rem; margin: .25rem 0; max-width: 60rem; }}
@media (max-width: 78rem) {{ /* rows become columns */
  .figures {{ display: grid; grid-auto-flow: column; grid-template-rows: repeat({num_cells}, auto);
    width: fit-content; }}
  .figures thead, .figures tbody, .figures tr {{ display: contents; }}
  .figures th:first-child {{ min-width: 0; }}
  .figures td {{ width: auto; }}
  .figures thead th {{ border-bottom: 1px solid var(--line); text-align: left; }}
  .figures th:first-child {{ border-bottom: 2px solid var(--quiet); }}
  .figures tbody th {{ text-align: right; }}
}}
@media (max-width: 30rem) {{
  th, td {{ padding: .4rem .3rem; }}
  .behind th, .behind td {{ padding-right: .4rem; }}
}}
</style>
</head>
<body>
<h1>GLUE</h1>
<div class="wide"><table class="figures">
<thead><tr><th scope="col">model</th>{heads}
<th scope="col">average<small>of {num_averaged}</small></th></tr></thead>
<tbody>
{rows}
</tbody>
</table></div>
<ul>
{notes}
</ul>
{behind}
</body>
</html>
"""
