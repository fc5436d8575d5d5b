"""The report of a sweep: its outcome goes in; a page, Markdown with pictures, JSON come out.

And best.yaml, the best setting as a file for `workflows/finetune.py --preset`.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from workflows.finetuning.settings import settings_class
from workflows.paper.paper_table import PaperTable, json_paper_table, markdown_paper_table
from workflows.report_parts import (
    TROUBLE_HEADS,
    finite,
    markdown_list,
    markdown_table,
    plain,
)
from workflows.runs.folder import write_atomically
from workflows.sweeps.cells import costs, point_table, troubles
from workflows.sweeps.findings import BEST, PointFound, SweepFindings, sweep_findings
from workflows.sweeps.outcome import SweepOutcome
from workflows.sweeps.page import sweep_page
from workflows.sweeps.parallel import parallel_picture
from workflows.sweeps.pictures import CURVES, axis_picture, curve_picture, importance_picture
from workflows.sweeps.search_space import with_point
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
from workflows.vector_charts import Picture, side_by_side

PAGE, REPORT, DATA = "report.html", "report.md", "report.json"
PARALLEL, AXES = "parallel.svg", "axes.svg"
IMPORTANCE, LEARNING = "importance.svg", "curves.svg"
PICTURES = (PARALLEL, AXES, IMPORTANCE, LEARNING)


def write_sweep_report(
    outcome: SweepOutcome, folder: Path, *, beside_paper: PaperTable | None = None
) -> SweepFindings:
    """Writes report.html, report.md with its pictures, report.json and best.yaml into a folder.

    `beside_paper` is shown beside the paper's figures for the task. What an earlier report left
    that no longer holds is removed. Each file is written whole or not at all.
    """
    findings = sweep_findings(outcome)
    tables = [each for each in (beside_paper, findings.beside_paper) if each is not None]
    folder.mkdir(parents=True, exist_ok=True)
    best = best_yaml(findings)
    drawn = {name: each.file() for name, each in pictures(findings)}
    for name, text in {**dict.fromkeys(PICTURES, ""), **drawn, BEST: best}.items():
        if text:
            write_atomically(folder / name, text)
        else:
            (folder / name).unlink(missing_ok=True)
    write_atomically(folder / DATA, json.dumps(_as_json(findings, tables), indent=1) + "\n")
    write_atomically(folder / REPORT, markdown_report(findings, tables))
    write_atomically(folder / PAGE, sweep_page(findings, tables, best))
    return findings


def pictures(findings: SweepFindings) -> Iterator[tuple[str, Picture]]:
    """What there is to draw, as one picture for each file of PICTURES."""
    if findings.points:
        panels = [axis_picture(findings, axis) for axis in findings.outcome.axes]
        yield PARALLEL, parallel_picture(findings, upright=True)
        yield AXES, side_by_side(panels, columns=3, label="Scores by the value of each axis")
    if findings.has_importances:
        yield IMPORTANCE, importance_picture(findings)
    if any(each.curve for each in findings.outcome.trials):
        curves = [curve_picture(findings, field) for field in CURVES]
        yield LEARNING, side_by_side(curves, columns=3, label="Learning curves")


def best_settings(findings: SweepFindings) -> dict[str, Any]:
    """The settings of the best trial as a settings file has them; {} where none has a score.

    What is no setting of a fine-tuning run, or belongs to one machine or run, is left out.
    """
    best, outcome = findings.best_trial, findings.outcome
    if best is None:
        return {}
    values = with_point(outcome.settings, best.point) | {"seed": best.seed}
    kind = settings_class(outcome.task, str(values.get("approach", "finetune")))
    names = kind.model_fields.keys() - kind.machine_fields
    return {"task": outcome.task, **{name: each for name, each in values.items() if name in names}}


def best_yaml(findings: SweepFindings) -> str:
    """The content of best.yaml, "" where no trial has a score."""
    settings = best_settings(findings)
    if not settings:
        return ""
    said = f"the best setting of the sweep {findings.outcome.name}: {findings.command}"
    comment = " ".join(said.split())
    return f"# {comment}\n" + yaml.safe_dump(settings, sort_keys=False)


def summary_lines(findings: SweepFindings, folder: Path) -> list[str]:
    """What the sweep came to and where everything lies, for the screen."""
    lines = [f"trials       {counts(findings)}", f"best         {headline(findings)}"]
    lines += [f"             {each}" for each in verdict(findings)]
    lines += [f"{name:13}{said}" for name, said in costs(findings)[:1]]
    lines += [f"failed       {each.name}: {each.failure}" for each in findings.failed[:5]]
    lines.append(f"report       {folder / PAGE}")
    if findings.best is not None:
        lines.append(f"settings     {folder / BEST}")
    return lines


def markdown_report(findings: SweepFindings, tables: list[PaperTable]) -> str:
    """The whole report, to read."""
    outcome = findings.outcome
    sections = [
        f"# Sweep {plain(outcome.name)}",
        plain(described(findings)),
        f"{counts(findings)}.",
        "## The best setting",
        f"**{plain(headline(findings))}**",
        plain(" ".join(verdict(findings))),
    ]
    if findings.best_trial is not None:
        name = plain(findings.best_trial.name)
        sections += [
            f"```\n{findings.command}\n```",
            "trains it again (say where data and encoder lie), with the seed of its best trial, "
            f"the run {name}. [{BEST}]({BEST}) lies beside this file.",
        ]
    for table in tables:
        sections += [f"## {plain(table.title)}", markdown_paper_table(table)]
    sections.append(plain(paper_words(findings)))
    sections += ["## All settings", _points(findings), markdown_list(method(findings))]
    if findings.points:
        sections += [
            "## Values and scores",
            plain(lines_words(findings)),
            f"![Parallel coordinates]({PARALLEL})",
            "## Each axis",
            plain(dots_words(findings)),
            f"![Scores by the value of each axis]({AXES})",
        ]
    if findings.has_importances:
        picture = f"![Importance of the axes]({IMPORTANCE})"
        sections += ["## What matters", picture, markdown_list(importance_words(findings))]
    if any(each.curve for each in outcome.trials):
        sections += ["## Learning curves", CURVES_WORDS, f"![Learning curves]({LEARNING})"]
    sections += ["## Cost", markdown_table(["", ""], [list(each) for each in costs(findings)])]
    if troubles(findings):
        rows = [list(each) for each in troubles(findings)]
        sections += ["## Failed and missing", markdown_table(TROUBLE_HEADS, rows)]
    return "\n\n".join(each for each in sections if each) + "\n"


def _points(findings: SweepFindings) -> str:
    heads, rows = point_table(findings)
    columns = zip(*(cells for _, cells in rows), strict=True)
    numbers = [any(cell.is_number for cell in column) for column in columns]
    return markdown_table(heads, [[cell.text for cell in cells] for _, cells in rows], numbers)


def _as_json(findings: SweepFindings, tables: list[PaperTable]) -> dict[str, Any]:
    outcome = findings.outcome
    hours: dict[str, float] = {}
    for each in outcome.trials:
        hours[each.device] = hours.get(each.device, 0.0) + each.device_hours
    described = {
        "best": None
        if findings.best is None
        else {"point": findings.best.point, "settings": best_settings(findings)},
        "verdict": verdict(findings),
        "points": [_json_point(each) for each in (*findings.points, *findings.unscored)],
        "seed_noise": None if findings.noise is None else asdict(findings.noise),
        "importances": {axis: asdict(each) for axis, each in findings.importances.items()},
        "importance_of_seeds": findings.noise_share,
        "device_hours": hours,
        "beside_paper": [json_paper_table(each) for each in tables],
        **asdict(outcome),
    }
    return finite(described)


def _json_point(found: PointFound) -> dict[str, Any]:
    scored = bool(found.scored)
    return {
        "rank": found.rank if scored else None,
        "point": found.point,
        "mean": found.scores.mean if scored else None,
        "deviation": found.scores.deviation if scored else None,
        "behind": found.behind if scored else None,
        "margin": found.margin,
        "level": found.is_level,
        "trials": [each.name for each in found.trials],
    }
