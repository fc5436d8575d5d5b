"""The report of a sweep as a page: findings go in; HTML that needs nothing else comes out."""

import math
from collections.abc import Sequence
from html import escape

from workflows.paper.paper_table import PaperTable, html_paper_table
from workflows.report_parts import (
    named_rows,
    notes,
    page,
    paragraphs,
    section,
    troubles_table,
    unbroken,
)
from workflows.sweeps.cells import Cell, costs, point_table, troubles
from workflows.sweeps.findings import BEST, PointFound, SweepFindings
from workflows.sweeps.parallel import parallel_picture
from workflows.sweeps.pictures import (
    CURVES,
    axis_picture,
    curve_picture,
    importance_picture,
)
from workflows.sweeps.words import (
    CURVES_WORDS,
    counts,
    described,
    dots_words,
    headline,
    importance_words,
    lines_words,
    method,
    paper_words,
    verdict,
)


def sweep_page(findings: SweepFindings, tables: Sequence[PaperTable], best_yaml: str) -> str:
    """The whole page, light and dark, wide and narrow; `best_yaml` is empty where there is none."""
    outcome = findings.outcome
    sections = [_best(findings, best_yaml)]
    sections += [section(table.title, html_paper_table(table)) for table in tables]
    sections.append(section("All settings", _points(findings)))
    if findings.points:
        sections += [
            section("Values and scores", _parallel(findings)),
            section("Each axis", _axes(findings)),
        ]
    if findings.has_importances:
        sections.append(section("What matters", _importance(findings)))
    if any(each.curve for each in outcome.trials):
        sections.append(section("Learning curves", _curves(findings)))
    sections.append(section("Cost", named_rows(costs(findings))))
    if troubles(findings):
        sections.append(section("Failed and missing", troubles_table(troubles(findings))))
    about = [described(findings), f"{counts(findings)}."]
    return page(f"Sweep {outcome.name}", about, sections, _SCRIPT)


def _best(findings: SweepFindings, best_yaml: str) -> str:
    setting = f'<p class="headline">{unbroken(headline(findings))}</p>'
    words = paragraphs(verdict(findings))
    again = ""
    if findings.best_trial is not None:
        again = (
            f'<pre class="command">{escape(findings.command)}</pre>\n'
            f"<p>trains it again (say where data and encoder lie), with the seed of its best "
            f"trial, the run <code>{escape(findings.best_trial.name)}</code>. {BEST} lies beside "
            "this page.</p>\n"
            f"<details><summary>{BEST}</summary><pre>{escape(best_yaml)}</pre></details>"
        )
    return (
        f'<section class="best">\n<h2>The best setting</h2>\n{setting}\n{words}\n{again}\n'
        f"</section>\n{paragraphs(list(filter(None, [paper_words(findings)])))}"
    )


def _points(findings: SweepFindings) -> str:
    heads, rows = point_table(findings)
    columns = list(zip(*(cells for _, cells in rows), strict=True))
    numeric = [any(cell.is_number for cell in column) for column in columns]
    head = "".join(
        f'<th scope="col"{_side(number)}>{escape(each)}</th>'
        for each, number in zip(heads, numeric or [True] * len(heads), strict=True)
    )
    lines = [
        f"<tr{_row_kind(point)}>"
        + "".join(_cell(cell, number) for cell, number in zip(cells, numeric, strict=True))
        + "</tr>"
        for point, cells in rows
    ]
    table = (
        f'<div class="wide"><table class="points"><thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table></div>"
    )
    return table + "\n" + notes(method(findings))


def _row_kind(point: PointFound) -> str:
    if not point.scored:
        return ' class="missing"'
    kind = ' class="ours"' if point.rank == 1 or point.is_level else ""
    return f'{kind} data-point="{point.rank}"'


def _cell(cell: Cell, is_number: bool) -> str:
    """A cell; what has no place in the order comes after all that has."""
    order = ""
    if cell.order is not None and math.isfinite(cell.order):
        order = f' data-order="{cell.order:.9g}"'
    return f"<td{_side(is_number)}{order}>{escape(cell.text)}</td>"


def _side(is_number: bool) -> str:
    return "" if is_number else ' class="words"'


def _parallel(findings: SweepFindings) -> str:
    wide = parallel_picture(findings, upright=True).inline("if-wide")
    narrow = parallel_picture(findings, upright=False).inline("if-narrow")
    return f"{paragraphs([lines_words(findings)])}\n{wide}\n{narrow}"


def _axes(findings: SweepFindings) -> str:
    panels = [axis_picture(findings, axis).inline() for axis in findings.outcome.axes]
    said = paragraphs([dots_words(findings)])
    return f'{said}\n<div class="panels">{"".join(panels)}</div>'


def _importance(findings: SweepFindings) -> str:
    picture = importance_picture(findings).inline("bars")
    return f"{picture}\n{notes(importance_words(findings))}"


def _curves(findings: SweepFindings) -> str:
    panels = [curve_picture(findings, field).inline() for field in CURVES]
    return f'{paragraphs([CURVES_WORDS])}\n<div class="panels">{"".join(panels)}</div>'


_SCRIPT = """\
const mark = (event, on) => {
  const chosen = event.target.closest("[data-point]");
  if (!chosen) return;
  document.querySelectorAll(`[data-point="${chosen.dataset.point}"]`)
    .forEach(each => each.classList.toggle("on", on));
};
document.addEventListener("mouseover", event => mark(event, true));
document.addEventListener("mouseout", event => mark(event, false));
for (const head of document.querySelectorAll(".points thead th")) {
  const button = document.createElement("button");
  button.textContent = head.textContent;
  head.replaceChildren(button);
  button.addEventListener("click", () => {
    const down = head.ariaSort === "ascending";
    for (const each of head.parentNode.children) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = head.closest("table").tBodies[0], column = head.cellIndex;
    const words = head.classList.contains("words");
    const compare = (a, b) => {
      const [x, y] = [a.cells[column], b.cells[column]];
      if (words) return x.textContent.localeCompare(y.textContent);
      return (x.dataset.order ?? -Number.MAX_VALUE) - (y.dataset.order ?? -Number.MAX_VALUE);
    };
    const rows = [...body.rows].sort((a, b) => (down ? -1 : 1) * compare(a, b));
    body.append(...rows);
  });
}
"""
