import pytest
from mlflow.entities import Metric

from bert_core.errors import UserError
from workflows.tracking.mlflow_run import artifact_location, open_client
from workflows.versions.registry_run import fetch_run, find_run, metric_values, read_artifact, utc


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
