"""The report of an evaluation: predictions and examples go in; Markdown, JSON and pictures out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bert_core.errors import one_line
from bert_core.evaluation.behaviour import CheckResult, markdown_results
from bert_core.evaluation.calibration import Calibration, calibration
from bert_core.evaluation.comparison import Comparison
from bert_core.evaluation.confusion import ConfusionMatrix, confusion_matrix, worst_mistakes
from bert_core.evaluation.intervals import Interval, bootstrap_intervals
from bert_core.evaluation.outcomes import Outcome, documents, outcomes
from bert_core.evaluation.slices import (
    Slice,
    by_column,
    class_metrics,
    markdown_slices,
    slice_metrics,
    usual_slicings,
)
from bert_core.evaluation.table_text import markdown_text
from bert_core.tasks.encoded_rows import tally_text
from bert_core.tasks.metrics import readable_metric
from bert_core.tasks.task import Task
from workflows.evaluation.mistakes import markdown_mistakes
from workflows.evaluation.plots import plot_confusion, plot_numbers, plot_reliability
from workflows.runs.folder import write_atomically
from workflows.runs.tracker import without_machine_paths

CONFUSION, RELIABILITY, NUMBERS = "confusion.png", "reliability.png", "numbers.png"
IN_SHORT, AT_LENGTH = 160, 1000
"""How many characters of a text the report shows, and the file of mistakes."""
MOST_CONFUSED = 5


@dataclass(frozen=True)
class EvaluationReport:
    """What an evaluation found.

    `numbers` are the right ones and the found ones where answers are numbers. `tally` says how much
    of the examples the model did not see as it was (see `EncodedRows`).
    """

    title: str
    criterion: str
    num_examples: int
    metrics: Mapping[str, Interval]
    classes: Sequence[Slice]
    slices: Sequence[Slice]
    calibration: Calibration | None
    confusion: ConfusionMatrix | None
    mistakes: Sequence[Outcome]
    numbers: Sequence[tuple[float, float]] = ()
    tally: Mapping[str, int] = field(default_factory=dict)
    comparison: Comparison | None = None
    checks: Sequence[CheckResult] = ()


def evaluation_report(
    task: Task,
    predictions: Sequence[Mapping[str, Any]],
    examples: Sequence[Any],
    *,
    title: str,
    slice_by: Sequence[str],
    num_resamples: int,
    seed: int,
    hurried: bool = False,
) -> EvaluationReport:
    """Measures predictions for examples that have answers; `hurried` as in `bootstrap_intervals`.

    Raises `UserError` for a column that the data lacks.
    """
    groups = documents(examples)
    slicings = usual_slicings(task, predictions, examples)
    results = outcomes(task, predictions, examples)
    slicings += [by_column(results, name) for name in slice_by]
    return EvaluationReport(
        title=title,
        criterion=task.criterion,
        num_examples=len(examples),
        metrics=bootstrap_intervals(
            task,
            predictions,
            examples,
            num_resamples=num_resamples,
            seed=seed,
            groups=groups,
            hurried=hurried,
        ),
        classes=class_metrics(
            task, predictions, examples, num_resamples=num_resamples, seed=seed, groups=groups
        ),
        slices=slice_metrics(
            task,
            predictions,
            examples,
            slicings,
            num_resamples=num_resamples,
            seed=seed,
            groups=groups,
            hurried=hurried,
        ),
        calibration=calibration(task, predictions, examples),
        confusion=confusion_matrix(task, predictions, examples),
        mistakes=[
            replace(each, where=without_machine_paths(each.where))
            for each in worst_mistakes(task, predictions, examples)
        ],
        numbers=[(each.gold, each.found) for each in results if each.is_number],
    )


def summary_lines(report: EvaluationReport) -> list[str]:
    """The metrics with their intervals, a line each, the one that decides first."""
    names = sorted(report.metrics, key=lambda name: name != report.criterion)
    shown = [one_line(readable_metric(name)) for name in names]
    width = max(map(len, shown))
    lines = [
        f"{title:{width}}  {_interval(report.metrics[name])}"
        for title, name in zip(shown, names, strict=True)
    ]
    if report.calibration is not None:
        lines.append(f"{'ece':{width}}  {report.calibration.expected_error:.4f}")
    if report.comparison is not None:
        lines.append(report.comparison.verdict(report.criterion))
    return lines


def write_report(report: EvaluationReport, folder: Path) -> None:
    """Writes report.md, report.json, mistakes.md and the pictures into a folder.

    Each file is written whole or not at all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if report.confusion is not None:
        plot_confusion(report.confusion, folder / CONFUSION, title=report.title)
    if report.calibration is not None:
        plot_reliability(report.calibration, folder / RELIABILITY, title=report.title)
    if report.numbers:
        plot_numbers(report.numbers, folder / NUMBERS, title=report.title)
    title = markdown_text(report.title)
    mistakes = markdown_mistakes(report.mistakes, width=AT_LENGTH)
    write_atomically(folder / "mistakes.md", f"# {title}: worst mistakes\n\n{mistakes}\n")
    write_atomically(folder / "report.md", markdown_report(report))
    text = json.dumps(_as_json(report), indent=1, ensure_ascii=False, default=str)
    write_atomically(folder / "report.json", text + "\n")


def markdown_report(report: EvaluationReport) -> str:
    """The whole report, to read."""
    rows = [
        f"| {markdown_text(readable_metric(name))} | {_interval(each)} |"
        for name, each in report.metrics.items()
    ]
    counts = f"{report.num_examples:,} examples", tally_text(report.tally)
    sections = [
        f"# {markdown_text(report.title)}",
        f"{', '.join(filter(None, counts))}. In brackets 95 % bootstrap intervals.",
        "\n".join(["| metric | value |", "|---|---|", *rows]),
    ]
    if report.comparison is not None:
        sections += ["## Beside the other model", report.comparison.verdict(report.criterion)]
    shown = [name for name in ("precision", "recall", "f1") if report.classes]
    if report.classes:
        sections += ["## Classes", markdown_slices(report.classes, shown)]
    sections += ["## Slices", markdown_slices(report.slices, [report.criterion])]
    if report.calibration is not None:
        found = report.calibration
        sections += [
            "## Calibration",
            f"Expected calibration error {found.expected_error:.4f} (adaptive "
            f"{found.adaptive_error:.4f}), Brier score {found.brier_score:.4f}; mean confidence "
            f"{found.mean_confidence:.3f}, accuracy {found.accuracy:.3f}.",
            f"![Reliability diagram]({RELIABILITY})",
        ]
    if report.confusion is not None:
        sections += [
            "## What is taken for what",
            _confusions(report.confusion),
            f"![Confusion matrix]({CONFUSION})",
        ]
    if report.numbers:
        sections += ["## What is found for what", f"![Found over right answers]({NUMBERS})"]
    if report.checks:
        sections += ["## Behavioural checks", markdown_results(report.checks)]
    sections += ["## Worst mistakes", markdown_mistakes(report.mistakes, width=IN_SHORT)]
    return "\n\n".join(sections) + "\n"


def _interval(found: Interval) -> str:
    if found.is_degenerate:
        return f"{found.value:.4f}"
    return f"{found.value:.4f} ({found.low:.4f} to {found.high:.4f})"


def _confusions(matrix: ConfusionMatrix) -> str:
    """The mistakes made most often."""
    lines = [
        f"| {markdown_text(gold)} | {markdown_text(found)} | {count:,} |"
        for gold, found, count in matrix.most_confused(MOST_CONFUSED)
    ]
    return "\n".join(["| right answer | found | times |", "|---|---|--:|", *lines])


def _as_json(report: EvaluationReport) -> dict[str, Any]:
    described = asdict(replace(report, numbers=()))  # they are many, and in the predictions
    del described["numbers"]
    if report.confusion is not None:
        described["confusion"] = {
            "names": list(report.confusion.names),
            "counts": report.confusion.counts.tolist(),
        }
    return described
