"""The files and the page of an audit, of labels and texts that are meant to break them."""

import csv
import json
import sys

import numpy as np
import pytest
from hostile_labels import HOSTILE_LABELS
from read_pages import Page

from bert_core.errors import UserError
from bert_core.evaluation.error_analysis import majority_classifier
from bert_core.evaluation.label_errors import refuse_without_cleanlab
from bert_core.tasks.classification import Classification, Text
from workflows.audits.findings import audit_findings
from workflows.audits.report import AuditReport, write_audit_report
from workflows.finetuning.splits import of_cell
from workflows.sweeps.folds import OutOfFold

TEXTS = ("=HYPERLINK(1)", "<img src=x onerror=alert(1)>", "two\nlines, | and `x`", "a" * 5000)


def out_of_fold(labels, kind="single"):
    """Eight examples of each label, of which the first has the next one's."""
    task = Classification(labels=labels, kind=kind)
    examples, predictions = [], []
    for number in range(8 * len(labels)):
        right = number % len(labels)
        given = (right + 1) % len(labels) if number < len(labels) else right
        scores = np.full(len(labels), 0.1 / len(labels))
        scores[right] = 0.8 + 0.001 * (number % 7)
        answer = (labels[given],) if kind == "multiple" else labels[given]
        where = f"/some where/train.csv:{number + 2}"
        examples.append(Text(TEXTS[number % 4] + str(number), None, answer, where))
        scores = dict(zip(labels, scores.tolist(), strict=True))
        predictions.append({"label": labels[right], "labels": [labels[right]], "scores": scores})
    return OutOfFold(task, examples, predictions, [n % 2 for n in range(len(examples))])


def written(found, folder):
    findings = audit_findings(found, [])
    findings.write(folder)
    report = AuditReport(
        name="<b>audit</b>",
        task="classification",
        model="/models/some/m",
        data="/data/d",
        folds=2,
        seeds=1,
        criterion=found.task.criterion,
        metrics=found.metrics,
        findings=findings,
        majority=majority_classifier(found.task, found.examples),
        not_retrained="--no-retrain",
    )
    write_audit_report(report, folder)
    return findings


@pytest.mark.parametrize("kind", ["single", "multiple"])
def test_a_label_of_one_fold_is_not_judged_and_counted(tmp_path, kind):
    found = out_of_fold(("up", "down", "rare"), kind)
    keep = [n for n, each in enumerate(found.examples) if "rare" not in each.answer]
    keep += [n for n, each in enumerate(found.examples) if "rare" in each.answer][:3]
    found = OutOfFold(
        found.task,
        [found.examples[n] for n in keep],
        [found.predictions[n] for n in keep],
        [0 if "rare" in found.examples[n].answer else n // 3 % 2 for n in keep],
    )
    findings = written(found, tmp_path)
    assert findings.unjudged == {"rare": 3}
    for each in findings.suspects:
        assert ("rare" in each.label) == ("rare" in each.suggested)
    assert all("rare" not in (each.given, each.likely) for each in findings.errors.noise)
    judged = {each.example for each in findings.judgements}
    assert len(judged) == len(found.examples) - (3 if kind == "single" else 0)
    whose = "that only one fold has" if kind == "single" else "that examples of one fold alone have"
    assert f"3 of labels {whose}" in (tmp_path / "report.md").read_text()
    assert json.loads((tmp_path / "report.json").read_text())["not_judged"] == {"rare": 3}


@pytest.mark.parametrize("kind", ["single", "multiple"])
def test_models_that_have_learned_nothing_are_told(tmp_path, kind):
    found = out_of_fold(("up", "down", "odd"), kind)
    written(found, tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["warnings"] == []
    worse = [{**each, "label": "odd", "labels": []} for each in found.predictions]
    written(OutOfFold(found.task, found.examples, worse, found.fold), tmp_path)
    (warning,) = json.loads((tmp_path / "report.json").read_text())["warnings"]
    assert "no better than always answering" in warning
    assert warning in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize("kind", ["single", "multiple"])
def test_hostile_labels_and_texts_are_text_everywhere(tmp_path, kind):
    found = out_of_fold(HOSTILE_LABELS, kind)
    findings = written(found, tmp_path)
    assert findings.suspects
    with (tmp_path / "suspects.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    read = [json.loads(line) for line in (tmp_path / "suspects.jsonl").open(encoding="utf-8")]
    assert len(rows) == len(read) == len(findings.suspects)
    by_place = {example.where.rpartition("/")[2]: example for example in found.examples}
    for row, record in zip(rows, read, strict=True):
        example = by_place[record["where"]]
        assert of_cell(row["text"]) == record["text"] == example.first
        assert not row["text"].startswith("=")
        label = json.loads(row["label"]) if kind == "multiple" else of_cell(row["label"])
        assert label == record["label"]
        assert (tuple(label) if kind == "multiple" else label) == example.answer
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page and "<img src=x" not in page
    assert "/some where" not in page and "/models/" not in page and len(page) < 2_000_000
    reader = Page()
    reader.feed(page)
    assert reader.open == [] and "<b>audit" in "".join(reader.words)
    json.loads((tmp_path / "report.json").read_text())


def test_without_suspects_there_is_a_page(tmp_path):
    found = out_of_fold(("a", "b", "c"))
    examples = [
        Text(each.first, None, prediction["label"], each.where)
        for each, prediction in zip(found.examples, found.predictions, strict=True)
    ]
    (tmp_path / "noise.svg").write_text("an earlier one")
    findings = written(OutOfFold(found.task, examples, found.predictions, found.fold), tmp_path)
    assert findings.suspects == []
    assert (tmp_path / "suspects.csv").read_text().splitlines()[0].startswith("rank,where,text")
    assert "No label is estimated to be wrong" in (tmp_path / "report.md").read_text()
    assert not (tmp_path / "noise.svg").exists()


def test_without_cleanlab_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cleanlab", None)
    with pytest.raises(UserError, match=r"cleanlab is not installed.*'\.\[audit\]'") as error:
        refuse_without_cleanlab()
    assert "\n" not in str(error.value)
