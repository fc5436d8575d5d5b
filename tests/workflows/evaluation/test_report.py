import json
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from made_up_predictions import KINDS, MAKERS

from bert_core.tasks.classification import Classification, Text
from workflows.evaluation.report import evaluation_report, summary_lines, write_report

TASK = Classification(labels=("no", "yes"))


def test_the_report_says_what_its_parts_found(tmp_path):
    texts = [Text(f"text {n} | {'x' * 300}", None, "yes" if n % 2 else "no") for n in range(40)]
    texts = [
        replace(text, where=f"/data/some/where/dev.tsv:{number}", columns={"source": "web"})
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
    assert (
        "\\|" in mistake
        and "…" in mistake
        and mistake.endswith("| no | yes | 0.900 | …/dev.tsv:0 |")
    )
    assert "| no | yes | 1 |" in text, "what is taken for what"
    assert all(
        "/data" not in (tmp_path / name).read_text() for name in ("report.md", "report.json")
    )
    assert "x" * 300 in (tmp_path / "mistakes.md").read_text()
    assert json.loads((tmp_path / "report.json").read_text())["num_examples"] == 40


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


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_task_has_its_pictures_and_its_tally(kind, tmp_path):
    made = MAKERS[kind](np.random.default_rng(0), 60)
    report = evaluation_report(*made.of, title=kind, slice_by=[], num_resamples=50, seed=0)
    tally = {"examples truncated": 3, "invalid tags": 1}
    write_report(replace(report, tally=tally), tmp_path)
    assert {each.stem for each in tmp_path.glob("*.png")} == PICTURES[kind]
    text = (tmp_path / "report.md").read_text()
    assert "60 examples, 3 examples truncated, 1 invalid tags" in text
    assert all(f"({name}.png)" in text for name in PICTURES[kind])
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["tally"] == tally and content["metrics"].keys() == report.metrics.keys()
    mistakes = (tmp_path / "mistakes.md").read_text().splitlines()
    assert len(mistakes) == 4 + len(report.mistakes) and "{" not in "".join(mistakes)


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
