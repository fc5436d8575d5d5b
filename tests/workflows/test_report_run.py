import sqlite3
from contextlib import closing

import mlflow
import pytest
from registered_models import copy_store

from workflows.runs.mlflow_run import log_report


@pytest.fixture
def report(tmp_path):
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / "table.md").write_text("a table")
    (folder / "private.txt").write_text("of somebody else")
    return [folder / "table.md"]


def test_files_settings_and_figures_are_at_mlflow(tmp_path, report, store_template):
    uri = copy_store(store_template, tmp_path)
    given = {"tracking_uri": uri, "experiment": "tables", "run_name": "one"}
    run_id = log_report(
        report, **given, params={"model": f"{tmp_path}/encoder"}, metrics={"f1.last": 91.5}
    )
    assert log_report(report, **given, params={}, metrics={}) not in (None, run_id)
    client = mlflow.MlflowClient(uri)
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"model": "…/encoder"}
    assert run.data.metrics == {"f1.last": 91.5}
    assert run.data.tags["version.torch"]
    assert [each.path for each in client.list_artifacts(run_id)] == ["table.md"]


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
