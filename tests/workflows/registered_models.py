"""Registered models for tests: stores at MLflow, and versions with small models in them."""

import sqlite3
import tempfile
from functools import cache
from pathlib import Path

import torch
from finetuning_runs import write_encoder, write_task

from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tasks.catalog import task_config
from bert_core.tasks.classification import Classification
from bert_core.tasks.encoded_rows import evaluation_batches
from bert_core.tasks.task import add_task_head, compute_outputs
from workflows.runs.mlflow_run import artifact_location, create_store, open_client
from workflows.versions.registration import register_model_folder

NAME = "sentiment"
CARD = "# A model of the tests"
DATA_SHA256 = "ab" * 32
_KEPT = []


def kept_folder():
    """A folder for what is made once, until this process ends."""
    _KEPT.append(tempfile.TemporaryDirectory())
    return Path(_KEPT[-1].name)


@cache
def empty_store():
    """The path of a store with nothing in it."""
    path = kept_folder() / "mlflow.db"
    create_store(f"sqlite:///{path}")
    return path


def copy_store(source, folder):
    """The URI of a store with the content of another; by SQLite's own way to copy."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mlflow" / "mlflow.db"
    path.parent.mkdir()
    reading, writing = sqlite3.connect(source), sqlite3.connect(path)
    reading.backup(writing)
    writing.execute("PRAGMA journal_mode=WAL")
    reading.close()
    writing.close()
    return f"sqlite:///{path}"


def store_of_names(folder, versions=3):
    """A store in which `sentiment` has versions that are names alone."""
    uri = copy_store(empty_store(), folder)
    client = open_client(uri)
    client.create_registered_model(NAME)
    for _ in range(versions):
        client.create_model_version(NAME, "file:///nowhere")
    return uri


def write_classifier(folder, data, *, wrong=False, task_name="classification"):
    """A small model that has learned the task of `write_task`, or the opposite of it."""
    task = Classification(labels=("down", "up"), max_length=32)
    _, model, tokenizer = load_model_folder(write_encoder(folder.with_name(f"{folder.name}.from")))
    add_task_head(model, task)
    rows = task.encode(task.examples(data, "train"), tokenizer)
    ((_, batch),) = evaluation_batches(
        rows, max_tokens=100_000, layout="packed", rank=0, world_size=1
    )
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # of so little work more would be slower
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(20):
        loss, _ = task.loss(compute_outputs(model, batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.set_num_threads(num_threads)
    if wrong:
        for parameter in model.heads[task.head.name].parameters():
            parameter.data *= -1
    config = task_config(task_name, task)
    save_model_folder(folder, model.eval(), tokenizer, CARD, extra_config=config)
    return folder


@cache
def written_models():
    """Data, and models of it: a right one, one that is always wrong, one of another task."""
    folder = kept_folder()
    data = write_task(folder / "data")
    return {
        "data": data,
        "right": write_classifier(folder / "right", data),
        "wrong": write_classifier(folder / "wrong", data, wrong=True),
        "other": write_classifier(folder / "other", data, task_name="mrpc"),
        "encoder": write_encoder(folder / "encoder"),
    }


def register_models(uri, models, *, accuracies=(), data_sha256=DATA_SHA256):
    """Registers models, by their names, as versions 1, 2, … of `sentiment`."""
    client = open_client(uri)
    experiment = client.get_experiment_by_name("tests")
    location = artifact_location(uri)
    experiment_id = (
        experiment.experiment_id if experiment else client.create_experiment("tests", location)
    )
    accuracies = [*accuracies, *[None] * len(models)]
    for number, (model, accuracy) in enumerate(zip(models, accuracies, strict=False)):
        run = client.create_run(experiment_id, run_name=f"run {number}")
        register_model_folder(
            written_models()[model],
            name=NAME,
            run_id=run.info.run_id,
            tracking_uri=uri,
            card=CARD,
            tags={"data.sha256": data_sha256},
            metrics={} if accuracy is None else {"dev/accuracy": accuracy},
        )


@cache
def store_of_models():
    """The path of a store: 1 is right, 2 is too, 3 is wrong, 4 of another task, 5 an encoder."""
    uri = copy_store(empty_store(), kept_folder() / "made")
    names = ["right", "right", "wrong", "other", "encoder"]
    register_models(uri, names, accuracies=[0.9, 0.9, 0.1, 0.9])
    return uri.removeprefix("sqlite:///")


def champion(uri):
    """The version that is champion, None where there is none."""
    number = open_client(uri).get_registered_model(NAME).aliases.get("champion")
    return None if number is None else int(number)
