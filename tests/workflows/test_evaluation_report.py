import json

from bert_core.tasks.classification import Classification, Text
from workflows.evaluation_report import evaluation_report, summary_lines, write_report

TASK = Classification(labels=("no", "yes"))


def test_the_report_says_what_its_parts_found(tmp_path):
    texts = [Text(f"text {n} | {'x' * 300}", None, "yes" if n % 2 else "no") for n in range(40)]
    texts = [Text(t.first, None, t.answer, columns={"source": "web"}) for t in texts]
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
    assert "\\|" in mistake and "…" in mistake and mistake.endswith("| no | yes | 0.900 |")
    assert json.loads((tmp_path / "report.json").read_text())["num_examples"] == 40
