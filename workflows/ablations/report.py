"""The report of an ablation: its outcome goes in; a page, Markdown with pictures, JSON come out."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from workflows.ablations.findings import AblationFindings, ablation_findings
from workflows.ablations.outcome import AblationOutcome
from workflows.ablations.pictures import curve_pictures, score_picture
from workflows.ablations.studies import find_study
from workflows.ablations.words import (
    MISSING,
    costs,
    counts,
    described,
    difference_table,
    difference_words,
    method,
    pretraining_table,
    pretraining_words,
    troubles,
    verdict,
)
from workflows.paper.paper_table import html_paper_table, json_paper_table, markdown_paper_table
from workflows.report_parts import (
    TROUBLE_HEADS,
    finite,
    markdown_list,
    markdown_table,
    named_rows,
    notes,
    page,
    paragraphs,
    plain,
    section,
    troubles_table,
)
from workflows.runs.folder import write_atomically
from workflows.runs.tracker import without_machine_paths
from workflows.vector_charts import Picture, side_by_side

PAGE, REPORT, DATA = "report.html", "report.md", "report.json"
SCORES, CURVES = "scores.svg", "pretraining.svg"
PICTURES = (SCORES, CURVES)

SCORES_WORDS = (
    "A dot for each seed; the bar is the mean, the band a standard deviation to each side. The "
    "paper's choice is red, and so is its mean in the other rows."
)


def write_ablation_report(outcome: AblationOutcome, folder: Path) -> AblationFindings:
    """Writes report.html, report.md with its pictures and report.json into a folder.

    Each file is written whole or not at all; a picture of which there is nothing yet is removed.
    """
    findings = ablation_findings(outcome)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {name: each.file() for name, each in pictures(findings)}
    for name in PICTURES:
        if name in drawn:
            write_atomically(folder / name, drawn[name])
        else:
            (folder / name).unlink(missing_ok=True)
    write_atomically(folder / DATA, json.dumps(as_json(findings), indent=1) + "\n")
    write_atomically(folder / REPORT, markdown_report(findings))
    write_atomically(folder / PAGE, ablation_page(findings))
    return findings


def pictures(findings: AblationFindings) -> Iterator[tuple[str, Picture]]:
    """What there is to draw, as one picture for each file of PICTURES."""
    scores = [score_picture(findings, each) for each in findings.tasks if each.scores]
    if scores:
        yield SCORES, side_by_side(scores, columns=3, label="Scores by task and variant")
    curves = curve_pictures(findings)
    if curves:
        yield CURVES, side_by_side(curves, columns=2, label="Losses of the pre-trainings")


def ablation_page(findings: AblationFindings) -> str:
    """The whole page, light and dark, wide and narrow."""
    outcome = findings.outcome
    table = findings.table(method(findings))
    sections = [_finding(findings), section(table.title, html_paper_table(table))]
    panels = [score_picture(findings, each).inline() for each in findings.tasks if each.scores]
    if panels:
        content = paragraphs([SCORES_WORDS]) + f'\n<div class="panels">{"".join(panels)}</div>'
        sections.append(section("Every seed", content))
    if any(findings.compared()):
        sections.append(section(difference_title(findings), _differences(findings)))
    sections.append(section("Pre-training", _pretraining(findings)))
    sections.append(section("Cost", named_rows(costs(findings))))
    if troubles(findings):
        sections.append(section("Failed and missing", troubles_table(troubles(findings))))
    about = [described(findings), f"{counts(findings)}."]
    return page(f"Ablation {outcome.name}", about, sections)


def difference_title(findings: AblationFindings) -> str:
    """What the table of differences is called."""
    return f"Differences from {findings.reference.title}"


def _finding(findings: AblationFindings) -> str:
    rows = [("the paper", findings.paper.finding), ("here", verdict(findings))]
    return (
        f'<section class="best">\n<h2>{escape(find_study(findings.outcome.study).question)}</h2>\n'
        f"{named_rows(rows)}\n</section>"
    )


def _differences(findings: AblationFindings) -> str:
    heads, rows = difference_table(findings)
    lines = []
    for (name, _), *cells in rows:
        inside = "".join(
            f"<td>{f'<b>{escape(said)}</b>' if is_told else escape(said)}</td>"
            for said, is_told in cells
        )
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{inside}</tr>')
    return _wide_table("differences", heads, lines) + "\n" + notes(difference_words(findings))


def _pretraining(findings: AblationFindings) -> str:
    heads, rows = pretraining_table(findings)
    lines = [
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape(each)}</td>" for each in cells)
        + "</tr>"
        for name, *cells in rows
    ]
    panels = "".join(each.inline() for each in curve_pictures(findings))
    drawn = f'\n<div class="panels">{panels}</div>' if panels else ""
    return _wide_table("encoders", heads, lines) + "\n" + notes(pretraining_words(findings)) + drawn


def _wide_table(kind: str, heads: list[str], lines: list[str]) -> str:
    first, *rest = heads
    head = f'<th scope="col" class="words">{escape(first)}</th>'
    head += "".join(f'<th scope="col">{escape(each)}</th>' for each in rest)
    return (
        f'<div class="wide"><table class="{kind}"><thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table></div>"
    )


def markdown_report(findings: AblationFindings) -> str:
    """The whole report, to read."""
    outcome = findings.outcome
    drawn = [name for name, _ in pictures(findings)]
    sections = [
        f"# Ablation {plain(outcome.name)}",
        plain(described(findings)),
        f"{counts(findings)}.",
        f"- **The paper.** {plain(findings.paper.finding)}\n- **Here.** {plain(verdict(findings))}",
        f"## {plain(findings.paper.title)}",
        markdown_paper_table(findings.table([plain(each) for each in method(findings)])),
    ]
    if SCORES in drawn:
        sections += ["## Every seed", SCORES_WORDS, f"![Scores by task and variant]({SCORES})"]
    if any(findings.compared()):
        heads, rows = difference_table(findings)
        cells = [[f"**{said}**" if is_told else said for said, is_told in row] for row in rows]
        numbers = [False] + [True] * (len(heads) - 1)
        sections += [
            f"## {plain(difference_title(findings))}",
            markdown_table(heads, cells, numbers),
            markdown_list(difference_words(findings)),
        ]
    heads, rows = pretraining_table(findings)
    sections += [
        "## Pre-training",
        markdown_table(heads, rows, [False] + [True] * (len(heads) - 1)),
        markdown_list(pretraining_words(findings)),
        f"![Losses of the pre-trainings]({CURVES})" if CURVES in drawn else "",
        "## Cost",
        markdown_table(["", ""], costs(findings)),
    ]
    if troubles(findings):
        rows = [list(each) for each in troubles(findings)]
        sections += ["## Failed and missing", markdown_table(TROUBLE_HEADS, rows)]
    return "\n\n".join(each for each in sections if each) + "\n"


def summary_lines(findings: AblationFindings, folder: Path) -> list[str]:
    """What the ablation came to and where everything lies, for the screen."""
    lines = [f"runs         {counts(findings)}", f"the paper    {findings.paper.finding}"]
    lines.append(f"here         {verdict(findings)}")
    lines += [f"{name:13}{said}" for name, said in costs(findings)[:2]]
    failed = [each for each in troubles(findings) if each[2] != MISSING]
    lines += [f"failed       {what}: {why}" for _, what, why in failed[:5]]
    lines.append(f"report       {folder / PAGE}")
    return lines


def as_json(findings: AblationFindings) -> dict[str, Any]:
    """All that is known, for programs."""
    outcome = findings.outcome
    tasks = {
        task.key: {
            "metric": task.metric,
            "unit": "points, 0-100",
            "scores": {name: list(each) for name, each in task.scores.items()},
            "differences": {
                name: {**asdict(each), "told_apart": each.is_told_apart}
                for name, each in task.differences.items()
            },
        }
        for task in findings.tasks
    }
    content = {
        "finding": {"paper": findings.paper.finding, "here": verdict(findings)},
        "table": json_paper_table(findings.table(method(findings))),
        "compared": tasks,
        **asdict(outcome),
    }
    return json.loads(without_machine_paths(json.dumps(finite(content))))
