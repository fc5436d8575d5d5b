"""The report of an evaluation: its parts, its drawings, its tables of mistakes."""

import json
from dataclasses import replace
from typing import ClassVar
from xml.etree import ElementTree

import numpy as np
import pytest
from hostile_labels import HOSTILE_LABELS
from made_up_predictions import KINDS, MAKERS

from bert_core.evaluation.error_analysis import ConfusionMatrix
from bert_core.evaluation.intervals import Interval
from bert_core.evaluation.outcomes import Outcome
from bert_core.evaluation.slices import Slice
from bert_core.strict_files import read_json_object
from bert_core.tasks.classification import Classification, Text
from workflows.evaluation.drawings import confusion_drawing
from workflows.evaluation.report import (
    DASH,
    evaluation_report,
    mistake_rows,
    mistakes_table,
    slices_table,
    summary_lines,
    write_report,
)
from workflows.reporting.figures import save_picture

TASK = Classification(labels=("no", "yes"))


def test_the_report_says_what_its_parts_found(tmp_path):
    texts = [Text(f"text {n} | {'x' * 300}", None, "yes" if n % 2 else "no") for n in range(40)]
    texts = [
        replace(
            text,
            where=f"/data/some/where/dev.tsv:{number}",
            columns={"source": "web", "price": float("nan")},
        )
        for number, text in enumerate(texts)
    ]
    found = ["yes", *[each.answer for each in texts[1:]]]
    predictions = [
        {
            "label": label,
            "scores": {"no": 0.1, "yes": 0.9} if label == "yes" else {"no": 0.8, "yes": 0.2},
        }
        for label in found
    ]
    report = evaluation_report(
        TASK, predictions, texts, title="t", slice_by=["source"], num_resamples=100, seed=0
    )
    assert report.metrics["accuracy"].value == 39 / 40
    assert summary_lines(report)[0].startswith("accuracy")
    write_report(report, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "| source | web | 40 |" in text
    (mistake,) = [line for line in text.splitlines() if line.startswith("| text 0")]
    assert "\\|" in mistake and "…" in mistake
    assert mistake.endswith("| no | yes | 0.900 | …/dev.tsv:0 |")
    assert "| no | yes | 1 |" in text, "the most frequent confusion"
    names = {each.name for each in tmp_path.iterdir()}
    pages = {"report.html", "report.md", "report.json", "mistakes.md"}
    assert names == {*pages, "confusion.png", "reliability.png"}
    assert all("/data" not in (tmp_path / name).read_text() for name in pages)
    assert "x" * 300 in (tmp_path / "mistakes.md").read_text()
    content = read_json_object(tmp_path / "report.json")
    assert content["num_examples"] == 40
    assert content["mistakes"][0]["columns"] == {"source": "web", "price": None}


def test_the_majority_classifier_and_predictions_that_are_all_the_same_are_named(tmp_path):
    texts = [Text("text", None, "yes" if number < 10 else "no") for number in range(40)]
    predictions = [{"label": "no", "scores": {"no": 0.9, "yes": 0.1}}] * 40
    for some, warns in ((predictions, True), ([*predictions[1:], right(texts[0])], False)):
        report = evaluation_report(
            TASK, some, texts, title="t", slice_by=[], num_resamples=50, seed=0
        )
        assert report.classes[1].count == 10, "the support"
        lines = summary_lines(report)
        assert "majority classifier (no): accuracy 0.7500, f1_macro 0.4286" in "\n".join(lines)
        warning = "all 40 predictions are the same: no"
        assert (f"warning: {warning}" in lines) == warns
        write_report(report, tmp_path)
        text = (tmp_path / "report.md").read_text()
        assert (f"Warning: {warning}." in text) == warns
        assert "| metric | value | majority classifier |" in text and "| 0.7500 |" in text
        assert "| by | slice | support |" in text


def right(text):
    return {"label": text.answer, "scores": {"no": 0.1, "yes": 0.9}}


PICTURES = {
    "two labels": {"confusion", "reliability"},
    "five labels": {"confusion", "reliability"},
    "sets": {"reliability"},
    "numbers": {"numbers"},
    "tags": {"confusion", "reliability"},
    "choices": {"reliability"},
    "squad": {"reliability"},
    "squad v2": {"reliability"},
}


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_task_has_its_pictures_and_its_tally(kind, tmp_path):
    made = MAKERS[kind](np.random.default_rng(0), 60)
    report = evaluation_report(*made.of, title=kind, slice_by=[], num_resamples=50, seed=0)
    tally = {"examples truncated": 3, "invalid tags": 1}
    write_report(replace(report, tally=tally), tmp_path)
    assert {each.stem for each in tmp_path.glob("*.png")} == PICTURES[kind]
    text, page = ((tmp_path / f"report.{end}").read_text() for end in ("md", "html"))
    assert "60 examples, 3 examples truncated, 1 invalid tags" in text
    assert all(f"({name}.png)" in text for name in PICTURES[kind])
    assert page.count("<svg ") == len(PICTURES[kind]) and "http" not in page.replace(
        "http://www.w3.org/", ""
    )
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["tally"] == tally and content["metrics"].keys() == report.metrics.keys()
    mistakes = (tmp_path / "mistakes.md").read_text().splitlines()
    assert len([line for line in mistakes if line.startswith("| ")]) == 1 + len(report.mistakes)
    assert "{" not in "".join(mistakes)


class WithItsOwnMetrics(Classification):
    """Its metrics are known by no other code, and slow."""

    num_calls: ClassVar[int] = 0

    def metrics(self, predictions, examples):
        type(self).num_calls += 1
        return {"accuracy": super().metrics(predictions, examples)["accuracy"] / 2}


def test_who_is_in_a_hurry_computes_no_metric_a_thousand_times(tmp_path):
    made = MAKERS["two labels"](np.random.default_rng(0), 60)
    task = WithItsOwnMetrics(labels=made.task.labels)
    report = evaluation_report(
        task,
        made.predictions,
        made.examples,
        title="",
        slice_by=[],
        num_resamples=1000,
        seed=0,
        hurried=True,
    )
    assert task.num_calls < 10
    accuracy = report.metrics["accuracy"]
    assert accuracy.low == accuracy.value == accuracy.high
    assert f"accuracy  {accuracy.value:.4f}" in summary_lines(report)
    write_report(report, tmp_path)
    assert f"| accuracy | {accuracy.value:.4f} |" in (tmp_path / "report.md").read_text()


def matrix_of(num):
    counts = np.random.default_rng(0).integers(1000, 2000, (num, num))
    return ConfusionMatrix(tuple(f"class {number}" for number in range(num)), counts)


def labels_of(path):
    text = path.read_text()
    ElementTree.fromstring(text)
    return {part.split(" -->")[0] for part in text.split("<!-- ")[1:]}


@pytest.mark.parametrize(("num", "is_numbered"), [(3, True), (41, False)])
def test_a_confusion_matrix_has_counts_unless_cells_are_too_small(tmp_path, num, is_numbered):
    matrix, path = matrix_of(num), tmp_path / "confusion.svg"
    save_picture(confusion_drawing(matrix, "dev"), path)
    labels = labels_of(path)
    assert {"dev", "predicted", "right answer", *matrix.names} <= labels
    counts = {f"{count:,}" for count in matrix.counts.ravel().tolist()}
    assert counts <= labels if is_numbered else not counts & labels


@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
@pytest.mark.slow
def test_any_label_is_drawn_as_it_is(tmp_path):
    num = len(HOSTILE_LABELS)
    matrix = ConfusionMatrix(HOSTILE_LABELS, np.eye(num, dtype=np.int64))
    save_picture(confusion_drawing(matrix, "$x$ against $\\y$"), tmp_path / "a.svg")
    shown = labels_of(tmp_path / "a.svg")
    assert {"$x$", "$$", r"$\frac$", "R&amp;D", "$x$ against $\\y$"} <= shown
    save_picture(confusion_drawing(matrix, "$"), tmp_path / "a.png")


def test_small_slices_are_marked():
    few, enough = (
        Slice("label", name, count, {"recall": Interval(*figures)})
        for name, count, figures in (("no", 29, (1, 1, 1)), ("yes", 31, (0.5, 0.4, 0.6)))
    )
    table = slices_table("Classes", [few, enough], ["recall", "unheard_of"])
    assert [[cell.text for cell in row] for row in table.cells] == [
        ["label", "no", "29 (few)", "1.000", DASH],
        ["label", "yes", "31", "0.500 (0.400 to 0.600)", DASH],
    ]


def outcome(texts, gold, found, confidence=0.9, where="dev.tsv:3"):
    return Outcome(where, texts, gold, found, False, confidence, {})


def entity(kind, start, end, text, **score):
    return {"type": kind, "start": start, "end": end, "text": text, **score}


def row(*arguments, width=160, **changed):
    (found,) = mistake_rows([outcome(*arguments, **changed)], width)
    return found


@pytest.mark.parametrize(
    ("texts", "gold", "found", "expected"),
    [
        (
            {"first": "It  is\nraining.", "second": "It is dry."},
            "no",
            "yes",
            {"text": "It is raining.", "second text": "It is dry.", "confidence": "0.900"}
            | {"right answer": "no", "predicted": "yes", "where": "dev.tsv:3"},
        ),
        (
            {"context": "He", "choices": ["runs", "sits"]},
            0,
            1,
            {"choices": "(0) runs (1) sits", "right answer": "(0) runs", "predicted": "(1) sits"},
        ),
        ({"first": "a"}, ["a", "b"], [], {"right answer": "a / b", "predicted": "(none)"}),
        ({"first": "a"}, 4.2, 1.2345, {"predicted": "1.23"}),
    ],
)
def test_a_mistake_has_texts_and_both_answers(texts, gold, found, expected):
    shown = row(texts, gold, found)
    assert expected.items() <= shown.items()


def test_of_entities_only_what_differs_is_shown():
    texts = {"words": ["Anna", "Berg", "of", "Kiel"]}
    kiel = entity("LOC", 3, 4, "Kiel")
    gold = [entity("PER", 0, 2, "Anna Berg"), kiel]
    found = [entity("PER", 0, 1, "Anna", score=0.7), kiel | {"score": 0.99}]
    shown = row(texts, gold, found, confidence=None)
    assert shown["text"] == "Anna Berg of Kiel"
    assert (shown["right answer"], shown["predicted"]) == ("Anna Berg (PER)", "Anna (PER, 0.70)")
    assert "confidence" not in shown, "nobody has one"
    assert row(texts, [kiel], [])["predicted"] == "(none)"


def test_of_a_long_context_what_is_around_the_answer_is_shown():
    context = " ".join(f"word{number}" for number in range(200))
    shown = row({"question": "Which?", "context": context}, ["word120"], "word7", width=80)
    assert len(shown["context"]) == 80 and "word120" in shown["context"]
    assert shown["context"].startswith("…") and shown["context"].endswith("…")
    first = row({"question": "Which?", "context": context}, ["word2"], "", width=80)["context"]
    assert first.startswith("word0 ") and len(first) == 80
    last = row({"question": "Which?", "context": context}, ["word199"], "", width=80)["context"]
    assert last.endswith("word199") and len(last) == 80
    assert row({"first": context}, "no", "yes", width=80)["text"] == f"{context[:79]}…"


def test_what_some_lack_is_empty_and_what_all_lack_is_left_out():
    mistakes = [
        outcome({"first": "a | b"}, "no", "yes", where=""),
        outcome({"first": "c", "second": "d"}, "no", "yes", confidence=None, where=""),
    ]
    table = mistakes_table(mistakes, 160)
    assert table.columns == ["text", "second text", "right answer", "predicted", "confidence"]
    assert [[cell.text for cell in row] for row in table.cells] == [
        ["a | b", "", "no", "yes", "0.900"],
        ["c", "d", "no", "yes", ""],
    ]
