"""The report of an evaluation: predictions and examples go in; Markdown, JSON and pictures out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bert_core.evaluation.behaviour import CheckResult, markdown_results
from bert_core.evaluation.bootstrap import Interval, bootstrap_intervals
from bert_core.evaluation.calibration import Calibration, calibration
from bert_core.evaluation.comparison import Comparison
from bert_core.evaluation.confusion import ConfusionMatrix, confusion_matrix, worst_mistakes
from bert_core.evaluation.outcomes import Outcome, documents, outcomes
from bert_core.evaluation.slices import (
    Slice,
    class_metrics,
    markdown_slices,
    slice_metrics,
    usual_slicings,
)
from bert_core.evaluation.slicing import by_column
from bert_core.tasks.task import Task
from workflows.evaluation_plots import plot_confusion, plot_reliability
from workflows.run_folder import write_atomically

CONFUSION, RELIABILITY = "confusion.png", "reliability.png"
TEXT_CHARACTERS = 160
"""How much of a text the table of mistakes shows."""


@dataclass(frozen=True)
class EvaluationReport:
    """What an evaluation found; `num_truncated` examples lost tokens to the length."""

    title: str
    criterion: str
    num_examples: int
    metrics: Mapping[str, Interval]
    classes: Sequence[Slice]
    slices: Sequence[Slice]
    calibration: Calibration | None
    confusion: ConfusionMatrix | None
    mistakes: Sequence[Outcome]
    comparison: Comparison | None = None
    checks: Sequence[CheckResult] = ()
    num_truncated: int = 0


def evaluation_report(
    task: Task,
    predictions: Sequence[Mapping[str, Any]],
    examples: Sequence[Any],
    *,
    title: str,
    slice_by: Sequence[str],
    num_resamples: int,
    seed: int,
) -> EvaluationReport:
    """Measures predictions for examples that have answers.

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
            task, predictions, examples, num_resamples=num_resamples, seed=seed, groups=groups
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
        ),
        calibration=calibration(task, predictions, examples),
        confusion=confusion_matrix(task, predictions, examples),
        mistakes=worst_mistakes(task, predictions, examples),
    )


def summary_lines(report: EvaluationReport) -> list[str]:
    """The metrics with their intervals, a line each, the one that decides first."""
    names = sorted(report.metrics, key=lambda name: name != report.criterion)
    width = max(map(len, names))
    lines = [f"{name:{width}}  {_interval(report.metrics[name])}" for name in names]
    if report.calibration is not None:
        lines.append(f"{'ece':{width}}  {report.calibration.expected_error:.4f}")
    if report.comparison is not None:
        lines.append(report.comparison.verdict(report.criterion))
    return lines


def write_report(report: EvaluationReport, folder: Path) -> None:
    """Writes report.md, report.json and the pictures into a folder, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    if report.confusion is not None:
        plot_confusion(report.confusion, folder / CONFUSION, title=report.title)
    if report.calibration is not None:
        plot_reliability(report.calibration, folder / RELIABILITY, title=report.title)
    write_atomically(folder / "report.md", markdown_report(report))
    text = json.dumps(_as_json(report), indent=1, ensure_ascii=False, default=str)
    write_atomically(folder / "report.json", text + "\n")


def markdown_report(report: EvaluationReport) -> str:
    """The whole report, to read."""
    rows = [f"| {name} | {_interval(each)} |" for name, each in report.metrics.items()]
    sections = [
        f"# {report.title}",
        f"{report.num_examples:,} examples, {report.num_truncated:,} truncated. Behind each figure "
        "its 95 % bootstrap interval.",
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
        sections += ["## What is taken for what", f"![Confusion matrix]({CONFUSION})"]
    if report.checks:
        sections += ["## Behavioural checks", markdown_results(report.checks)]
    sections += ["## Worst mistakes", _mistakes(report.mistakes)]
    return "\n\n".join(sections) + "\n"


def _interval(found: Interval) -> str:
    return f"{found.value:.4f} ({found.low:.4f} to {found.high:.4f})"


def _mistakes(mistakes: Sequence[Outcome]) -> str:
    if not mistakes:
        return "None."
    lines = ["| text | right answer | found | confidence |", "|---|---|---|--:|"]
    for each in mistakes:
        texts = " / ".join(_cell(text) for text in each.texts.values())
        sure = "" if each.confidence is None else f"{each.confidence:.3f}"
        lines.append(f"| {texts} | {_cell(each.gold)} | {_cell(each.found)} | {sure} |")
    return "\n".join(lines)


def _cell(value: Any) -> str:  # noqa: ANN401 - any answer
    text = " ".join(str(value).split()).replace("|", "\\|")
    return text if len(text) <= TEXT_CHARACTERS else text[: TEXT_CHARACTERS - 1] + "…"


def _as_json(report: EvaluationReport) -> dict[str, Any]:
    described = asdict(report)
    if report.confusion is not None:
        described["confusion"] = {
            "names": list(report.confusion.names),
            "counts": report.confusion.counts.tolist(),
        }
    return described
