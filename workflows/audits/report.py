"""The report of an audit: its findings go in; a page, Markdown with a figure and JSON come out."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_core.disk import finite, write_atomically
from bert_core.errors import one_line
from bert_core.evaluation.error_analysis import ConfusionMatrix, MajorityClassifier
from bert_core.evaluation.label_errors import NoisePair
from bert_core.tasks.metrics import readable_metric
from workflows.audits.findings import RANKING, SUSPECTS, AuditFindings, Judgement, Label
from workflows.audits.retraining import TITLES, Retrained
from workflows.evaluation.drawings import confusion_drawing
from workflows.finetuning.splits import place_of
from workflows.reporting.figures import Chart, Figure, inline_figure, shortened
from workflows.reporting.render import (
    PAGE,
    Cell,
    Facts,
    Figures,
    Page,
    Row,
    Section,
    Table,
    write_report,
)
from workflows.runs.tracker import without_machine_paths
from workflows.sweeps.folds import OUT_OF_FOLD

DATA, NOISE = "report.json", "noise"
FIRST, MOST_PAIRS, MOST_BARS = 25, 10, 12
IN_SHORT = 160
"""Suspects, pairs and bars that the page shows, and characters of a text."""
_LIMIT = (
    "A suspect is a label that models trained on the other folds contradict. That may be an error"
    " or an example that is hard: read the suspects before anything is done about them."
)


@dataclass(frozen=True)
class AuditReport:
    """An audit as its page tells it; `metrics` are out of fold, all training examples together.

    `majority` is None where labels are of words. `retrained` is None where nothing was retrained,
    and then `not_retrained` says why.
    """

    name: str
    task: str
    model: str
    data: str
    folds: int
    seeds: int
    criterion: str
    metrics: dict[str, float]
    findings: AuditFindings
    majority: MajorityClassifier | None = None
    retrained: Retrained | None = None
    not_retrained: str = ""


def write_audit_report(report: AuditReport, folder: Path) -> None:
    """Writes report.html, report.md with its figure and report.json, each atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / DATA, json.dumps(finite(as_json(report)), indent=1) + "\n")
    write_report(audit_page(report), folder, outdated=[f"{NOISE}.svg"])


def as_json(report: AuditReport) -> dict[str, Any]:
    """The report as data, without the texts, which suspects.jsonl has."""
    findings, errors = report.findings, report.findings.errors
    described: dict[str, Any] = {
        "name": report.name,
        "task": report.task,
        "model": without_machine_paths(report.model),
        "data": without_machine_paths(report.data),
        "folds": report.folds,
        "seeds": report.seeds,
        "criterion": report.criterion,
        "out_of_fold": report.metrics,
        "warnings": warnings(report),
        "unit": findings.unit,
        "num_examples": findings.num_examples,
        "num_units": len(findings.judgements),
        "not_judged": dict(findings.unjudged),
        "num_suspects": len(findings.suspects),
        "num_suspect_examples": findings.num_suspect_examples,
        "estimated_noise": errors.share,
        "noise": [asdict(pair) for pair in errors.noise],
        "retrained": None,
        "not_retrained": report.not_retrained,
    }
    if report.retrained is not None:
        described["retrained"] = asdict(report.retrained)
    return described


def summary_lines(report: AuditReport, folder: Path) -> list[str]:
    """What the audit came to, for a terminal."""
    return [
        f"out of fold  {out_of_fold_text(report)}",
        *(f"warning      {each}" for each in warnings(report)),
        f"suspects     {suspects_text(report.findings)}",
        *(f"not judged   {each}" for each in unjudged_texts(report.findings)),
        f"noise        {noise_text(report.findings)}",
        f"retrained    {retrained_text(report)}",
        f"list         {folder / SUSPECTS}.csv",
        f"report       {folder / PAGE}",
    ]


def out_of_fold_text(report: AuditReport) -> str:
    """How good the models are that judge, in words."""
    metrics = ", ".join(f"{readable_metric(n)} {each:.3f}" for n, each in report.metrics.items())
    return f"{report.findings.num_examples:,} training examples together: {metrics}"


def warnings(report: AuditReport) -> list[str]:
    """Whether the models have learned too little to judge, in words; else nothing."""
    majority, name = report.majority, report.criterion
    if majority is None or report.metrics[name] > majority.metrics[name]:
        return []
    return [
        f"the models are no better than always answering {one_line(majority.text)}"
        f" ({readable_metric(name)} {majority.metrics[name]:.3f}): what they suspect says nothing;"
        " train them longer (--epochs, --optimizer.peak_learning_rate)"
    ]


def suspects_text(findings: AuditFindings) -> str:
    """How many are suspected, in words."""
    total, count = len(findings.judgements), len(findings.suspects)
    share = f"{count / max(total, 1):.1%}"
    if findings.unit == "example":
        return f"{count:,} of {total:,} training examples ({share})"
    sentences = f"in {findings.num_suspect_examples:,} of {findings.num_examples:,} examples"
    return f"{count:,} of {total:,} words ({share}), {sentences}"


def unjudged_texts(findings: AuditFindings) -> list[str]:
    """What could not be judged, in words; nothing where everything was."""
    counts = findings.unjudged
    if not counts:
        return []
    first = ", ".join(f"{one_line(name)} {count:,}" for name, count in [*counts.items()][:5])
    more = ", …" if len(counts) > 5 else ""
    whose = "that examples of one fold alone have, or lack"
    whose = whose if findings.errors.joint is None else "that only one fold has"
    return [f"{sum(counts.values()):,} of labels {whose}: {first}{more}"]


def noise_text(findings: AuditFindings) -> str:
    """The estimated share of wrong labels, and the most frequent pairs."""
    first = "; ".join(
        f"{_side(pair.given, pair.likely)} → {_side(pair.likely, pair.given)} {pair.count:,.0f}"
        for pair in findings.errors.noise[:3]
    )
    share = f"{findings.errors.share:.1%} of the {findings.unit}s, estimated"
    return f"{share}: {first}" if first else share


def retrained_text(report: AuditReport) -> str:
    """The criterion of both models and their difference, in words."""
    found = report.retrained
    if found is None:
        return f"no: {report.not_retrained}"
    metric = found.differences[found.criterion]
    span = metric.difference
    return (
        f"{readable_metric(found.criterion)} {metric.first:.3f} with all, {metric.second:.3f}"
        f" without the suspects: {span.value:+.3f} (95 % interval {span.low:+.3f} to"
        f" {span.high:+.3f}{_of_seeds(found)})"
    )


def _of_seeds(found: Retrained) -> str:
    return f", {len(found.runs)} seeds of each" if len(found.runs) > 1 else ""


def models_text(report: AuditReport) -> str:
    """How many models judge, and what."""
    if report.seeds == 1:
        return f"{report.folds}, each judges the fold that it has not learned from"
    return (
        f"{report.folds * report.seeds}: {report.seeds} seeds judge each of {report.folds} folds,"
        " which they have not learned from, by the mean of their probabilities"
    )


def audit_page(report: AuditReport) -> Page:
    """The page of an audit."""
    findings = report.findings
    facts = [
        ("task", f"{report.task}, data {without_machine_paths(report.data)}"),
        ("encoder", without_machine_paths(report.model)),
        ("models", models_text(report)),
        ("out of fold", out_of_fold_text(report)),
        *(("warning", each) for each in warnings(report)),
        ("suspects", suspects_text(findings)),
        *(("not judged", each) for each in unjudged_texts(findings)),
        ("noise", noise_text(findings)),
        ("retrained", retrained_text(report)),
    ]
    sections = [
        Section("Suspects", [_LIMIT, _suspects_table(findings)]),
        Section("Noise", _noise_parts(findings)),
        Section("Retraining", [_retraining(report)]),
        Section("Files", [Facts(_files(findings))]),
    ]
    result = f"{suspects_text(findings)} are suspected of a wrong label"
    return Page(f"Audit {report.name}", result, facts, sections)


def _suspects_table(findings: AuditFindings) -> Table:
    shown = findings.suspects[:FIRST]
    pair = any(len(each.texts) > 1 for each in shown)
    texts = ["text", "second text"] if pair else ["text"]
    word = ["word"] if findings.unit == "word" else []
    rows = [Row(_cells(rank, each, len(texts))) for rank, each in enumerate(shown, start=1)]
    columns = ["rank", *texts, *word, "label", "likely label", "probability of the label"]
    more = len(findings.suspects) - len(shown)
    notes = ["Ranked by cleanlab's label quality, the out-of-fold probability of the given label."]
    notes += [f"{more:,} more in {SUSPECTS}.csv"] if more > 0 else []
    return Table("The first suspects", [*columns, "of the likely one", "where"], rows, notes)


def _cells(rank: int, found: Judgement, num_texts: int) -> list[Cell]:
    texts = [shortened(text, IN_SHORT) for text in found.texts[:num_texts]]
    word = [] if found.word is None else [Cell(f"{one_line(found.token)} ({found.word})")]
    return [
        Cell(str(rank), rank),
        *(Cell(text) for text in texts),
        *(Cell("") for _ in range(num_texts - len(texts))),
        *word,
        Cell(_label_text(found.label)),
        Cell(_label_text(found.suggested)),
        Cell(f"{found.label_probability:.3f}", found.label_probability),
        Cell(f"{found.suggested_probability:.3f}", found.suggested_probability),
        Cell(place_of(found.where)),
    ]


def _label_text(label: Label) -> str:
    return label if isinstance(label, str) else ", ".join(label) or "none"


def _noise_parts(findings: AuditFindings) -> list[Any]:
    noise = findings.errors.noise
    if not noise:
        return ["No label is estimated to be wrong."]
    rows = [
        Row([_side(pair.given, pair.likely), _side(pair.likely, pair.given), _count(pair)])
        for pair in noise[:MOST_PAIRS]
    ]
    note = "Counts are estimated by confident learning (Northcutt et al. 2021), not by reading."
    columns = ["given", "likely", f"{findings.unit}s"]
    return [
        Figures([noise_figure(findings)], NOISE),
        Table("The most frequent errors", columns, rows, [note]),
    ]


def _count(pair: NoisePair) -> Cell:
    return Cell(f"{pair.count:,.0f}", pair.count)


def _side(label: str, other: str) -> str:
    """A label of a pair, or that the other one is not there."""
    return one_line(label) if label else f"not {one_line(other)}"


def noise_figure(findings: AuditFindings) -> Figure:
    """The matrix of given and likely labels; of several labels bars."""
    errors = findings.errors
    if errors.joint is None:
        shown = errors.noise[:MOST_BARS]
        chart = Chart("Estimated errors", (5.0, 0.6 + 0.3 * len(shown)))
        names = [
            f"{_side(each.given, each.likely)} → {_side(each.likely, each.given)}" for each in shown
        ]
        counts = [each.count for each in shown]
        chart.bars(names, counts, [f"{count:,.0f}" for count in counts])
        alt = f"Bars: estimated errors of {len(shown)} kinds"
        return chart.finish(NOISE, caption="The most frequent errors, estimated.", alt=alt)
    counts = np.rint(errors.joint).astype(np.int64)
    matrix = ConfusionMatrix(tuple(map(one_line, findings.task.labels)), counts)
    caption = f"{findings.unit.capitalize()}s by given and likely label, estimated."
    return inline_figure(
        confusion_drawing(matrix, sides=("given label", "likely label")),
        NOISE,
        caption=caption,
        alt=caption,
    )


def _retraining(report: AuditReport) -> Table | str:
    found = report.retrained
    if found is None:
        return f"Nothing was retrained: {report.not_retrained}."
    rows = []
    for name in sorted(found.differences, key=lambda name: name != found.criterion):
        metric = found.differences[name]
        span = metric.difference
        values = [Cell(f"{value:.3f}", value) for value in (metric.first, metric.second)]
        cells = [readable_metric(name), *values, Cell(span.text("+.3f"), span.value)]
        rows.append(Row(cells, highlighted=name == found.criterion))
    counts = [f"{title}: {n:,}" for title, n in zip(TITLES, found.num_train, strict=True)]
    notes = [
        f"Training examples: {', '.join(counts)}; both measured on the same {found.num_dev:,} dev"
        " examples, whose labels nobody has audited.",
        "In brackets the 95 % interval of the difference by paired bootstrap over dev examples; one"
        " run each, so another seed may differ by as much."
        if len(found.runs) == 1
        else f"Means of {len(found.runs)} seeds of each; in brackets the 95 % interval of the"
        " difference over seeds, on these dev examples.",
    ]
    columns = ["metric", *TITLES, "difference"]
    return Table("Runs of the same settings", columns, rows, notes)


def _files(findings: AuditFindings) -> list[tuple[str, str]]:
    ranked = "every training example that is judged, the most suspect first"
    if findings.unit == "word":
        ranked += ", each with its worst word"
    return [
        (
            f"{SUSPECTS}.csv",
            "the suspects, for spreadsheets, labelling tools and --exclude",
        ),
        (f"{SUSPECTS}.jsonl", "the same; texts exactly as they are"),
        (f"{RANKING}.jsonl", ranked),
        (f"{OUT_OF_FOLD}.jsonl", "every example's prediction by the model that has not seen it"),
    ]
