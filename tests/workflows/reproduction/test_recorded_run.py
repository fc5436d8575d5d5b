"""A finished run is read from its folder and from MLflow alike."""

import hashlib
import json

import pytest
import yaml
from mlflow.entities import Metric

from bert_core.errors import UserError
from workflows.reproduction.recorded_run import (
    fetch_run,
    find_run,
    journal_values,
    metric_values,
    present_places,
    read_artifact,
    read_recorded_run,
    utc,
)
from workflows.reproduction.run_origin import CodeState
from workflows.runs.folder import RunFolder
from workflows.runs.mlflow_run import artifact_location, open_client
from workflows.runs.tracker import SPECIFICATION_NAME, write_json


@pytest.fixture
def run(finished_pretraining, tmp_path):
    """A finished pre-training run, recorded as its command does."""
    import shutil

    settings, path, shards = finished_pretraining
    folder = RunFolder(tmp_path / "runs" / "run")
    shutil.copytree(path, folder.path)
    text = yaml.safe_dump(settings.portable(), sort_keys=False)
    folder.settings.write_text(text)
    folder.recipe.write_text(json.dumps({"data": shards.data_hash}))
    return folder


def read(folder):
    return read_recorded_run(folder.name, folder.path.parent.parent, "sqlite://")


def test_settings_places_figures_and_what_computed_them(run, finished_pretraining):
    settings, _, shards = finished_pretraining
    recorded = read(run)
    assert recorded.settings == settings.portable() and "shards" not in recorded.settings
    assert recorded.places["shards"] == str(shards.folder)
    assert recorded.data_sha256 == shards.data_hash
    assert recorded.values == journal_values(run)
    assert {step for step, name in recorded.values if name == "train/loss"} == set(range(1, 9))
    assert any(name == "heldout/perplexity" for _, name in recorded.values)
    assert recorded.outcome["steps"] == 8 and recorded.outcome["num_threads"] == 1
    assert recorded.outcome["weights_sha256"] is None, "no model folder was written"
    assert recorded.code == [] and recorded.data == {}


def test_what_the_run_wrote_down_at_its_ends_comes_first(run):
    artifacts = run.path / "artifacts"
    state = {"git_commit": "a" * 40, "git_dirty": False, "files": {"bert_core/a.py": "0" * 64}}
    (artifacts / "code.json").write_text(json.dumps([state]))
    (artifacts / "data.json").write_text('{"kind": "token shards"}')
    (artifacts / "outcome.json").write_text('{"steps": 8, "processor": "a CPU"}')
    settings = hashlib.sha256(run.settings.read_bytes()).hexdigest()
    write_json(run.path / SPECIFICATION_NAME, {"tags": {"settings.sha256": settings, "a": "b"}})
    recorded = read(run)
    assert recorded.code == [CodeState(**state)]
    assert recorded.data == {"kind": "token shards"}
    assert recorded.outcome == {"steps": 8, "processor": "a CPU"}
    assert recorded.tags["a"] == "b"


def test_settings_that_were_changed_since_are_refused(run):
    write_json(run.path / SPECIFICATION_NAME, {"tags": {"settings.sha256": "0" * 64}})
    with pytest.raises(UserError, match="settings.yaml has changed since the run began: run"):
        read(run)


def test_what_is_no_finished_run_is_refused(run, tmp_path):
    with pytest.raises(UserError, match="no such run, did you mean run: ran"):
        read_recorded_run("ran", tmp_path, "sqlite://")
    with pytest.raises(UserError, match="no MLflow store"):
        read_recorded_run("a" * 32, tmp_path, f"sqlite:///{tmp_path}/mlflow.db")
    run.settings.write_bytes(b"\xff\xff")
    with pytest.raises(UserError, match=r"not UTF-8.*settings.yaml"):
        read(run)
    run.settings.unlink()
    with pytest.raises(UserError, match=r"no settings.yaml"):
        read(run)
    for checkpoint in run.checkpoints.iterdir():
        (checkpoint / "state.json").write_text("{}")
    with pytest.raises(UserError, match="run run has not finished, or its last checkpoint is gone"):
        read(run)


def test_places_below_a_moved_storage_are_those_of_now(tmp_path):
    (tmp_path / "prepared").mkdir()
    places = {"storage": "/old", "shards": "/old/prepared", "data": "/old/gone", "model": "bert"}
    assert present_places(places | {"seed": 1}, tmp_path) == {
        **places,
        "shards": str(tmp_path / "prepared"),
        "seed": 1,
    }


@pytest.fixture(scope="module")
def client(store_uri):
    client = open_client(store_uri)
    client.create_experiment("tests", artifact_location(store_uri))
    return client


@pytest.fixture
def run_id(client, tmp_path):
    experiment = client.get_experiment_by_name("tests").experiment_id
    run_id = client.create_run(
        experiment, tags={"data.sha256": "ab"}, run_name="mini", start_time=1_700_000_000_000
    ).info.run_id
    client.log_param(run_id, "seed", "3")
    (tmp_path / "settings.yaml").write_text("seed: 3\n")
    client.log_artifact(run_id, str(tmp_path / "settings.yaml"))
    return run_id


def test_a_run_is_read_whole(client, run_id):
    run = find_run(client, run_id)
    assert (run.run_id, run.name, run.experiment, run.status) == (
        run_id,
        "mini",
        "tests",
        "RUNNING",
    )
    assert run.begun == "2023-11-14 22:13:20 UTC" == utc(1_700_000_000_000)
    assert run.tags["data.sha256"] == "ab" and run.params == {"seed": "3"}
    assert read_artifact(client, run, "settings.yaml") == "seed: 3\n"
    assert read_artifact(client, run, "data.json") is None


def test_a_run_is_fetched_with_the_texts_that_it_has(client, run_id, store_uri):
    client.log_metric(run_id, "train/loss", 0.25, step=1)
    fetched = fetch_run(run_id, store_uri, ["settings.yaml", "data.json"])
    assert fetched.run == find_run(client, run_id)
    assert fetched.texts == {"settings.yaml": "seed: 3\n"}
    assert fetched.values == {(1, "train/loss"): 0.25}
    with pytest.raises(UserError, match="no such run at MLflow: 00"):
        fetch_run("0" * 32, store_uri, [])


def test_every_value_comes_back_to_the_bit(client, run_id):
    values = {(step, "train/loss"): 1 / step for step in range(1, 5)} | {(4, "dev/f1"): 0.1 + 0.2}
    metrics = [Metric(name, value, 1000 + step, step) for (step, name), value in values.items()]
    client.log_batch(run_id, metrics=[*metrics, Metric("system/cpu", 3.0, 1, 0)])
    assert metric_values(client, find_run(client, run_id)) == values


def test_a_run_that_is_not_there_or_was_deleted(client, run_id):
    assert find_run(client, "0" * 32) is None
    client.delete_run(run_id)
    assert find_run(client, run_id) is None


def test_artifacts_elsewhere_are_not_asked_for_with_the_token(client, monkeypatch):
    location = "http://127.0.0.1:9/api/2.0/mlflow-artifacts/artifacts/x"
    experiment = client.create_experiment("elsewhere", location)
    run_id = client.create_run(experiment).info.run_id
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    with pytest.raises(UserError, match="not at the tracking server"):
        find_run(client, run_id)
