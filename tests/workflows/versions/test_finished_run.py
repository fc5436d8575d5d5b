"""The end of a run: usage, lineage, registration and summary."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
from registered_models import copy_store
from sending import sending_here

from bert_core.config import ModelConfig
from bert_core.lineage import read_lineage
from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tokenizer import train_wordpiece
from workflows.finetuning import results as finetuning_results
from workflows.pretraining import results as pretraining_results
from workflows.runs.folder import RunFolder
from workflows.runs.mlflow_run import open_client
from workflows.runs.storage import Storage, open_storage
from workflows.runs.tracker import DatasetInput, Tracker, TrackingSummary, without_machine_paths
from workflows.training.job import JobResults, tracked_run, tracking_uri
from workflows.training.run_settings import RunSettings
from workflows.versions.finished_run import Usage, lineage_of, register

CARD = "# bert\n\nA model of the tests."


@dataclass
class FinishedJob:
    """A run that only has to be registered."""

    settings: RunSettings
    storage: Storage
    folder: RunFolder
    remote: None = None
    title: str = ""
    kind: ClassVar[str] = "tests"
    settings_comment: ClassVar[str] = ""

    def checkpoint_bytes(self):
        return 0

    def worker_job(self):
        raise AssertionError("it is trained")

    def described(self):
        return {}, {"data.sha256": "ab" * 32}, DatasetInput("train", "ab" * 32, "tests")

    def write_results(self):
        return JobResults(["finished     8 steps"], CARD, {"heldout/masked_token_loss": 2.5})


@pytest.fixture(autouse=True)
def store(tmp_path, store_template):
    """The MLflow store of the runs; what they send is sent in this process."""
    with sending_here():
        yield copy_store(store_template, tmp_path)


@pytest.fixture
def job(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "run")
    folder.path.mkdir(parents=True)
    tokenizer = train_wordpiece(["one two three"] * 3, 60, lowercase=True)
    config = ModelConfig(
        vocab_size=60,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    save_model_folder(folder.model, Bert.for_pretraining(config), tokenizer, card=CARD)
    return FinishedJob(RunSettings(), open_storage(str(tmp_path)), folder)


def finish(job, tracking):
    results = job.write_results()
    register(
        job.folder,
        tracking,
        name=job.settings.tracking.register_as,
        tracking_uri=tracking_uri(job),
        card=results.card,
        metrics=results.figures,
        summary=results.lines,
        title=job.title,
    )


def test_registered_once_and_only_then_the_run_is_done(job, store, tmp_path, capsys):
    folder = job.folder
    down = TrackingSummary("run", "0", 5, "server does not answer", "send")
    finish(job, down)
    assert "5 records not sent: server does not answer" in capsys.readouterr().out
    assert not folder.summary.exists()

    tracking = Tracker(folder.path, tracked_run(job)).finish("FINISHED", 120)
    assert (tracking.error, tracking.unsent_records) == (None, 0)
    finish(job, tracking)
    folder.summary.unlink()  # killed before it was written
    finish(job, tracking)
    printed = capsys.readouterr().out
    assert printed.count("models:/bert/1") == 2 and folder.summary.read_text() in printed
    job.title = "2 of 3"
    finish(job, tracking)
    assert capsys.readouterr().out == f"2 of 3  finished: {folder.path}\n"
    assert "finished     8 steps" in folder.summary.read_text(), "where one may look"
    client = open_client(store)
    (version,) = client.search_model_versions("name = 'bert'")
    assert version.description == CARD
    assert version.tags["data.sha256"] == "ab" * 32 and version.tags["run"] == "run"
    assert version.tags["metric.heldout/masked_token_loss"] == "2.5"
    logged = json.dumps([version.tags, version.description, version.name])
    assert str(tmp_path) not in logged


def test_use_is_said_with_the_assumption_behind_it():
    assert str(Usage("cpu", 2.0)) == "2.00 core-hours, about 0.02 kWh (assuming 10 W per core)"
    assert str(Usage("cuda", 10.0)).startswith("10.00 GPU-hours, about 7 kWh")
    assert str(Usage("tpu", 3.0)).startswith("3.00 TPU host-hours, about 3 kWh")


def test_of_pre_training(pretraining_job, tmp_path):
    folder = pretraining_job.folder
    figures = pretraining_results.write_results(pretraining_job).figures
    before = read_lineage(folder.model)
    assert before.run == "run" and before.data_sha256 == pretraining_job.shards.data_hash
    assert before.metrics["heldout/masked_token_loss"] == figures["heldout/masked_token_loss"]
    assert before.run_id is None and before.git_commit is None  # not tracked, nothing is known
    assert all(name.startswith("heldout/") for name in before.metrics)

    run = tracked_run(pretraining_job)
    tracking = Tracker(folder.path, run).finish("FINISHED", 120)
    pretraining_results.write_results(pretraining_job)
    after = read_lineage(folder.model)
    assert after.run_id == tracking.run_id is not None
    assert after.git_commit == run.tags.get("mlflow.source.git.commit")
    assert after.metrics == before.metrics

    first = (folder.model / "lineage.json").read_bytes()
    pretraining_results.write_results(pretraining_job)
    assert (folder.model / "lineage.json").read_bytes() == first  # no time is in it
    text = first.decode()
    assert str(tmp_path) not in text and without_machine_paths(text) == text
    load_model_folder(folder.model)
    assert "lineage.json" in (folder.model / "checksums").read_text()


def test_of_fine_tuning(finetuning_job):
    results = finetuning_results.write_results(finetuning_job)
    found = read_lineage(finetuning_job.folder.model)
    assert found.data_sha256 == finetuning_job.data.sha256
    assert found.metrics["dev/accuracy"] == results.figures["dev/accuracy"]
    assert found.metrics.keys() == {each for each in results.figures if each.startswith("dev/")}


@pytest.mark.parametrize("figure", [float("nan"), float("inf")])
def test_what_is_no_number_is_left_out(pretraining_job, figure):
    figures = {"heldout/a": figure, "heldout/b": 1.0, "train/c": 2.0}
    found = lineage_of(pretraining_job.folder, {}, figures)
    assert found.metrics == {"heldout/b": 1.0}
    json.loads(found.model_dump_json())
