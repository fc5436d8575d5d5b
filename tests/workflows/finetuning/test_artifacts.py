"""The report on dev that a finished run leaves for MLflow."""

import json

from workflows.finetuning.report import DEV_REPORT, write_dev_report


def test_the_report_is_that_of_the_best_epoch(finetuning_job):
    checkpoint = finetuning_job.folder.last_checkpoint()
    write_dev_report(finetuning_job, checkpoint)
    folder = finetuning_job.folder.path / "artifacts" / DEV_REPORT
    report = json.loads((folder / "report.json").read_text())
    best = checkpoint.extra["notes"]["best"]
    figures = {f"dev/{name}": each["value"] for name, each in report["metrics"].items()}
    assert figures == {name: value for name, value in best["figures"].items() if name in figures}
    assert figures["dev/accuracy"] == best["score"]
    assert report["metrics"]["accuracy"]["low"] <= best["score"]
    assert sum(map(sum, report["confusion"]["counts"])) == 40
    assert report["tally"] == {"examples truncated": 0}
    assert f"after epoch {best['epoch']}" in report["title"]
    names = {each.name for each in folder.iterdir()}
    assert names == {
        "report.html",
        "report.md",
        "report.json",
        "mistakes.md",
        "confusion.png",
        "reliability.png",
    }
    for path in (*folder.glob("*.md"), *folder.glob("*.json")):
        assert str(finetuning_job.folder.path.parent) not in path.read_text()
