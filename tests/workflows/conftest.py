"""Addresses for runs, and finished runs, as the tests of several modules use them.

Imports stand in the fixtures: pytest may load this file before Ray's environment is set.
"""

import shutil
import sqlite3
from pathlib import Path

import pytest
from storage_addresses import CREDENTIALS, bucket_address, folder_address, s3_server


@pytest.fixture(scope="session")
def server():
    """What makes an s3:// address one of a server on this machine."""
    with s3_server() as query:
        yield query


@pytest.fixture(params=["file", "s3"])
def uri(request, tmp_path, monkeypatch):
    """An address with nothing behind it yet."""
    if request.param == "file":
        return folder_address(tmp_path / "some" / "where")
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return bucket_address(request.getfixturevalue("server"), tmp_path.name.replace("_", "-"))


@pytest.fixture(scope="module")
def store_uri(tmp_path_factory, store_template):
    """A SQLite store of MLflow, which has to be whole in the end."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    shutil.copy(store_template, path)
    yield f"sqlite:///{path}"
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.fixture(scope="session")
def finished_pretraining(tmp_path_factory):
    """A run after its last step: its settings, its folder, its shards."""
    from pretraining_runs import Run, train_here, write_corpus

    from bert_core.text.shards import open_shards
    from workflows.pretraining.settings import PretrainSettings
    from workflows.settings import parse_command_line

    storage = tmp_path_factory.mktemp("storage")
    run = Run(storage, "run", write_corpus(storage / "corpus"), steps=8)
    train_here(run)
    (run.folder / "artifacts").mkdir()
    settings = parse_command_line(PretrainSettings, run.arguments())
    return settings, run.folder, open_shards(run.shards)


@pytest.fixture(scope="session")
def copy_pretraining(finished_pretraining):
    """Makes a copy of that run in a folder, as a job."""
    from workflows.pretraining.job import PretrainingJob
    from workflows.runs.folder import RunFolder
    from workflows.runs.storage import open_storage

    settings, path, shards = finished_pretraining

    def copy(storage):
        folder = RunFolder(Path(shutil.copytree(path, storage / "run")))
        return PretrainingJob(settings, open_storage(str(storage)), folder, shards)

    return copy


@pytest.fixture
def pretraining_job(copy_pretraining, tmp_path):
    """A copy to change."""
    return copy_pretraining(tmp_path)


@pytest.fixture(scope="session")
def pretraining_results(copy_pretraining, tmp_path_factory):
    """A job and its results, which are written."""
    from workflows.pretraining.results import write_results

    job = copy_pretraining(tmp_path_factory.mktemp("results"))
    return job, write_results(job)


@pytest.fixture(scope="session")
def finetuning_job(tmp_path_factory):
    """A fine-tuning run after its last step."""
    from finetuning_runs import finetune_here, write_encoder, write_task

    from workflows.finetuning.data import read_task_data
    from workflows.finetuning.job import FinetuningJob
    from workflows.model_location import open_encoder
    from workflows.runs.storage import open_storage

    storage = tmp_path_factory.mktemp("storage")
    write_task(storage / "data")
    write_encoder(storage / "encoder")
    run, _, _ = finetune_here(storage)
    (run.folder.path / "artifacts").mkdir()
    encoder = open_encoder(run.parts.settings.model, storage, "sqlite://")
    data = read_task_data(run.parts.settings, encoder.tokenizer)
    return FinetuningJob(run.parts.settings, open_storage(str(storage)), run.folder, encoder, data)


@pytest.fixture(scope="session")
def finetuning_results(finetuning_job):
    """The results of that run, which are written."""
    from workflows.finetuning.results import write_results

    return write_results(finetuning_job)


@pytest.fixture(scope="session")
def small_models(tmp_path_factory):
    """Folders of small models for every kind of task, and of their encoder, by name."""
    from running import write_models

    return write_models(tmp_path_factory.mktemp("small_models"))


@pytest.fixture
def run_predict(small_models, tmp_path, capsys):
    """Calls workflows/predict.py in this process: exit code, output, errors."""
    from workflows import predict

    def call(model, *inputs, output="out", **options):
        given = ["--model", str(small_models.get(model, model)), "--output", str(tmp_path / output)]
        given += ["--storage", str(tmp_path / "storage"), "--input", *map(str, inputs)]
        for name, value in options.items():
            given += [f"--{name}", *([] if value is None else [str(value)])]
        code = predict.main(given)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
