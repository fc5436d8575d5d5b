"""A run folder is read; what MLflow alone knows, `test_reproduce.py` reads."""

import hashlib
import json

import pytest
import yaml

from bert_core.errors import UserError
from workflows.reproduction.code_files import CodeState
from workflows.reproduction.recorded_run import journal_values, present_places, read_recorded_run
from workflows.run_folder import RunFolder
from workflows.tracking.tracker import SPECIFICATION_NAME, write_json


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
    with pytest.raises(UserError, match="settings.yaml is not what it was when the run began: run"):
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
