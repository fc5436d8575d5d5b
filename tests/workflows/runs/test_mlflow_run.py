"""A SQLite store of MLflow in folders of any name, moved or copied; a report that is logged."""

import shlex
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from registered_models import NAME, copy_store, empty_store, register_models, written_models
from tracked_runs import described, send_run, write_steps

from bert_core.errors import UserError
from serving.registry import fetch_model, sqlite_path, sqlite_uri
from workflows.promotion.champion import open_registry
from workflows.runs.journal import Journal
from workflows.runs.mlflow_run import RunSender, artifact_location, log_report, open_client
from workflows.runs.tracker import JOURNAL_NAME, write_specification
from workflows.versions.registration import content_hash

HOSTILE = "a b%20c?d=e;f'g\"h #ü&%41+%"


@pytest.fixture
def storage(tmp_path):
    """A storage folder with a registered model, and a run that is half sent."""
    folder = tmp_path / "before" / "storage"
    uri = copy_store(empty_store(), folder)
    register_models(uri, ["right"], accuracies=[0.9])
    run = folder / "runs" / "half"
    write_specification(run, described(uri, run))
    journal = Journal(run / JOURNAL_NAME)
    write_steps(journal, range(1, 4))
    sender = RunSender(run)
    while sender.send_batch():
        pass
    write_steps(journal, range(4, 6))
    (run / "artifacts" / "late.txt").write_text("late")
    return folder


def uri_of(storage):
    return sqlite_uri(storage / "mlflow" / "mlflow.db")


def addresses(storage):
    tables = ("experiments", "runs", "logged_models", "model_versions")
    with sqlite3.connect(storage / "mlflow" / "mlflow.db") as connection:
        return [
            str(row) for table in tables for row in connection.execute(f"SELECT * FROM {table}")
        ]


@pytest.mark.parametrize(("name", "is_copy"), [("plain", False), (HOSTILE, True)])
def test_a_moved_store_is_read_and_written_where_it_is(storage, tmp_path, name, is_copy, capsys):
    moved = tmp_path / name / "storage"
    moved.parent.mkdir()
    before = addresses(storage)
    (shutil.copytree if is_copy else shutil.move)(storage, moved)
    # A server only reads: it finds the version though nothing has been corrected yet.
    fetched = fetch_model(f"models:/{NAME}/1", uri_of(moved), tmp_path / "cache")
    assert content_hash(fetched.folder) == content_hash(written_models()["right"])
    sender = send_run(moved / "runs" / "half")
    assert "are now at" in capsys.readouterr().err
    assert sender.run.tracking_uri == uri_of(moved)
    client = open_client(uri_of(moved))
    run = client.get_run(sender.run_id)
    assert Path(client.download_artifacts(run.info.run_id, "late.txt")).read_text() == "late"
    assert {each.value for each in client.get_metric_history(sender.run_id, "train/loss")} == {
        1 / step for step in range(1, 6)
    }
    register_models(uri_of(moved), ["wrong"])
    assert len([*(moved / "mlflow" / "artifacts" / "models").iterdir()]) == 2
    assert not [address for address in addresses(moved) if "/before/" in address]
    capsys.readouterr()
    open_client(uri_of(moved))
    assert capsys.readouterr().err == ""
    if is_copy:
        assert addresses(storage) == before
        assert len([*(storage / "mlflow" / "artifacts" / "models").iterdir()]) == 1
    else:
        assert not storage.exists()


@pytest.fixture
def another_server():
    """The address of an HTTP server, and what it was sent."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self):  # noqa: N802 - the library's name
            asked.append(self.headers.get("Authorization"))
            self.send_error(500)

        do_GET = do_POST = do_PATCH = do_PUT  # noqa: N815

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/api/2.0/mlflow-artifacts/artifacts/x", asked
    server.shutdown()
    server.server_close()


def test_artifacts_elsewhere_are_not_written_with_the_token(
    tmp_path, another_server, monkeypatch, capsys
):
    location, asked = another_server
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    uri = copy_store(empty_store(), tmp_path)
    client = open_client(uri)
    experiment = client.create_experiment("pretraining", location)
    run = tmp_path / "run"
    write_specification(run, described(uri, run))
    (run / "artifacts" / "a.txt").write_text("a")
    write_steps(Journal(run / JOURNAL_NAME), range(1, 4))
    with pytest.raises(UserError, match="not at the tracking server"):
        send_run(run)
    (sent,) = client.search_runs([experiment])
    assert sent.data.metrics["train/loss"] == 1 / 3, "metrics have no part in it"

    given = {"tracking_uri": uri, "experiment": "pretraining", "run_name": "a table"}
    assert log_report([run / "artifacts" / "a.txt"], **given, params={}, metrics={}) is None
    assert "not at the tracking server" in capsys.readouterr().out
    client.create_registered_model("a")
    with (
        open_registry("a", uri) as registry,
        pytest.raises(UserError, match="not at the tracking server"),
    ):
        registry.log_json(sent.info.run_id, {}, "gate.json")
    assert not asked


def test_a_store_below_a_link_is_left_alone(storage, tmp_path):
    before = addresses(storage)
    link = tmp_path / "link"
    link.symlink_to(storage)
    open_client(uri_of(link))
    assert addresses(storage) == before


def test_artifacts_that_were_put_elsewhere_stay_there(tmp_path):
    uri = copy_store(empty_store(), tmp_path / "storage")
    register_models(uri, ["right"])  # so that there are artifacts beside the store, too
    client, elsewhere = open_client(uri), tmp_path / "elsewhere" / "artifacts"
    experiment = client.create_experiment("elsewhere", elsewhere.as_uri())
    run = client.create_run(experiment).info.run_id
    client.log_dict(run, {"a": 1}, "a.json")
    assert open_client(uri).get_run(run).info.artifact_uri.startswith(elsewhere.as_uri())
    assert len([*elsewhere.iterdir()]) == 1


def test_a_moved_store_that_cannot_be_written_is_named(storage, open_folder, nobody):
    moved = Path(shutil.copytree(storage, open_folder / HOSTILE))
    with sqlite3.connect(moved / "mlflow" / "mlflow.db") as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    for path in [moved, *moved.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    before = addresses(moved)
    with nobody(), pytest.raises(UserError, match="sender create") as refused:
        open_client(uri_of(moved))
    assert str(moved) in str(refused.value)
    command = shlex.split(refused.value.remedy.partition(", run ")[2])
    subprocess.run([sys.executable, *command[1:]], check=True, timeout=120)
    assert addresses(moved) != before


@pytest.mark.parametrize("name", ["with space", HOSTILE, "100%", "%2F", "why?"])
def test_a_store_may_lie_in_a_folder_of_any_name(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    shutil.copy(empty_store(), folder / "mlflow.db")
    uri = sqlite_uri(folder / "mlflow.db")
    assert sqlite_path(uri) == folder / "mlflow.db"
    client = open_client(uri)
    experiment = client.create_experiment("x", artifact_location(uri))
    run = client.create_run(experiment).info.run_id
    client.log_dict(run, {"a": 1}, "a.json")
    assert [artifact.path for artifact in client.list_artifacts(run)] == ["a.json"]
    assert {each.name for each in tmp_path.iterdir()} == {name}
    assert {"mlflow.db", "artifacts"} <= {each.name for each in folder.iterdir()}


@pytest.fixture
def report(tmp_path):
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / "table.md").write_text("a table")
    (folder / "private.txt").write_text("of somebody else")
    return [folder / "table.md"]


def test_files_settings_and_figures_are_at_mlflow(tmp_path, report):
    uri = copy_store(empty_store(), tmp_path)
    given = {"tracking_uri": uri, "experiment": "tables", "run_name": "one"}
    run_id = log_report(
        report, **given, params={"model": f"{tmp_path}/encoder"}, metrics={"f1.last": 91.5}
    )
    assert log_report(report, **given, params={}, metrics={}) not in (None, run_id)
    client = open_client(uri)
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"model": "…/encoder"}
    assert run.data.metrics == {"f1.last": 91.5}
    assert run.data.tags["version.torch"]
    assert [artifact.path for artifact in client.list_artifacts(run_id)] == ["table.md"]


def test_without_mlflow_the_reason_is_said_in_one_line(report, capsys, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    given = {"tracking_uri": "http://127.0.0.1:9", "experiment": "tables", "run_name": "one"}
    assert log_report(report, **given, params={}, metrics={}) is None
    out = capsys.readouterr().out
    assert out.startswith("mlflow   not logged: MlflowException: ")
    assert len(out.splitlines()) == 1


@pytest.mark.parametrize("store", ["a folder", "no database", "a database of another kind"])
def test_with_a_broken_store_the_reason_is_said_in_one_line(report, tmp_path, capsys, store):
    path = tmp_path / "mlflow.db"
    if store == "a folder":
        path.mkdir()
    elif store == "no database":
        path.write_bytes(b"anything" * 1000)
    else:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
            connection.execute("INSERT INTO alembic_version VALUES ('a')")
    given = {"tracking_uri": f"sqlite:///{path}", "experiment": "tables", "run_name": "one"}
    assert log_report(report, **given, params={}, metrics={}) is None
    out = capsys.readouterr().out
    assert out.startswith("mlflow   not logged: ") and len(out.splitlines()) == 1
