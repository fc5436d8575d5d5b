"""What an older version wrote opens with this one: shards, models, a registry, a sweep, runs."""

import json
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing

import pytest
import torch
from finetuning_runs import finetune_here
from fixture_places import (
    ASKED,
    FIXTURES,
    MODELS,
    REGISTRY,
    RESUME_FROM,
    SHARDS,
    TASK,
    assert_alike,
    finetuning_run,
    pretraining_run,
    recorded,
    split_content,
    sweep_command,
)
from pretraining_runs import train_here

from bert_core.lineage import read_lineage
from bert_core.machine import processor_name
from bert_core.text.shards import open_shards
from workflows import finetune, registry, tune
from workflows.finetune import opened_job, parse
from workflows.pretraining.settings import PretrainSettings
from workflows.runs.opening import open_run
from workflows.runs.storage import open_storage
from workflows.settings import parse_command_line
from workflows.versions.model_pyfunc import _load_pyfunc

PREDICTING = """
import json, sys
import mlflow
model = mlflow.pyfunc.load_model("models:/mood/1")
print(json.dumps(model.predict(["ba keli", "noka rume bali"])))
"""


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    """A storage with the registry in it, its addresses as if it had been made here."""
    folder = tmp_path_factory.mktemp("storage")
    with tarfile.open(REGISTRY) as packed:
        packed.extractall(folder, filter="data")
    with closing(sqlite3.connect(folder / "mlflow" / "mlflow.db")) as store, store:
        ((location,),) = store.execute(
            "SELECT artifact_location FROM logged_models WHERE name = 'mood'"
        )
        before = location.removeprefix("file://").partition("/mlflow/")[0]
        for table, column in (
            ("experiments", "artifact_location"),
            ("runs", "artifact_uri"),
            ("logged_models", "artifact_location"),
            ("model_versions", "source"),
            ("model_versions", "storage_location"),
        ):
            store.execute(
                f"UPDATE {table} SET {column} = REPLACE({column}, ?, ?)", (before, str(folder))
            )
    return folder


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_shards_are_read_equal(split):
    assert split_content(SHARDS, split) == recorded()["shards"][split]


@pytest.mark.parametrize("name", ASKED)
def test_model_folders_predict_as_recorded(name):
    found = _load_pyfunc(str(MODELS / name)).predict(ASKED[name])
    is_rounded = name.endswith("int8")
    same = processor_name(torch.device("cpu")) == recorded()["processor"]
    # In int8 a CPU without VNNI has one bit less.
    tolerance = 0.05 if is_rounded and not same else 1e-5
    assert_alike(json.loads(json.dumps(found)), recorded()["predictions"][name], tolerance)


def test_a_registered_version_has_its_lineage(storage, capsys):
    assert registry.main(["lineage", "mood/1", "--storage", str(storage), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.replace(str(storage), "STORAGE"))
    assert_alike(found, recorded()["lineage"])


def test_a_registered_version_loads_at_mlflow_and_as_a_folder(storage):
    uri = f"sqlite:///{storage / 'mlflow' / 'mlflow.db'}"
    done = subprocess.run(
        [sys.executable, "-c", PREDICTING],
        capture_output=True,
        text=True,
        cwd=storage,
        env={"MLFLOW_TRACKING_URI": uri, "HOME": str(storage), "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    by_its_own_code = json.loads(done.stdout.splitlines()[-1])
    folders = storage.glob("mlflow/artifacts/models/*/artifacts/artifacts/model")
    (folder,) = (each for each in folders if "bertline_task" in (each / "config.json").read_text())
    rows = [{"text": "ba keli"}, {"text": "noka rume bali"}]
    assert_alike(_load_pyfunc(str(folder)).predict(rows), by_its_own_code)
    lineage = read_lineage(folder)
    assert lineage is not None and lineage.run == "finetuning"
    assert lineage.data_sha256 == recorded()["lineage"][0]["data"]["sha256"]


def test_a_finished_sweep_is_known_and_its_best_settings_too(tmp_path, capsys):
    shutil.copytree(FIXTURES / "sweep", tmp_path / "sweeps" / "sweep")
    for trial in (FIXTURES / "sweep").glob("*.trial.json"):
        run = tmp_path / "runs" / trial.name.removesuffix(".trial.json")
        run.mkdir(parents=True)
        shutil.copy(trial, run / "trial.json")
    assert tune.main(sweep_command(tmp_path).arguments()) == 0
    summary = (FIXTURES / "sweep" / "summary.txt").read_text().splitlines()
    assert summary[0] in capsys.readouterr().out
    best = FIXTURES / "sweep" / "artifacts" / "best.yaml"
    settings = finetune.parse(["--preset", str(best), "--model", "m", "--data", "d"])
    assert settings.epochs == 1 and settings.optimizer.peak_learning_rate == 3e-3


@pytest.mark.parametrize("name", ["pretraining", "finetuning"])
def test_a_run_resumes_and_its_next_steps_are_as_recorded(tmp_path, name):
    run = {"pretraining": pretraining_run, "finetuning": finetuning_run}[name](tmp_path)
    shutil.copytree(FIXTURES / "runs" / name, run.folder)
    if name == "pretraining":
        _, progress = train_here(run)
    else:
        places = {"data": TASK / "data", "model": TASK / "encoder"}
        _, _, progress = finetune_here(tmp_path, **places, name=name, **run.settings)
    assert any(f"step {RESUME_FROM[name]}" in text for each in progress for text in each.messages)
    found = [[step, metrics] for step, metrics in run.records()]
    before = recorded()
    here = (processor_name(torch.device("cpu")), torch.__version__)
    is_same_machine = here == (before["processor"], before["torch"])
    assert_alike(found, before[name], 0.0 if is_same_machine else 1e-6)


def test_the_commands_take_the_runs_for_their_own(tmp_path):
    """The settings that decide a run, and the hash of its data, are what they were."""
    shutil.copytree(FIXTURES / "runs", tmp_path / "runs")
    settings = parse_command_line(PretrainSettings, pretraining_run(tmp_path).arguments())
    recipe = settings.recipe() | {"data": open_shards(SHARDS).data_hash}
    with open_run(tmp_path, "pretraining", recipe, fresh=False) as folder:
        assert not folder.is_trained()
    settings = parse(finetuning_run(tmp_path).arguments())
    with opened_job(settings, open_storage(str(tmp_path))) as job:
        assert not job.folder.is_trained()
