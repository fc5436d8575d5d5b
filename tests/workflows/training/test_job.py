"""The driver of a training run: settings, disk, MLflow, usage, lineage, registration, summary."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
import yaml
from pretraining_runs import write_corpus
from registered_models import copy_store
from tracked_runs import sending_here

from bert_core.config import ModelConfig
from bert_core.errors import UserError
from bert_core.lineage import read_lineage
from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.text.shards import open_shards
from bert_core.tokenizer_training import train_wordpiece
from workflows.finetuning import results as finetuning_results
from workflows.pretraining import results as pretraining_results
from workflows.pretraining.job import PretrainingJob
from workflows.pretraining.settings import PretrainSettings
from workflows.runs.folder import RunFolder
from workflows.runs.mlflow_run import open_client
from workflows.runs.storage import Storage, open_storage
from workflows.runs.tracker import DatasetInput, Tracker, TrackingSummary, without_machine_paths
from workflows.settings import parse_command_line
from workflows.training.job import (
    JobResults,
    Usage,
    flattened,
    lineage_of,
    refuse_a_full_disk,
    register,
    tracked_run,
    write_settings,
)
from workflows.training.run_settings import RunSettings


@pytest.fixture
def job(tmp_path):
    """Makes a run of settings, with a corpus to read."""
    shards = open_shards(write_corpus(tmp_path / "corpus", num_documents=40))

    def make(*arguments):
        settings = parse_command_line(PretrainSettings, arguments)
        return PretrainingJob(settings, open_storage(str(tmp_path)), RunFolder(tmp_path), shards)

    return make


def test_the_written_settings_repeat_the_run(tmp_path):
    def parse(*arguments):
        return parse_command_line(PretrainSettings, arguments)

    settings = parse("--preset", "mini", "--seed", "7", "--cluster.num_workers", "[1,2]")
    folder = RunFolder(tmp_path)
    write_settings(settings, folder, PretrainingJob.settings_comment)
    again = parse("--preset", str(folder.settings))
    assert again.recipe() == settings.recipe()
    assert again.cluster == settings.cluster and again.checkpoint == settings.checkpoint
    assert (tmp_path / "artifacts" / "settings.yaml").read_text() == folder.settings.read_text()
    written = yaml.safe_load(folder.settings.read_text())
    assert not {"storage", "shards", "name", "fresh", "preset", "profile"} & written.keys()


def test_what_a_profile_has_said_over_a_preset_is_written_and_tracked(tmp_path, job):
    pretraining = job("--preset", "base-fast", "--profile", "tpu-v6e-16")
    settings = pretraining.settings
    write_settings(settings, pretraining.folder, PretrainingJob.settings_comment)
    written = yaml.safe_load(pretraining.folder.settings.read_text())
    assert written["batch"]["packed"] is False and written["cluster"]["tpu"] == "v6e"
    again = parse_command_line(PretrainSettings, ["--preset", str(pretraining.folder.settings)])
    assert again.recipe() == settings.recipe()
    assert again.cluster.tpu_slice == settings.cluster.tpu_slice
    params = tracked_run(pretraining).params
    assert params["batch.packed"] == "False"
    assert (params["preset"], params["profile"]) == ("base-fast", "tpu-v6e-16")


def test_mlflow_is_told_everything_but_where_this_machine_keeps_it(tmp_path, job):
    pretraining = job("--shards", str(tmp_path / "corpus"), "--tracking.experiment", "tests")
    run = tracked_run(pretraining)
    assert run.tracking_uri == f"sqlite:///{tmp_path}/mlflow/mlflow.db"
    assert (run.experiment, run.params["preset"]) == ("tests", "quickstart")
    assert run.params["optimizer.peak_learning_rate"] == "0.002"
    assert run.dataset.sha256 == pretraining.shards.data_hash == run.tags["data.sha256"]
    everything = [*run.params.values(), *run.tags.values(), run.dataset.source]
    assert not any(str(tmp_path) in text for text in everything)
    assert [without_machine_paths(text) for text in everything] == everything
    assert tracked_run(pretraining).run_key == run.run_key, "a restart is the same run to MLflow"


def test_a_disk_without_room_for_the_checkpoints_is_refused(job):
    tiny = job("--model.size", "tiny")
    refuse_a_full_disk([tiny])
    large = job("--preset", "large", "--checkpoint.keep", "100000")
    with pytest.raises(UserError, match=r"100002 checkpoints need [\d.]+ GiB.*--checkpoint.keep"):
        refuse_a_full_disk([large])
    with pytest.raises(UserError, match="100007 checkpoints"):
        refuse_a_full_disk([tiny, large])


def test_settings_become_dotted_names():
    values = flattened({"a": 1, "b": {"c": None, "d": {"e": [1, 2]}}})
    assert values == {"a": "1", "b.c": "None", "b.d.e": "[1, 2]"}
    assert "tracking.uri" not in flattened(PretrainSettings().portable())


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


@pytest.fixture
def store(tmp_path, store_template):
    """The MLflow store of the runs; what they send is sent in this process."""
    with sending_here():
        yield copy_store(store_template, tmp_path)


@pytest.fixture
def finished_job(tmp_path, store):
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


def test_registered_once_and_only_then_the_run_is_done(finished_job, store, tmp_path, capsys):
    job, folder = finished_job, finished_job.folder
    down = TrackingSummary("run", "0", 5, "server does not answer")
    results = job.write_results()
    register(job, down, results)
    assert "5 records not sent: server does not answer" in capsys.readouterr().out
    assert not folder.summary.exists()

    tracking = Tracker(folder.path, tracked_run(job)).finish("FINISHED", 120)
    assert (tracking.error, tracking.unsent_records) == (None, 0)
    register(job, tracking, results)
    folder.summary.unlink()  # killed before it was written
    register(job, tracking, results)
    printed = capsys.readouterr().out
    assert printed.count("models:/bert/1") == 2 and folder.summary.read_text() in printed
    job.title = "2 of 3"
    register(job, tracking, results)
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


@pytest.mark.slow
def test_the_lineage_of_pre_training(pretraining_job, tmp_path, store):
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


def test_the_lineage_of_fine_tuning(finetuning_job):
    results = finetuning_results.write_results(finetuning_job)
    found = read_lineage(finetuning_job.folder.model)
    assert found.data_sha256 == finetuning_job.data.sha256
    assert found.metrics["dev/accuracy"] == results.figures["dev/accuracy"]
    assert found.metrics.keys() == {
        figure for figure in results.figures if figure.startswith("dev/")
    }


@pytest.mark.parametrize("figure", [float("nan"), float("inf")])
def test_figures_that_are_no_number_are_left_out_of_the_lineage(pretraining_job, figure):
    figures = {"heldout/a": figure, "heldout/b": 1.0, "train/c": 2.0}
    found = lineage_of(pretraining_job.folder, {}, figures)
    assert found.metrics == {"heldout/b": 1.0}
    json.loads(found.model_dump_json())
