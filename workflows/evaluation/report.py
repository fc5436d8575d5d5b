"""The report of an evaluation: HTML and Markdown pages, JSON, figures, and the worst mistakes."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_core.disk import finite, write_atomically
from bert_core.errors import one_line
from bert_core.evaluation import error_analysis
from bert_core.evaluation.behaviour import CheckResult, shown_text
from bert_core.evaluation.intervals import Comparison, Interval, bootstrap_intervals
from bert_core.evaluation.outcomes import Outcome, outcomes, resampling_units, spans
from bert_core.evaluation.slices import (
    SMALL,
    Slice,
    by_column,
    class_metrics,
    slice_metrics,
    usual_slicings,
)
from bert_core.tasks.encoded_rows import tally_text
from bert_core.tasks.metrics import readable_metric
from bert_core.tasks.task import Task
from workflows.evaluation.drawings import (
    confusion_drawing,
    numbers_drawing,
    reliability_drawing,
)
from workflows.reporting.figures import Figure, saved_figure
from workflows.reporting.render import (
    Cell,
    Figures,
    Page,
    Part,
    Row,
    Section,
    Table,
    markdown,
    write_page,
)
from workflows.runs.tracker import without_machine_paths

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

CONFUSION, RELIABILITY, NUMBERS = "confusion", "reliability", "numbers"
IN_SHORT, AT_LENGTH = 160, 1000
"""Characters of a text in the report, and in the file of mistakes."""
MOST_CONFUSED = 5
DASH = "–"
_FEW = f"95 % intervals in brackets; (few): less than {SMALL} examples"
_TITLES = {"first": "text", "second": "second text", "words": "text"}
_BEHIND_TEXTS = ("right answer", "predicted", "confidence", "where")


@dataclass(frozen=True)
class EvaluationReport:
    """The results of an evaluation.

    `numbers` are pairs (right, predicted) where answers are numbers. `tally` counts examples that
    the model did not read as they are (see `EncodedRows`). `warning` is about predictions that are
    all the same, and empty where they are not.
    """

    title: str
    criterion: str
    num_examples: int
    metrics: Mapping[str, Interval]
    classes: Sequence[Slice]
    slices: Sequence[Slice]
    calibration: error_analysis.Calibration | None
    confusion: error_analysis.ConfusionMatrix | None
    mistakes: Sequence[Outcome]
    numbers: Sequence[tuple[float, float]] = ()
    majority: error_analysis.MajorityClassifier | None = None
    warning: str = ""
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
    """Measures predictions for labelled examples; `hurried` as in `bootstrap_intervals`.

    Raises `UserError` for a column that the data lacks.
    """
    results = outcomes(task, predictions, examples)
    slicings = usual_slicings(task, predictions, examples)
    slicings += [by_column(results, name) for name in slice_by]
    evaluated = task, predictions, examples
    drawn: dict[str, Any] = {
        "num_resamples": num_resamples,
        "seed": seed,
        "groups": resampling_units(examples),
    }
    return EvaluationReport(
        title=title,
        criterion=task.criterion,
        num_examples=len(examples),
        metrics=bootstrap_intervals(*evaluated, hurried=hurried, **drawn),
        classes=class_metrics(*evaluated, **drawn),
        slices=slice_metrics(*evaluated, slicings, hurried=hurried, **drawn),
        calibration=error_analysis.calibration(*evaluated),
        confusion=error_analysis.confusion_matrix(*evaluated),
        mistakes=[
            replace(mistake, where=without_machine_paths(mistake.where))
            for mistake in error_analysis.worst_mistakes(*evaluated)
        ],
        numbers=[(result.gold, result.found) for result in results if result.is_number],
        majority=error_analysis.majority_classifier(task, examples),
        warning=error_analysis.same_answer_warning(
            error_analysis.same_answer(task, predictions, results), len(examples)
        ),
    )


def summary_lines(report: EvaluationReport) -> list[str]:
    """The metrics with their intervals, one per line, the criterion first."""
    names = sorted(report.metrics, key=lambda name: name != report.criterion)
    shown = [one_line(readable_metric(name)) for name in names]
    width = max(map(len, shown))
    lines = [
        f"{title:{width}}  {report.metrics[name].text()}"
        for title, name in zip(shown, names, strict=True)
    ]
    if report.calibration is not None:
        lines.append(f"{'ece':{width}}  {report.calibration.expected_error:.4f}")
    if report.majority is not None:
        lines.append(majority_line(report.majority, report.criterion))
    if report.warning:
        lines.append(f"warning: {one_line(report.warning)}")
    if report.comparison is not None:
        lines.append(report.comparison.verdict(report.criterion))
    return lines


def majority_line(majority: error_analysis.MajorityClassifier, criterion: str) -> str:
    """What the majority classifier scores, the criterion first, in a line."""
    names = dict.fromkeys([criterion, *majority.metrics])
    scores = ", ".join(f"{one_line(name)} {majority.metrics[name]:.4f}" for name in names)
    return f"majority classifier ({one_line(majority.text)}): {scores}"


def write_report(report: EvaluationReport, folder: Path) -> None:
    """Writes report.html, report.md, report.json, mistakes.md and the figures as PNG files.

    Each file is replaced atomically.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figures = {figure.name: figure for figure in _write_figures(report, folder)}
    mistakes = [mistakes_table(report.mistakes, AT_LENGTH)] if report.mistakes else []
    about = f"{len(report.mistakes)} wrong answers, the most confident first"
    page = Page(f"{report.title}: worst mistakes", about, sections=[Section("Mistakes", mistakes)])
    write_atomically(folder / "mistakes.md", markdown(page))
    write_page(report_page(report, figures), folder)
    text = json.dumps(finite(_as_json(report)), indent=1, ensure_ascii=False, default=str)
    write_atomically(folder / "report.json", text + "\n")


def report_page(report: EvaluationReport, figures: Mapping[str, Figure]) -> Page:
    """The report as a page; `figures` by name, those that were drawn."""

    def drawn(name: str) -> list[Part]:
        return [Figures([figures[name]])] if name in figures else []

    warnings: list[Part] = [f"Warning: {report.warning}."] if report.warning else []
    sections = [Section("Metrics", [*warnings, _metrics_table(report)])]
    if report.comparison is not None:
        sections.append(Section("Comparison", [report.comparison.verdict(report.criterion)]))
    if report.classes:
        table = slices_table(_FEW, report.classes, ["precision", "recall", "f1"], counted="support")
        sections.append(Section("Classes", [table]))
    if report.slices:
        table = slices_table(_FEW, report.slices, [report.criterion])
        sections.append(Section("Slices", [table]))
    if report.calibration is not None:
        sections.append(
            Section("Calibration", [_calibration_text(report.calibration), *drawn(RELIABILITY)])
        )
    if report.confusion is not None:
        table = _confusions_table(report.confusion)
        sections.append(Section("Confusions", [table, *drawn(CONFUSION)]))
    if report.numbers:
        sections.append(Section("Predicted numbers", drawn(NUMBERS)))
    if report.checks:
        sections.append(Section("Behavioural checks", checks_parts(report.checks)))
    worst = mistakes_table(report.mistakes, IN_SHORT) if report.mistakes else "None."
    sections.append(Section("Worst mistakes", [worst]))
    best = report.metrics[report.criterion]
    counts = f"{report.num_examples:,} examples", tally_text(report.tally)
    return Page(
        title=report.title,
        verdict=f"{readable_metric(report.criterion)} {best.text()}",
        facts=[("Data", ", ".join(filter(None, counts)))],
        sections=sections,
    )


def _metrics_table(report: EvaluationReport) -> Table:
    """Each metric with its interval, and next to it the majority classifier's."""
    majority, columns = report.majority, ["metric", "value"]
    rows = [
        [readable_metric(name), Cell(found.text(), found.value)]
        for name, found in report.metrics.items()
    ]
    about = "95 % bootstrap intervals in brackets"
    if majority is not None:
        about += f"; the majority classifier always answers {majority.text}"
        columns.append("majority classifier")
        for row, name in zip(rows, report.metrics, strict=True):
            value = majority.metrics[name]
            row.append(Cell(f"{value:.4f}", value))
    return Table(about, columns, [Row(row) for row in rows])


def slices_table(
    caption: str, slices: Sequence[Slice], metrics: Sequence[str], *, counted: str = "examples"
) -> Table:
    """Some metrics of slices, of so many that are `counted`; small slices are marked.

    A figure without an interval is one that no sample changes, as where all answers are right.
    """

    def cell(found: Interval | None) -> Cell:
        if found is None:
            return Cell(DASH)
        return Cell(found.text(".3f"), found.value)

    rows = []
    for part in slices:
        count = Cell(f"{part.count}{' (few)' if part.is_small else ''}", part.count)
        rows.append(
            Row([part.by, part.name, count, *(cell(part.metrics.get(name)) for name in metrics)])
        )
    return Table(caption, ["by", "slice", counted, *metrics], rows)


def checks_parts(results: Sequence[CheckResult]) -> list[Part]:
    """A table of all behavioural checks, and the worst failures of each that failed."""
    rows = [
        Row(
            [
                result.name,
                result.kind,
                Cell(str(result.num_cases), result.num_cases),
                Cell(f"{result.num_failures} ({result.failure_rate:.1%})", result.num_failures),
            ]
        )
        for result in results
    ]
    failures = []
    for result in results:
        for failure in result.failures:
            texts = [failure.case.before, failure.case.after]
            shown = " → ".join(shown_text(text) for text in texts if text is not None)
            failures.append(Row([result.name, shown, failure.expected, failure.found]))
    parts: list[Part] = [Table("Checks", ["check", "kind", "cases", "failed"], rows)]
    if failures:
        parts.append(Table("Worst failures", ["check", "text", "expected", "predicted"], failures))
    return parts


def mistakes_table(mistakes: Sequence[Outcome], width: int) -> Table:
    """Mistakes with texts cut to `width` characters."""
    rows = mistake_rows(mistakes, width)
    table = [Row([_confidence_cell(name, text) for name, text in row.items()]) for row in rows]
    return Table("Wrong answers, the most confident first", list(rows[0]), table)


def mistake_rows(mistakes: Sequence[Outcome], width: int) -> list[dict[str, str]]:
    """For each mistake its texts, right answer, prediction, confidence and place, by column.

    Texts are cut to `width` characters. All rows have the same columns; columns that are empty
    throughout are left out. Of entities only those are shown that the other side lacks.
    """
    rows = [_mistake_row(mistake, width) for mistake in mistakes]
    used = {name: None for row in rows for name in row if any(other.get(name) for other in rows)}
    names = sorted(used, key=lambda name: name in _BEHIND_TEXTS)
    return [{name: row.get(name, "") for name in names} for row in rows]


def _write_figures(report: EvaluationReport, folder: Path) -> list[Figure]:
    """Draws each figure twice: with a title as a PNG file, and without for the page."""
    drawings: dict[str, tuple[Callable[[str], Drawing], str]] = {}
    confusion, calibrated, numbers = report.confusion, report.calibration, report.numbers
    if confusion is not None:
        caption = "Colors are shares of a row, numbers are counts."
        drawings[CONFUSION] = lambda title: confusion_drawing(confusion, title), caption
    if calibrated is not None:
        caption = (
            f"Reliability diagram: ECE {calibrated.expected_error:.3f}, "
            f"{calibrated.num_decisions:,} decisions."
        )
        drawings[RELIABILITY] = lambda title: reliability_drawing(calibrated, title), caption
    if numbers:
        caption = "Predicted numbers over right ones."
        drawings[NUMBERS] = lambda title: numbers_drawing(numbers, title), caption
    return [
        saved_figure(draw, folder / f"{name}.png", title=report.title, caption=caption)
        for name, (draw, caption) in drawings.items()
    ]


def _calibration_text(found: error_analysis.Calibration) -> str:
    return (
        f"Expected calibration error {found.expected_error:.4f} (adaptive "
        f"{found.adaptive_error:.4f}), Brier score {found.brier_score:.4f}; mean confidence "
        f"{found.mean_confidence:.3f}, accuracy {found.accuracy:.3f}."
    )


def _confusions_table(matrix: error_analysis.ConfusionMatrix) -> Table:
    rows = [
        Row([gold, found, Cell(f"{count:,}", count)])
        for gold, found, count in matrix.most_confused(MOST_CONFUSED)
    ]
    return Table("Most frequent confusions", ["right answer", "predicted", "times"], rows)


def _confidence_cell(column: str, text: str) -> str | Cell:
    return Cell(text, float(text)) if column == "confidence" and text else text


def _mistake_row(mistake: Outcome, width: int) -> dict[str, str]:
    gold, found, texts = mistake.gold, mistake.found, mistake.texts
    if "words" in texts:
        gold, found = _without(gold, found), _without(found, gold)
    if "choices" in texts:
        gold, found = (f"({index}) {texts['choices'][index]}" for index in (gold, found))
    answers = [*gold, found] if "question" in texts else []
    return {
        **{
            _TITLES.get(name, name): _excerpt(_joined(name, text), answers, width)
            for name, text in texts.items()
        },
        "right answer": _answer_text(gold),
        "predicted": _answer_text(found),
        "confidence": "" if mistake.confidence is None else f"{mistake.confidence:.3f}",
        "where": mistake.where,
    }


def _without(entities: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    return [entity for entity in entities if not spans([entity]) & spans(others)]


def _joined(name: str, text: Any) -> str:  # noqa: ANN401 - a text, words, choices, or anything
    if not isinstance(text, list | tuple):
        return "" if text is None else str(text)
    if name == "choices":
        return "  ".join(f"({index}) {choice}" for index, choice in enumerate(text))
    return " ".join(map(str, text))


def _excerpt(text: str, answers: Sequence[str], width: int) -> str:
    """At most `width` characters of a text, those around the first of the answers in it."""
    text = " ".join(text.split())
    if len(text) <= width:
        return text
    place = next((text.find(answer) for answer in answers if answer and answer in text), 0)
    room = width - 1
    begin = min(place - width // 4, len(text) - room)
    if begin <= 0:
        return f"{text[:room]}…"
    rest = text[begin:]
    return f"…{rest}" if len(rest) == room else f"…{rest[: room - 1]}…"


def _answer_text(answer: Any) -> str:  # noqa: ANN401 - of any task
    match answer:
        case str():
            return answer or "(none)"
        case float():
            return f"{answer:.2f}"
        case {"type": kind, "text": text, **rest}:
            sure = f", {rest['score']:.2f}" if "score" in rest else ""
            return f"{text} ({kind}{sure})"
        case Mapping():
            return json.dumps(answer, ensure_ascii=False, default=str)
        case Sequence():
            return " / ".join(map(_answer_text, answer)) or "(none)"
    return str(answer)


def _as_json(report: EvaluationReport) -> dict[str, Any]:
    described = asdict(replace(report, numbers=()))  # they are many, and in the predictions
    del described["numbers"]
    if report.confusion is not None:
        described["confusion"] = {
            "names": list(report.confusion.names),
            "counts": report.confusion.counts.tolist(),
        }
    return described
