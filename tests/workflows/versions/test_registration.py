import json
from dataclasses import dataclass

import pytest

from bert_core.config import ModelConfig
from bert_core.model.bert import Bert
from bert_core.model_folder import save_model_folder
from bert_core.tokenizer import train_wordpiece
from workflows.run_folder import RunFolder
from workflows.storage import Storage, open_storage
from workflows.tracking.mlflow_run import open_client
from workflows.tracking.tracker import DatasetInput, Tracker, TrackingSummary
from workflows.training.job import JobResults, tracked_run
from workflows.training.run_settings import RunSettings
from workflows.versions.registration import Usage, open_command, register

CARD = "# bert\n\nA model of the tests."


@dataclass
class FinishedJob:
    """A run that only has to be registered."""

    settings: RunSettings
    storage: Storage
    folder: RunFolder
    remote: None = None
    kind: str = "tests"
    settings_comment: str = ""
    title: str = ""

    def checkpoint_bytes(self):
        return 0

    def worker_job(self):
        raise AssertionError("it is trained")

    def described(self):
        return {}, {"data.sha256": "ab" * 32}, DatasetInput("train", "ab" * 32, "tests")

    def write_results(self):
        return JobResults(["finished     8 steps"], CARD, {"heldout/masked_token_loss": 2.5})


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


def test_registered_once_and_only_then_the_run_is_done(job, tmp_path, capsys):
    folder, results = job.folder, job.write_results()
    down = TrackingSummary("run", "0", 5, "server does not answer", "send")
    register(job, results, down)
    assert "5 records not sent: server does not answer" in capsys.readouterr().out
    assert not folder.summary.exists()

    tracking = Tracker(folder.path, tracked_run(job)).finish("FINISHED", 120)
    assert (tracking.error, tracking.unsent_records) == (None, 0)
    register(job, results, tracking)
    folder.summary.unlink()  # killed before it was written
    register(job, results, tracking)
    printed = capsys.readouterr().out
    assert printed.count("models:/bert/1") == 2 and folder.summary.read_text() in printed
    job.title = "2 of 3"
    register(job, results, tracking)
    assert capsys.readouterr().out == f"2 of 3  finished: {folder.path}\n"
    assert "finished     8 steps" in folder.summary.read_text(), "where one may look"
    client = open_client(f"sqlite:///{tmp_path}/mlflow/mlflow.db")
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


def test_how_mlflow_is_opened():
    assert open_command("http://mlflow:5000") == "http://mlflow:5000"
    command = open_command("sqlite:////a b/mlflow.db")
    assert command.endswith("mlflow ui --backend-store-uri 'sqlite:////a b/mlflow.db'")
