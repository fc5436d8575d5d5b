"""The result of an ablation, computed from its outcome: scores by variant and task, verdict.

Scores and differences are in points (0..100); variants keep the study's order.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from bert_core.evaluation.sweep import Difference, differences
from workflows.ablations.outcome import VARIANT, AblationOutcome, VariantOutcome
from workflows.ablations.studies import find_study
from workflows.paper.paper_table import PaperRow, PaperTable
from workflows.paper.published import PaperAblation, PaperColumn
from workflows.progress import duration
from workflows.runs.tracker import without_machine_paths
from workflows.sweeps.findings import number_of, used
from workflows.sweeps.outcome import SweepOutcome, TrialOutcome

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
        return [each for each in self.outcome.variants if not each.is_reference]

    @property
    def pretrained(self) -> list[VariantOutcome]:
        """The variants that are pre-trained."""
        return [each for each in self.outcome.variants if each.is_finished]

    @property
    def trials(self) -> list[TrialOutcome]:
        """All fine-tunings."""
        return [trial for each in self.tasks for trial in each.sweep.trials]

    @property
    def num_wanted(self) -> int:
        """Fine-tunings in the end."""
        outcome = self.outcome
        return len(outcome.variants) * len(outcome.wanted_tasks) * outcome.seeds

    def titled(self, name: str) -> str:
        """What the variant of this name is called."""
        return next(each.title for each in self.outcome.variants if each.name == name)

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
        papers_columns = [each.title for each in self.paper.columns]
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
        by_row = {each.paper_row: each for each in self.outcome.variants if each.paper_row}
        yield from ((row, by_row.get(row)) for row in self.paper.rows)
        yield from (("", each) for each in self.outcome.variants if not each.paper_row)


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
        scores = _scores(sweep, metric, [each.name for each in outcome.variants])
        others = {name: each for name, each in scores.items() if name != reference}
        compared = differences(scores.get(reference, ()), others)
        tasks.append(TaskFound(key, metric, sweep, scores, compared, column))
    return AblationFindings(outcome, paper, tuple(tasks))


def verdict(findings: AblationFindings) -> str:
    """Which variants differ from the reference beyond the noise of seeds, in one line."""
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
    """What a variant is called beside the paper's row."""
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
