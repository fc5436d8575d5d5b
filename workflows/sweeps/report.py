"""The report of a sweep: its outcome goes in; a page, Markdown with figures and JSON come out.

And best.yaml, the best setting as a file for `workflows/finetune.py --preset`.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from bert_core.disk import finite, write_atomically
from workflows.finetuning.settings import DIVISION_FIELDS, settings_class
from workflows.paper.published import DASH, PaperTable, json_paper_table, report_table
from workflows.progress import duration
from workflows.reporting.figures import value_text
from workflows.reporting.render import (
    PAGE,
    Cell,
    Code,
    Facts,
    Figures,
    Page,
    Row,
    Section,
    Table,
    write_report,
)
from workflows.sweeps.figures import (
    CURVES,
    axis_figure,
    curve_figure,
    importance_figure,
    num_outside,
    parallel_figure,
)
from workflows.sweeps.findings import (
    BEST,
    PointFound,
    SweepFindings,
    comparisons,
    costs,
    counts,
    headline,
    number_of,
    points_text,
    scores_text,
    sweep_findings,
    verdict,
)
from workflows.sweeps.outcome import SweepOutcome, TrialOutcome
from workflows.sweeps.settings import with_point

DATA = "report.json"
FIGURES = ("parallel.svg", "axes.svg", "importance.svg", "curves.svg")
MOST_SEED_COLUMNS = 6


def write_sweep_report(
    outcome: SweepOutcome, folder: Path, *, beside_paper: PaperTable | None = None
) -> SweepFindings:
    """Writes report.html, report.md with its figures, report.json and best.yaml into a folder.

    `beside_paper` is shown next to the paper's figures for the task. Files of an earlier report
    that no longer hold are removed. Each file is written atomically.
    """
    findings = sweep_findings(outcome)
    tables = [each for each in (beside_paper, findings.beside_paper) if each is not None]
    folder.mkdir(parents=True, exist_ok=True)
    best = best_yaml(findings)
    if best:
        write_atomically(folder / BEST, best)
    write_atomically(folder / DATA, json.dumps(_as_json(findings, tables), indent=1) + "\n")
    write_report(sweep_page(findings, tables, best), folder, outdated=FIGURES)
    if not best:
        (folder / BEST).unlink(missing_ok=True)
    return findings


def sweep_page(findings: SweepFindings, tables: Sequence[PaperTable], best: str) -> Page:
    """The page of a sweep; `best` is the content of best.yaml, "" for none."""
    outcome = findings.outcome
    facts = [
        ("task", f"{outcome.task}, data {outcome.data}"),
        ("examples", f"{outcome.num_train:,} train, {outcome.num_dev:,} dev"),
        ("encoder", outcome.model),
        ("trials", counts(findings)),
        *comparisons(findings),
    ]
    if findings.best and findings.beside_paper is None:
        facts.append(("published figures", f"none for the task {outcome.task}"))
    sections = [_best(findings, best)] if best else []
    sections += [Section(table.title, [report_table(table)]) for table in tables]
    sections.append(Section("Settings", [point_table(findings)]))
    outside = num_outside(findings)
    edge = f" {number_of(outside, 'outlier')} at the edge." if outside else ""
    if findings.points and outcome.axes:
        panels = [axis_figure(findings, axis) for axis in outcome.axes]
        by_axis = f"One dot per trial; bars are means of a value or of neighboring values.{edge}"
        lines = f"One line per setting; darker is better, red is the best.{edge}"
        sections += [
            Section(
                "Parallel coordinates", [Figures([parallel_figure(findings)], "parallel", lines)]
            ),
            Section("Scores by axis", [Figures(panels, "axes", by_axis)]),
        ]
    if findings.has_importances:
        figures = Figures([importance_figure(findings)], "importance")
        sections.append(Section("Importance", [figures, Facts(_importance(findings))]))
    if any(trial.curve for trial in outcome.trials):
        curves = [curve_figure(findings, field) for field in CURVES]
        text = "One line per trial, a dot at its best epoch; unfinished trials are dotted."
        sections.append(Section("Learning curves", [Figures(curves, "curves", text)]))
    sections.append(Section("Cost", [Facts(costs(findings))]))
    sections += troubles_section(troubles(findings))
    result = "; ".join(filter(None, [headline(findings), verdict(findings)]))
    return Page(f"Sweep {outcome.name}", result, facts, sections)


def _best(findings: SweepFindings, best: str) -> Section:
    assert findings.best_trial is not None
    text = f"Trains the best trial ({findings.best_trial.name}) again, where {BEST} lies:"
    return Section("Best setting", [text, Code(findings.command), Code(best, summary=BEST)])


def _importance(findings: SweepFindings) -> list[tuple[str, str]]:
    """What limits the shares, each with a name."""
    rows = [
        ("share", "of the variance between settings' means, main effects (ANOVA)"),
        ("red mark", "share expected by chance, for an axis without effect"),
    ]
    binned = [
        findings.axis_titles[axis] for axis, each in findings.importances.items() if each.is_binned
    ]
    if binned:
        rows.append(("binned axes", f"{', '.join(binned)}; not a grid, shares may overlap"))
    elif findings.unscored:
        rows.append(("missing settings", f"{len(findings.unscored)}; shares may overlap"))
    if findings.num_fallen:
        rows.append(("outliers left out", number_of(findings.num_fallen, "setting")))
    if findings.noise_share is not None:
        rows.append((f"share of {findings.outcome.repeats} noise", f"{findings.noise_share:.0%}"))
    return rows


def point_table(findings: SweepFindings) -> Table:
    """A row for each setting: the best first, those without a score last."""
    repeats = findings.outcome.repeats
    seeds = findings.repeats if len(findings.repeats) <= MOST_SEED_COLUMNS else []
    by_seed = [f"{repeats} {number}" for number in seeds] or [f"{repeats}s' scores"]
    level = ["level"] if findings.noise is not None else []
    axes = findings.axis_titles.values()
    columns = ["rank", findings.metric, *level, *axes, f"{repeats}s", *by_seed]
    rows = []
    for point in (*findings.points, *findings.unscored):
        values = [point.point[axis] for axis in findings.outcome.axes]
        cells = [
            *_score_cells(point, has_level=bool(level)),
            *(Cell(value_text(value), _order(value)) for value in values),
            Cell(f"{len(point.scored)}", len(point.scored)),
            *_seed_cells(point, seeds),
            Cell(", ".join(f"{trial.best_epoch:.4g}" for trial in point.scored) or DASH),
            Cell(duration(point.seconds), point.seconds) if point.scored else Cell(DASH),
        ]
        is_best = point.rank == 1 or bool(point.is_level)
        key = str(point.rank) if point.scored else ""
        rows.append(Row(cells, highlighted=is_best and bool(point.scored), key=key))
    return Table(
        "Settings by mean score on dev, in points (0 to 100)",
        [*columns, "best epochs", "time per trial"],
        rows,
        _notes(findings),
    )


def _notes(findings: SweepFindings) -> list[str]:
    notes = [
        "Scores are of the best epoch on the same dev set that ranks the settings, so they are "
        "slightly optimistic."
    ]
    if findings.noise is not None:
        notes.append(
            "level: may be the best, at 95 % confidence for all settings together (Hsu 1984). "
            f"Standard deviation of {findings.outcome.repeats}s: "
            f"{points_text(findings.noise.deviation)} points, pooled over the better half "
            f"({findings.noise.freedom} degrees of freedom)."
        )
    if any(trial.stopped_early for trial in findings.finished):
        notes.append("†: stopped early; the best score so far.")
    return notes


def _score_cells(point: PointFound, *, has_level: bool) -> list[Cell]:
    cells = [Cell(DASH), Cell(DASH)]
    if point.scored:
        scores = point.scores
        cells = [Cell(str(point.rank), point.rank), Cell(scores_text(scores.scores), scores.mean)]
    level = {None: "", True: "yes", False: "no"}[point.is_level]
    return [*cells, Cell(level)] if has_level else cells


def _seed_cells(point: PointFound, seeds: Sequence[int]) -> list[Cell]:
    if not seeds:
        return [Cell(", ".join(_trial_text(trial) for trial in point.trials))]
    by_seed = {trial.repeat: trial for trial in point.trials}
    trials = [by_seed.get(seed) for seed in seeds]
    return [
        Cell(DASH) if trial is None else Cell(_trial_text(trial), trial.score or -math.inf)
        for trial in trials
    ]


def _trial_text(trial: TrialOutcome) -> str:
    if trial.score is None:
        return "missing" if trial.failure is None else "failed"
    return points_text(trial.score) + "†" * trial.stopped_early


def _order(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def troubles(findings: SweepFindings) -> list[tuple[str, str, str]]:
    """Each trial without a score: its run, its setting, and why."""
    return [
        (
            trial.name,
            f"{findings.point_text(trial.point)}, {trial.named}",
            trial.failure or _missing(trial),
        )
        for trial in (*findings.failed, *findings.missing)
    ]


def troubles_section(rows: Sequence[tuple[str, str, str]]) -> list[Section]:
    """The section of runs without a result; [] where there are none."""
    if not rows:
        return []
    table = Table("Runs without a result", ["run", "setting", "why"], [*map(Row, rows)])
    return [Section("Failed and missing", [table])]


def _missing(trial: TrialOutcome) -> str:
    epochs = len(trial.curve)
    return f"not finished: {number_of(epochs, 'epoch')} done" if epochs else "not started"


def summary_lines(findings: SweepFindings, folder: Path) -> list[str]:
    """The result and the paths of its files, for the terminal."""
    lines = [f"trials       {counts(findings)}", f"best         {headline(findings)}"]
    if judged := verdict(findings):
        lines.append(f"             {judged}")
    lines += [f"{name:12} {text}" for name, text in comparisons(findings)]
    lines += [f"{name:12} {text}" for name, text in costs(findings)[:1]]
    lines += [f"failed       {trial.name}: {trial.failure}" for trial in findings.failed[:5]]
    lines.append(f"report       {folder / PAGE}")
    if findings.best is not None:
        lines.append(f"settings     {folder / BEST}")
    return lines


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
    if outcome.repeats == "fold":  # it is to learn from all
        names -= {*DIVISION_FIELDS}
    return {"task": outcome.task, **{name: each for name, each in values.items() if name in names}}


def best_yaml(findings: SweepFindings) -> str:
    """The content of best.yaml, "" where no trial has a score."""
    settings = best_settings(findings)
    if not settings:
        return ""
    text = f"the best setting of the sweep {findings.outcome.name}: {findings.command}"
    comment = " ".join(text.split())
    return f"# {comment}\n" + yaml.safe_dump(settings, sort_keys=False)


def _as_json(findings: SweepFindings, tables: list[PaperTable]) -> dict[str, Any]:
    outcome = findings.outcome
    hours: dict[str, float] = {}
    for each in outcome.trials:
        hours[each.device] = hours.get(each.device, 0.0) + each.device_hours
    described = {
        "best": None
        if findings.best is None
        else {"point": findings.best.point, "settings": best_settings(findings)},
        "verdict": [verdict(findings), *map(": ".join, comparisons(findings))],
        "points": [_json_point(each) for each in (*findings.points, *findings.unscored)],
        "seed_noise": None if findings.noise is None else asdict(findings.noise),
        "importances": {axis: asdict(each) for axis, each in findings.importances.items()},
        "importance_of_seeds": findings.noise_share,
        "device_hours": hours,
        "beside_paper": [json_paper_table(table) for table in tables],
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
        "trials": [trial.name for trial in found.trials],
    }
