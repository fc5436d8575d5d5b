"""Models come out of MLflow's registry as they went in, once."""

import fcntl
import shutil
import threading

import pytest

from bert_core.errors import UserError
from bert_core.model_folder import load_model_folder
from serving.registry import UnreachableError, default_tracking_uri, fetch_model, lineage_of_tags


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_alias_is_the_whole_folder_once(registry, small_models, tmp_path):
    killed = tmp_path / "models"
    found = fetch_model("models:/people@champion", registry.uri, killed)
    assert content(found.folder) == content(small_models["entities"])
    load_model_folder(found.folder)
    assert (found.name, found.version) == ("people", 1)
    assert found.lineage.run_id == registry.run_id
    assert found.lineage.data_sha256 == "ab" * 32
    assert found.lineage.metrics == {"dev/f1": 0.75}
    stamp = found.folder.stat().st_mtime_ns
    assert fetch_model("models:/people/1", registry.uri, killed) == found
    assert found.folder.stat().st_mtime_ns == stamp
    assert [each for each in killed.iterdir() if not each.name.startswith(".")] == [found.folder]


def test_what_a_kill_left_is_fetched_again(registry, small_models, tmp_path):
    folder = fetch_model("models:/people@champion", registry.uri, tmp_path / "first").folder
    cache = tmp_path / "second"
    unfinished = cache / f".{folder.name}.part" / "model"
    unfinished.mkdir(parents=True)
    (unfinished / "model.safetensors").write_text("a part")
    (unfinished / "stray").touch()
    again = fetch_model("models:/people@champion", registry.uri, cache).folder
    assert content(again) == content(small_models["entities"])
    assert not unfinished.parent.exists()


def test_who_comes_second_waits_and_takes_what_is_there(registry, tmp_path):
    asked = ("models:/people@champion", registry.uri)
    first = fetch_model(*asked, tmp_path / "first").folder
    cache = tmp_path / "second"
    cache.mkdir()
    second = threading.Thread(target=fetch_model, args=(*asked, cache))
    with (cache / f".{first.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second.start()
        second.join(5)
        assert second.is_alive() and not (cache / first.name).exists()
        shutil.copytree(first, cache / first.name)
        (cache / first.name / "mark").touch()
    second.join(60)
    assert (cache / first.name / "mark").exists() and len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    ("uri", "remedy"),
    [
        ("models:/people@nobody", "the MLflow UI lists the models"),
        ("models:/people/7", "the MLflow UI lists the models"),
        ("models:/nothing/1", "the MLflow UI lists the models"),
        ("people@champion", "write models:/name@alias"),
    ],
)
def test_what_is_not_there_is_named(uri, remedy, registry, tmp_path):
    with pytest.raises(UserError, match=rf"{uri}.*{remedy}") as told:
        fetch_model(uri, registry.uri, tmp_path)
    assert not isinstance(told.value, UnreachableError) and "\n" not in str(told.value)
    assert not any(tmp_path.iterdir())


def test_what_others_registered_is_named(copied_registry, tmp_path):
    from mlflow import MlflowClient

    client = MlflowClient(copied_registry.uri, copied_registry.uri)
    client.create_registered_model("foreign")
    client.create_model_version("foreign", source=f"{tmp_path}/somewhere")
    with pytest.raises(UserError, match=r"models:/foreign/1.*Bertline has registered"):
        fetch_model("models:/foreign/1", copied_registry.uri, tmp_path / "models")


def test_a_store_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(UnreachableError, match=r"no model models:/a@b: no MLflow store at sqlite"):
        fetch_model("models:/a@b", f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "models")
    assert not any(tmp_path.iterdir())


def test_a_server_that_does_not_answer_is_said_without_its_password(tmp_path):
    with pytest.raises(UnreachableError, match=r"is MLflow at http://127\.0\.0\.1:9\?") as told:
        fetch_model("models:/a@b", "http://me:secret@127.0.0.1:9", tmp_path)
    assert "secret" not in str(told.value) and "\n" not in str(told.value)


def test_a_store_that_is_none_is_said(tmp_path):
    (tmp_path / "mlflow.db").write_text("no database " * 99)
    with pytest.raises(UnreachableError, match="no model models:/a@b: .*not a database"):
        fetch_model("models:/a@b", f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "models")


def test_artifacts_that_are_gone_leave_nothing_behind(copied_registry, tmp_path):
    from sqlalchemy import create_engine, text

    with create_engine(copied_registry.uri).begin() as connection:
        gone = (tmp_path / "gone").as_uri()
        connection.execute(text("UPDATE logged_models SET artifact_location = :l"), {"l": gone})
    with pytest.raises(UnreachableError, match="models:/people/1 not fetched: .*No such artifact"):
        fetch_model("models:/people/1", copied_registry.uri, tmp_path / "models")
    found = (tmp_path / "models").iterdir()
    assert all(each.name.startswith(".") for each in found)


def test_tags_that_people_wrote_do_no_harm():
    found = lineage_of_tags({"metric.a": "good", "metric.b": "-1.5e-05", "git.dirty": "true"})
    assert found.metrics == {"b": -1.5e-05} and found.git_dirty is True
    assert found.data_sha256 is None


def test_the_default_store(tmp_path, monkeypatch):
    assert default_tracking_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow/mlflow.db"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///here.db")
    assert default_tracking_uri(tmp_path) == f"sqlite:///{tmp_path}/here.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    assert default_tracking_uri(tmp_path) == "http://mlflow:5000"
