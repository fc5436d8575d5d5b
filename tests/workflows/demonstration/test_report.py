"""The demo's table, picture and report."""

import re
from dataclasses import replace

import pytest
from finetuning_runs import finetune_here, write_encoder, write_task

from bert_core.evaluation.intervals import Interval
from workflows.demonstration.report import (
    Compared,
    compared,
    text_table,
    write_report,
)
from workflows.finetuning.data import open_encoder, read_task_data
from workflows.finetuning.job import FinetuningJob
from workflows.runs.storage import open_storage


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Two runs of one task: of the first little was asked."""
    storage = tmp_path_factory.mktemp("storage")
    write_task(storage / "data")
    write_encoder(storage / "encoder")
    made = []
    for name, rate in (("little", 1e-6), ("much", 3e-3)):
        changed = {"name": name, "optimizer.peak_learning_rate": rate}
        run, _, _ = finetune_here(storage, **changed)
        encoder = open_encoder(run.parts.settings.model, storage, "sqlite://")
        data = read_task_data(run.parts.settings, encoder.tokenizer)
        place = open_storage(str(storage))
        made.append(FinetuningJob(run.parts.settings, place, run.folder, encoder, data))
    return made


def best_score(job):
    return job.folder.last_checkpoint().extra["notes"]["best"]["score"]


def test_the_figures_are_those_of_the_best_epochs(jobs):
    found = compared(*jobs)
    assert (found.task, found.metric, found.num_train, found.num_dev) == (
        "classification",
        "accuracy",
        90,
        40,
    )
    assert found.untrained.value == best_score(jobs[0])
    assert found.pretrained.value == best_score(jobs[1]) > found.untrained.value
    difference = found.difference
    assert difference.value == pytest.approx(found.pretrained.value - found.untrained.value)
    assert 0 < difference.low < difference.value < difference.high
    same = compared(jobs[1], jobs[1]).difference
    assert (same.low, same.value, same.high) == (0, 0, 0)


RESULT = Compared(
    task="docs_library",
    metric="accuracy",
    num_train=4000,
    num_dev=541,
    epochs=4,
    untrained=Interval(0.279, 0.241, 0.318),
    pretrained=Interval(0.468, 0.425, 0.510),
    difference=Interval(0.189, 0.148, 0.231),
)
SAME = replace(RESULT, task="docs_parameters", metric="f1", difference=Interval(0.0, -0.02, 0.021))
WORSE = replace(RESULT, task="docs_answers", difference=Interval(-0.1, -0.2, -0.05))


def test_the_table_says_what_is_known_and_what_is_not():
    lines = text_table([RESULT, SAME, WORSE]).splitlines()
    titles = ["task", "metric", "untrained", "pre-trained", "difference (95 % interval)"]
    assert re.split("  +", lines[0]) == titles
    assert lines[1] == (
        "docs_library     accuracy      0.279        0.468   +0.189 (+0.148 to +0.231)"
    )
    assert len({line.rindex(")") for line in lines[1:4]}) == 1, "columns are aligned"
    assert lines[4] == (
        "docs_library: better for the pre-training; docs_answers: worse for the pre-training; "
        "docs_parameters: these examples do not tell the two apart"
    )


def test_the_report_holds_table_and_picture_and_says_what_it_leaves_out(tmp_path):
    write_report([RESULT, SAME, WORSE], tmp_path)
    report = (tmp_path / "report.md").read_text()
    assert "| docs_library | accuracy | 0.279 | 0.468 | +0.189 (+0.148 to +0.231) |" in report
    assert "4,000 examples, 4 epochs; 541 dev examples" in report and "(comparison.png)" in report
    assert "+0.189 (+0.148 to +0.231)" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    table = (tmp_path / "table.txt").read_text()
    assert table.startswith(text_table([RESULT, SAME, WORSE]))
    assert str(tmp_path / "comparison.png") in table
