"""The findings of an ablation, computed from its outcome, and its report: page, Markdown, JSON.

Scores and differences are in points (0..100), losses in nats; variants keep the study's order. In
figures the reference is red.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bert_core.disk import finite, write_atomically
from bert_core.evaluation.sweep import Difference, differences
from workflows.ablations.ablation import VARIANT, AblationOutcome, VariantOutcome
from workflows.ablations.held_out import (
    adaptation_verdict,
    curve_figures,
    equal_time_verdict,
    pretraining_table,
)
from workflows.ablations.studies import ADAPTATION, ADAPTED, CONTROL, find_study
from workflows.paper.published import (
    DASH,
    PaperAblation,
    PaperColumn,
    PaperRow,
    PaperTable,
    json_paper_table,
    metric_title,
    report_table,
    score_text,
)
from workflows.progress import duration
from workflows.reporting.figures import INK, MARK, PANEL, SHADES, Chart, Figure, shortened
from workflows.reporting.render import (
    PAGE,
    Cell,
    Facts,
    Figures,
    Page,
    Part,
    Row,
    Section,
    Table,
    write_report,
)
from workflows.runs.tracker import without_machine_paths
from workflows.sweeps.findings import number_of, used
from workflows.sweeps.outcome import SweepOutcome, TrialOutcome
from workflows.sweeps.report import troubles_section

MISSING = "missing"
"""Why a run has no figures that has not failed."""


@dataclass(frozen=True)
class TaskFound:
    """A task: what the seeds of each variant reached on dev, in points, by the variant's name.

    `column` is the paper's that compares with it, and then `metric` is the paper's too.
    """

    key: str
    metric: str
    sweep: SweepOutcome
    scores: dict[str, tuple[float, ...]]
    differences: dict[str, Difference]
    column: PaperColumn | None

    @property
    def title(self) -> str:
        """The task, as the paper calls it where it has it."""
        return self.column.title if self.column else self.key


@dataclass(frozen=True)
class AblationFindings:
    """An ablation with what follows from it."""

    outcome: AblationOutcome
    paper: PaperAblation
    tasks: tuple[TaskFound, ...]

    @property
    def reference(self) -> VariantOutcome:
        """What all others are compared with."""
        return self.outcome.reference

    @property
    def others(self) -> list[VariantOutcome]:
        """The variants but the reference."""
        return [variant for variant in self.outcome.variants if not variant.is_reference]

    @property
    def pretrained(self) -> list[VariantOutcome]:
        """The variants that are pre-trained."""
        return [variant for variant in self.outcome.variants if variant.is_finished]

    @property
    def trials(self) -> list[TrialOutcome]:
        """All fine-tunings."""
        return [trial for task in self.tasks for trial in task.sweep.trials]

    @property
    def num_wanted(self) -> int:
        """Fine-tunings in the end."""
        outcome = self.outcome
        return len(outcome.variants) * len(outcome.wanted_tasks) * outcome.seeds

    def titled(self, name: str) -> str:
        """What the variant of this name is called."""
        return next(variant.title for variant in self.outcome.variants if variant.name == name)

    def compared(self) -> Iterator[tuple[VariantOutcome, TaskFound, Difference]]:
        """Each variant on each task where it and the reference have scores."""
        for variant in self.others:
            for task in self.tasks:
                if variant.name in task.differences:
                    yield variant, task, task.differences[variant.name]

    def paper_difference(self, variant: VariantOutcome, task: TaskFound) -> float | None:
        """How the paper's figure of the variant's row differs from that of the reference's."""
        rows = self.paper.rows
        if task.column is None or not {variant.paper_row, self.reference.paper_row} <= rows.keys():
            return None
        place = self.paper.columns.index(task.column)
        return rows[variant.paper_row][place] - rows[self.reference.paper_row][place]

    def table(self, notes: Sequence[str] = ()) -> PaperTable:
        """All figures: our tasks, then the rest of the paper's, in the paper's order of rows."""
        papers_columns = [column.title for column in self.paper.columns]
        rows = []
        for name, variant in self._rows():
            ours = {}
            if variant is not None:
                ours = {task.title: task.scores.get(variant.name, ()) for task in self.tasks}
            papers = dict(zip(papers_columns, self.paper.rows.get(name, ()), strict=False))
            rows.append(PaperRow(name if variant is None else row_title(variant), ours, papers))
        columns = dict.fromkeys([*(task.title for task in self.tasks), *papers_columns])
        return PaperTable(self.paper.title, tuple(columns), tuple(rows), tuple(notes))

    def _rows(self) -> Iterator[tuple[str, VariantOutcome | None]]:
        by_row = {
            variant.paper_row: variant for variant in self.outcome.variants if variant.paper_row
        }
        yield from ((row, by_row.get(row)) for row in self.paper.rows)
        yield from (("", variant) for variant in self.outcome.variants if not variant.paper_row)


def ablation_findings(outcome: AblationOutcome) -> AblationFindings:
    """Works out what an ablation says, of whatever there is of it so far."""
    paper = find_study(outcome.study).paper
    reference = outcome.reference.name
    tasks = []
    for key, sweep in outcome.tasks.items():
        column = next((each for each in paper.columns if each.task == key), None)
        metric = sweep.criterion
        if column is not None and _has(sweep, column.metric):
            metric = column.metric
        elif column is not None and column.metric != metric:
            column = None
        scores = _scores(sweep, metric, [variant.name for variant in outcome.variants])
        others = {name: each for name, each in scores.items() if name != reference}
        compared = differences(scores.get(reference, ()), others)
        tasks.append(TaskFound(key, metric, sweep, scores, compared, column))
    return AblationFindings(outcome, paper, tuple(tasks))


def verdict(findings: AblationFindings) -> str:
    """Which variants differ from the reference beyond the noise of seeds, in one line."""
    parts = (
        adaptation_verdict(findings.outcome),
        equal_time_verdict(findings.outcome),
        _control_verdict(findings),
        _task_verdict(findings),
    )
    return "; ".join(filter(None, parts))


def against_control(findings: AblationFindings) -> dict[str, Difference]:
    """How the adapted model differs from the control, by the title of a task."""
    found = {}
    for task in findings.tasks:
        adapted, control = (task.scores.get(name, ()) for name in (ADAPTED, CONTROL))
        for difference in differences(control, {ADAPTED: adapted}).values():
            found[task.title] = difference
    return found


def _control_verdict(findings: AblationFindings) -> str:
    compared = against_control(findings)
    if not any(difference.reach is not None for difference in compared.values()):
        return ""
    shown = [
        f"{title} {signed(difference.mean)}"
        for title, difference in compared.items()
        if difference.is_told_apart
    ]
    said = ", ".join(shown) or "no difference beyond seed noise"
    return f"adapted against the control on tasks: {said}"


def _task_verdict(findings: AblationFindings) -> str:
    reference, compared = findings.reference.title, list(findings.compared())
    if not compared:
        return "nothing to compare yet"
    judged = [difference for _, _, difference in compared if difference.reach is not None]
    if not judged:
        return f"seed noise unknown: run more seeds (--seeds 3) to compare with {reference}"
    by_title: dict[str, list[str]] = defaultdict(list)
    for variant, task, difference in compared:
        if difference.is_told_apart:
            by_title[variant.title].append(f"{task.title} {signed(difference.mean)}")
    distinct = sum(map(len, by_title.values()))
    counted = f"{distinct} of {number_of(len(compared), 'difference')} beyond seed noise at 95 %"
    shown = "; ".join(f"{title}: {', '.join(tasks)}" for title, tasks in by_title.items())
    return f"{counted} (against {reference})" + (f": {shown}" if shown else "")


def signed(points: float, digits: int = 2) -> str:
    """A difference with its sign, a real minus."""
    return f"{points:+.{digits}f}".replace("-", "−")


def counts(findings: AblationFindings) -> str:
    """How far the ablation has come."""
    outcome = findings.outcome
    runs = [*findings.trials, *outcome.variants]
    finished = sum(trial.score is not None for trial in findings.trials)
    failed = sum(run.failure is not None for run in runs)
    parts = [
        f"{len(findings.pretrained)} of {number_of(len(outcome.variants), 'encoder')} pre-trained",
        f"{finished:,} of {findings.num_wanted:,} fine-tunings finished "
        f"({number_of(len(outcome.wanted_tasks), 'task')}, {number_of(outcome.seeds, 'seed')})",
    ]
    return ", ".join([*parts, f"{failed} failed"] if failed else parts)


def costs(findings: AblationFindings) -> list[tuple[str, str]]:
    """What the ablation used, each with a name; runs that were there before are counted."""
    outcome = findings.outcome
    seconds = [trial.seconds for trial in findings.trials if trial.score is not None]
    rows = [("pre-training", used(findings.pretrained)), ("fine-tuning", used(findings.trials))]
    rows += [("per fine-tuning", f"{duration(fmean(seconds))} on average")] if seconds else []
    at_once = f"up to {number_of(outcome.at_once, 'run')} at once"
    return [*rows, ("wall time", f"{duration(outcome.wall_seconds)}, {at_once}")]


def troubles(findings: AblationFindings) -> list[tuple[str, str, str]]:
    """Each run without a result: its name, what it is, and why."""
    rows = [
        (variant.run, f"pre-training, {variant.title}", variant.failure)
        for variant in findings.outcome.variants
        if not variant.is_finished
    ]
    rows += [
        (
            trial.name,
            f"{task.key}, {findings.titled(trial.point[VARIANT])}, seed {trial.seed}",
            trial.failure,
        )
        for task in findings.tasks
        for trial in task.sweep.trials
        if trial.score is None
    ]
    return [(run, what, without_machine_paths(why or MISSING)) for run, what, why in rows]


def row_title(variant: VariantOutcome) -> str:
    """The title of a variant, with that of the paper's row if it differs."""
    same = variant.paper_row in ("", variant.title)
    return variant.title if same else f"{variant.title} ({variant.paper_row})"


def _has(sweep: SweepOutcome, metric: str) -> bool:
    return any(f"dev/{metric}" in trial.figures for trial in sweep.trials)


def _scores(
    sweep: SweepOutcome, metric: str, variants: Sequence[str]
) -> dict[str, tuple[float, ...]]:
    """What each variant's seeds reached, in points; a score that is no number is left out."""
    found: dict[str, list[float]] = {name: [] for name in variants}
    for trial in sweep.trials:
        value = trial.figures.get(f"dev/{metric}")
        if value is None and metric == sweep.criterion:
            value = trial.score
        if value is not None and math.isfinite(value):
            found[trial.point[VARIANT]].append(100 * value)
    return {name: tuple(values) for name, values in found.items() if values}


DATA = "report.json"
FIGURES = ("scores.svg", "pretraining.svg")


def write_ablation_report(outcome: AblationOutcome, folder: Path) -> AblationFindings:
    """Writes report.html, report.md with its figures and report.json into a folder.

    Each file is written atomically; a figure that no longer holds is removed.
    """
    findings = ablation_findings(outcome)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / DATA, json.dumps(as_json(findings), indent=1) + "\n")
    write_report(ablation_page(findings), folder, outdated=FIGURES)
    return findings


def ablation_page(findings: AblationFindings) -> Page:
    """The page of an ablation."""
    outcome = findings.outcome
    facts = [
        ("question", find_study(outcome.study).question),
        ("the paper", findings.paper.finding),
        ("text", without_machine_paths(outcome.text)),
        ("runs", counts(findings)),
    ]
    table = findings.table(method(findings))
    sections = [Section(table.title, [report_table(table, "variant")])]
    panels = [score_figure(findings, task) for task in findings.tasks if task.scores]
    if panels:
        caption = (
            "One dot per seed; the bar is the mean, the band one standard deviation. The dashed "
            "line is the mean of the reference, in red."
        )
        sections.append(Section("Scores of all seeds", [Figures(panels, "scores", caption)]))
    if any(findings.compared()):
        title = f"Differences from {findings.reference.title}"
        sections.append(Section(title, [difference_table(findings)]))
    if against_control(findings):
        sections.append(Section("Adapted against the control", [control_table(findings)]))
    parts: list[Part] = [pretraining_table(findings.outcome, findings.paper)]
    if curves := curve_figures(findings.outcome):
        parts.append(Figures(curves, "pretraining"))
    sections += [
        Section("Pre-training", parts),
        Section("Cost", [Facts(costs(findings))]),
        *troubles_section(troubles(findings)),
    ]
    return Page(f"Ablation {outcome.name}", verdict(findings), facts, sections)


def method(findings: AblationFindings) -> list[str]:
    """What is needed to read the scores."""
    notes = [
        *findings.outcome.recipe,
        f"Metrics: {_metrics(findings)}.",
        "Ours: dev set, mean ± standard deviation over seeds of fine-tuning, each at its best "
        "epoch, chosen on the same dev set.",
        "One pre-training per variant: no interval covers the seed of pre-training.",
    ]
    if findings.paper.rows and findings.outcome.study != ADAPTATION:
        notes.append(
            "Paper: BERT base unless the row says otherwise, pre-trained on 3.3 billion words; "
            "compare differences between rows, not rows."
        )
    return [*notes, *findings.paper.notes]


def _metrics(findings: AblationFindings) -> str:
    """`accuracy (mrpc, MNLI-m), F1 (SQuAD)`."""
    by_metric: dict[str, dict[str, None]] = defaultdict(dict)
    for each in (*findings.tasks, *findings.paper.columns):
        by_metric[metric_title(each.metric)][each.title] = None
    shown = [f"{metric} ({', '.join(titles)})" for metric, titles in by_metric.items()]
    return ", ".join(shown) or "each task's own"


def difference_table(findings: AblationFindings) -> Table:
    """Each variant's mean less the reference's; strong where seeds do not explain it."""
    with_paper = [
        any(findings.paper_difference(variant, task) is not None for variant in findings.others)
        for task in findings.tasks
    ]
    columns = ["variant"]
    for task, has_paper in zip(findings.tasks, with_paper, strict=True):
        columns += [task.title, f"{task.title}, paper"] if has_paper else [task.title]
    rows = []
    for variant in findings.others:
        cells = [Cell(variant.title)]
        for task, has_paper in zip(findings.tasks, with_paper, strict=True):
            cells.append(_difference_cell(task.differences.get(variant.name)))
            if has_paper:
                paper = findings.paper_difference(variant, task)
                cells.append(Cell(DASH) if paper is None else Cell(signed(paper, 1), paper))
        rows.append(Row(cells))
    notes = ["No intervals without several seeds."]
    if any(each.reach is not None for _, _, each in findings.compared()):
        notes = [
            "95 % intervals for all variants of a task together (Dunnett 1955), with one noise of "
            "seeds for all variants of a task; bold: the interval excludes 0."
        ]
    return Table(f"Points less {findings.reference.title}", columns, rows, notes)


def control_table(findings: AblationFindings) -> Table:
    """The scores of the adapted model and the control, and the adapted one's less the control's."""
    found = against_control(findings)
    rows = [
        Row(
            [
                Cell(task.title),
                Cell(score_text(task.scores[ADAPTED])),
                Cell(score_text(task.scores[CONTROL])),
                _difference_cell(found[task.title]),
            ]
        )
        for task in findings.tasks
        if task.title in found
    ]
    notes = ["95 % interval of each task; bold: it excludes 0."]
    columns = ["task", "adapted", "control", "difference"]
    return Table("Points on dev, and their difference", columns, rows, notes)


def _difference_cell(difference: Difference | None) -> Cell:
    if difference is None:
        return Cell(DASH)
    reach = "" if difference.reach is None else f" ± {difference.reach:.2f}"
    strong = bool(difference.is_told_apart)
    return Cell(signed(difference.mean) + reach, difference.mean, strong)


def score_figure(findings: AblationFindings, task: TaskFound) -> Figure:
    """A row for each variant: a dot for each seed, the mean, a band of one deviation each way."""
    variants = [each for each in findings.outcome.variants if each.name in task.scores]
    title = f"{task.title}, {metric_title(task.metric)} on dev"
    chart = Chart(title, (PANEL[0], 1.0 + 0.42 * len(variants)))
    axes, names = chart.axes, []
    for row, variant in enumerate(variants):
        scores = task.scores[variant.name]
        mean, color = fmean(scores), MARK if variant.is_reference else SHADES[3]
        if len(scores) > 1:
            reach = stdev(scores)
            axes.barh(row, 2 * reach, 0.3, left=mean - reach, color=color, alpha=0.25)
        label = f"{variant.title}: {score_text(scores)}"
        chart.line([mean] * 2, [row - 0.25, row + 0.25], color=INK, label=label, width=2)
        chart.dots(scores, [row] * len(scores), color=color, label=label)
        names.append(f"{shortened(variant.title, 18)}\n{score_text(scores)}")
    if reference := task.scores.get(findings.reference.name):
        axes.axvline(fmean(reference), color=MARK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_yticks(range(len(variants)), names, fontsize=9)
    axes.set_ylim(len(variants) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    return chart.finish(f"scores-{task.key.replace(':', '-')}", caption="", alt=title)


def summary_lines(findings: AblationFindings, folder: Path) -> list[str]:
    """The result and the paths of its files, for the terminal."""
    lines = [f"runs         {counts(findings)}", f"the paper    {findings.paper.finding}"]
    lines.append(f"here         {verdict(findings)}")
    lines += [f"{name:13}{text}" for name, text in costs(findings)[:2]]
    failed = [trouble for trouble in troubles(findings) if trouble[2] != MISSING]
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
