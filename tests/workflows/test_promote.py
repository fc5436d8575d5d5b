"""The command line of a promotion; and all of it at a server with PostgreSQL and an S3 store."""

import signal
import time
from pathlib import Path

import pytest
from interrupted_promotion import start
from postgres_server import postgres
from registered_models import NAME, champion, register_models, written_models
from storage_addresses import CREDENTIALS, s3_server

from benchmarks.mlflow_server import MlflowServer
from workflows import promote
from workflows.promotion.champion import Times, read_entries
from workflows.runs.mlflow_run import open_client


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["rolback", "--name", "a"], "unknown action, did you mean rollback: rolback (one of prom"),
        (["history"], "Field required: --name"),
        (["rollback", "--name", "a", "--version", "1"], "unknown setting"),
        (["promote", "--name", "a"], "Field required: --version"),
        ([], "Field required: --name"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, match, capsys):
    assert promote.main(arguments) == 2
    output, errors = capsys.readouterr()
    assert output == "" and errors.startswith("error: ") and match in errors
    assert errors.count("\n") == 1


def test_no_store_is_made_to_look_for_a_model_in(tmp_path, capsys):
    for action in ("promote", "rollback", "history"):
        version = ["--version", "1"] if action == "promote" else []
        given = [action, "--name", "a", *version, "--storage", str(tmp_path)]
        assert promote.main(given) == 2
        assert "no registered model a: no MLflow store at sqlite" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """`mlflow server` over PostgreSQL and an S3 store; its address has all the small models."""
    import boto3

    folder = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch, postgres() as database, s3_server() as query:
        address = query.partition("endpoint_override=")[2].partition("&")[0]
        endpoint = {"MLFLOW_S3_ENDPOINT_URL": f"http://{address}"}
        for name, value in (CREDENTIALS | endpoint | {"AWS_DEFAULT_REGION": "us-east-1"}).items():
            patch.setenv(name, value)
        store = boto3.client("s3", endpoint_url=f"http://{address}")
        store.create_bucket(Bucket="models")
        server = MlflowServer(folder, database, "s3://models/artifacts")
        server.start()
        try:
            for name in CREDENTIALS:  # only the server has them
                patch.delenv(name)
            names = ["right", "right", "wrong", "other"]
            register_models(server.uri, names, accuracies=[0.9, 0.9, 0.1, 0.9])
            for name, value in CREDENTIALS.items():
                patch.setenv(name, value)
            assert store.list_objects_v2(Bucket="models", Prefix="artifacts/")["KeyCount"] > 4
            yield server.uri
        finally:
            server.kill()


@pytest.fixture
def run(server, tmp_path, capsys):
    """Calls the command in this process on that server: exit code and what it printed."""

    def call(*arguments, **options):
        given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        given += ["--storage", str(tmp_path), "--tracking_uri", server]
        code = promote.main([*arguments, "--name", NAME, *given])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


@pytest.fixture
def nothing_before(server):
    """No champion and no history."""
    client = open_client(server)
    client.delete_registered_model_alias(NAME, "champion")
    for key in client.get_registered_model(NAME).tags:
        client.delete_registered_model_tag(NAME, key)


def entries(uri):
    return list(read_entries(open_client(uri).get_registered_model(NAME).tags).values())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_postgres_and_s3_promote_refuse_and_roll_back(run, server, nothing_before, tmp_path):
    gate = tmp_path / "gate.yaml"
    gate.write_text(
        f"data: {written_models()['data']}\n"
        "metrics: {accuracy: 0.9}\nlargest_drop: {accuracy: 0.01}\n"
        "p95_latency_ms: 60000\nmemory_mb: 60000\nfolder_mb: 1\nmeasured_with: {requests: 20}\n"
    )
    assert run(version=1, gate=gate, reason="first")[0] == 0
    assert run(version=2, gate=gate)[0] == 0 and champion(server) == 2
    code, printed = run(version=3, gate=gate)
    assert code == 3 and "failed 2 of 5: accuracy, drop of accuracy" in printed
    client = open_client(server)
    found = client.get_model_version(NAME, "3")
    (artifact,) = client.list_artifacts(found.run_id, "gate")
    assert Path(client.download_artifacts(found.run_id, artifact.path, str(tmp_path))).is_file()
    assert found.description.startswith("# A model of the tests")  # the card
    assert run(version=4)[0] == 2 and run(version=9)[0] == 2
    assert run("rollback")[0] == 0 and champion(server) == 1
    assert run("rollback")[0] == 2
    code, printed = run("history")
    assert code == 0 and "first" in printed and printed.endswith("champion version 1\n")
    assert [entry.state for entry in entries(server)] == ["done", "done", "refused", "done"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_postgres_of_many_at_once_one_succeeds_and_the_others_exit_with_an_error(
    run, server, nothing_before, tmp_path
):
    given = ("--name", NAME, "--storage", tmp_path, "--tracking_uri", server, "--version")
    slower = start("waits", *given, 2)
    assert slower.pipe.recv() == "judged"
    assert run(version=1)[0] == 0
    slower.pipe.send("continue")
    code, errors = slower.finish()
    assert code == 2, errors
    assert "moved by another program: from none to version 1" in errors and champion(server) == 1
    for version in (2, 1, 2):
        processes = [start("never", *given, version) for _ in range(3)]
        ended = [process.finish() for process in processes]
        assert sorted({code for code, _ in ended}) in ([0], [0, 2]), ended
        assert champion(server) == version
    moves = [(entry.before, entry.after, entry.state) for entry in entries(server)]
    assert moves == [(None, 1, "done"), (1, 2, "done"), (2, 1, "done"), (1, 2, "done")]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("where", "moved"), [("before", False), ("after", True)])
def test_postgres_a_kill_leaves_the_old_champion_or_the_new_one(
    run, server, nothing_before, tmp_path, where, moved
):
    """Others wait for the default time until a killed promotion counts as abandoned."""
    assert run(version=1)[0] == 0
    given = ("--name", NAME, "--storage", tmp_path, "--tracking_uri", server)
    code, errors = start(where, *given, "--version", 2).finish()
    assert code == -signal.SIGKILL, errors
    assert champion(server) == (2 if moved else 1)
    began = time.monotonic()
    code, printed = run("rollback") if moved else run(version=2)
    assert code == 0 and "waiting  up to 90 s for a promotion by" in printed, printed
    assert time.monotonic() - began >= Times().abandoned
    assert champion(server) == (1 if moved else 2)
    states = [entry.state for entry in entries(server)]
    assert states == ["done", "done" if moved else "interrupted", "done"]
