"""What a model folder says of its origin, written by a run's end."""

import json

import pytest

from bert_core.lineage import read_lineage
from bert_core.model_folder import load_model_folder
from workflows.tracking.tracker import Tracker, without_machine_paths
from workflows.training.job import tracked_run
from workflows.versions.lineage import lineage_of


def test_of_pre_training(pretraining_job, tmp_path):
    folder = pretraining_job.folder
    figures = pretraining_job.write_results().figures
    before = read_lineage(folder.model)
    assert before.run == "run" and before.data_sha256 == pretraining_job.shards.data_hash
    assert before.metrics["heldout/masked_token_loss"] == figures["heldout/masked_token_loss"]
    assert before.run_id is None and before.git_commit is None  # not tracked, nothing is known
    assert all(name.startswith("heldout/") for name in before.metrics)

    run = tracked_run(pretraining_job)
    tracking = Tracker(folder.path, run).finish("FINISHED", 120)
    pretraining_job.write_results()
    after = read_lineage(folder.model)
    assert after.run_id == tracking.run_id is not None
    assert after.git_commit == run.tags.get("mlflow.source.git.commit")
    assert after.metrics == before.metrics

    first = (folder.model / "lineage.json").read_bytes()
    pretraining_job.write_results()
    assert (folder.model / "lineage.json").read_bytes() == first  # no time is in it
    text = first.decode()
    assert str(tmp_path) not in text and without_machine_paths(text) == text
    load_model_folder(folder.model)
    assert "lineage.json" in (folder.model / "checksums").read_text()


def test_of_fine_tuning(finetuning_job):
    results = finetuning_job.write_results()
    found = read_lineage(finetuning_job.folder.model)
    assert found.data_sha256 == finetuning_job.data.sha256
    assert found.metrics["dev/accuracy"] == results.figures["dev/accuracy"]
    assert found.metrics.keys() == {each for each in results.figures if each.startswith("dev/")}


@pytest.mark.parametrize("figure", [float("nan"), float("inf")])
def test_what_is_no_number_is_left_out(pretraining_job, figure):
    found = lineage_of(pretraining_job, {"heldout/a": figure, "heldout/b": 1.0, "train/c": 2.0})
    assert found.metrics == {"heldout/b": 1.0}
    json.loads(found.model_dump_json())
