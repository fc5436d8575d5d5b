"""`python -m serving.watch` fetches models, and says where the pointers to them are."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bert_core.model_folder import load_model_folder
from serving.pointers import read_pointer


@pytest.fixture
def start_watch(tmp_path, subprocess_environment):
    """Starts the command with a cache of the test's own."""

    def begin(registry, *models):
        command = [sys.executable, "-m", "serving.watch", "--tracking_uri", registry.uri]
        command += [*(f"--model={each}" for each in models), "--cache", str(tmp_path / "models")]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=subprocess_environment,
            cwd=tmp_path,
        )

    return begin


def ended(watch):
    """Its exit code, the lines of JSON that it said, and its last line of errors."""
    said, errors = watch.communicate(timeout=120)
    lines = [json.loads(each) for each in said.splitlines()]
    return watch.returncode, lines, (errors.splitlines() or [""])[-1]


def pointer_of(line):
    """The pointer that a line of its output is about."""
    return read_pointer(Path(line["pointer"]))


def test_two_that_start_at_once_fetch_once(start_watch, registry, small_models, tmp_path):
    models = ("models:/people@champion", "models:/mood/1")
    first, second = (ended(each) for each in [start_watch(registry, *models) for _ in range(2)])
    assert first == second
    code, lines, _ = first
    assert code == 0 and [each["model"] for each in lines] == list(models)
    people, mood = (pointer_of(each) for each in lines)
    assert (people.name, people.version, people.alias) == ("people", 1, "champion")
    assert (mood.version, mood.alias) == (1, None)
    for pointer, name in ((people, "entities"), (mood, "sentiment")):
        load_model_folder(pointer.folder)
        wanted = (small_models[name] / "checksums").read_bytes()
        assert (pointer.folder / "checksums").read_bytes() == wanted
    visible = {each.name for each in (tmp_path / "models").iterdir() if each.name[0] != "."}
    assert visible == {"pointers", people.folder.name, mood.folder.name}


def test_an_alias_that_moved_moves_its_pointer(start_watch, copied_registry, small_models):
    alias = "models:/people@champion"
    code, (line,), _ = ended(start_watch(copied_registry, alias))
    first = pointer_of(line)
    assert copied_registry.register(small_models["topics"], "people", "champion") == 2
    code, (again,), _ = ended(start_watch(copied_registry, alias))
    assert code == 0 and again == line, "the same file"
    second = pointer_of(line)
    assert (first.version, second.version) == (1, 2) and first.folder != second.folder
    assert first.folder.is_dir(), "a server may be reading it"

    copied_registry.database.rename(copied_registry.database.with_name("gone"))
    code, (warned,), _ = ended(start_watch(copied_registry, alias))
    assert code == 0 and "is version 2, as fetched before: no model" in warned["warning"]
    assert pointer_of(line) == second
    code, (problem,), error = ended(start_watch(copied_registry, "models:/people/1"))
    assert code == 2 and problem["what"] == "no model models:/people/1"
    assert error.startswith("error: no model models:/people/1: no MLflow store at sqlite:///")


def test_an_alias_that_was_taken_away_is_no_reason_to_go_on(start_watch, copied_registry):
    from workflows.tracking.mlflow_run import open_client

    assert ended(start_watch(copied_registry, "models:/people@champion"))[0] == 0
    open_client(copied_registry.uri).delete_registered_model_alias("people", "champion")
    code, _, error = ended(start_watch(copied_registry, "models:/people@champion"))
    assert code == 2 and "the MLflow UI lists the models" in error
