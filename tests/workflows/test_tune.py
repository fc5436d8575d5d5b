"""The command of a sweep: refused in one line; trained on a real cluster, killed and going on."""

import json
import re
from types import SimpleNamespace

import pytest
from finetuning_runs import write_encoder, write_task
from sweep_runs import SweepCommand, sweep_arguments

from workflows.tune import main


@pytest.fixture
def storage(tmp_path):
    write_task(tmp_path / "data", train=600)
    write_encoder(tmp_path / "encoder")
    return tmp_path


@pytest.mark.parametrize(
    ("axes", "changed", "expected"),
    [
        (["epoch=2,3"], {}, "did you mean epochs: --axis epoch"),
        (["epochs="], {}, "an axis without values: --axis epochs="),
        (["epochs=two"], {}, "'two' is no value of it"),
        ([], {"axis": "[]"}, "at least 1 item"),
        (None, {"seed": -1}, "greater than or equal to 0"),
        (None, {"options__metric": "f2"}, "unknown metric"),
        (["options.metric=accuracy,f1"], {}, "no axis of a sweep: --axis options.metric"),
        (None, {"optoins__max_length": 8}, "unknown setting, did you mean options.max_length"),
        (None, {"task": "mprc"}, "did you mean mrpc"),
        (None, {"data": "nowhere"}, "nowhere"),
        (None, {"preset": "no_such_file.yaml"}, "cannot be read"),
        ([], {"tracking__register_as": "team/cats"}, "take '/' out of it"),
        (
            [],
            {"tracking__register_as": "cats", "tracking__uri": "http://127.0.0.1:9"},
            "no version of cats can be registered",
        ),
    ],
)
def test_bad_input_is_one_line(storage, capsys, monkeypatch, axes, changed, expected):
    monkeypatch.setattr("workflows.tune.train", lambda _: pytest.fail("it was not refused"))
    given = sweep_arguments(storage, *(axes or ()), **changed)
    if "axis" in changed or axes is None:
        given = given[: given.index("--axis")]
        given = [*given, "--axis", changed["axis"]] if "axis" in changed else given
    assert main(given) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and expected in lines[0], captured.err
    assert not list(storage.glob("runs/*/")) and not list(storage.glob("sweeps/*/"))


@pytest.mark.ray
def test_more_gpus_than_there_are(storage, capsys, ray_cluster):
    del ray_cluster
    assert main([*sweep_arguments(storage), "--cluster.use_gpu", "--gpus_per_trial", "2"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: a trial needs 2 GPU: Ray sees 0 on a machine")
    assert not list(storage.glob("sweeps/*/"))


@pytest.mark.ray
def test_a_storage_that_a_machine_cannot_reach(storage, capsys, ray_cluster, monkeypatch):
    """What is this process's folder is another one to the machine of trials."""
    del ray_cluster
    monkeypatch.setattr("workflows.clusters.tasks._own_node", lambda: "another")
    monkeypatch.chdir(storage)
    assert main(sweep_arguments(storage, storage="/proc/self/cwd")) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: 1 of 1 other nodes cannot reach the folder: /proc/self/cwd/")
    assert not list(storage.glob("sweeps/*/"))


def of_mlflow(sweep):
    """The run of the sweep and those of its trials, by name, each with its metrics' histories."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{sweep.storage / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("sweeps")
    runs = client.search_runs([experiment.experiment_id])
    children = [each for each in runs if "mlflow.parentRunId" in each.data.tags]
    (parent,) = (each for each in runs if "mlflow.parentRunId" not in each.data.tags)
    assert {each.data.tags["mlflow.parentRunId"] for each in children} == {parent.info.run_id}
    return SimpleNamespace(client=client, parent=parent, children=children)


def results(sweep):
    """What has finished: the outcome of each trial, and when it was written."""
    paths = sorted(sweep.storage.glob("runs/*/trial.json"))
    return {path.parent.name: (path.read_text(), path.stat().st_mtime_ns) for path in paths}


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_a_killed_sweep_does_only_what_is_missing(storage, tmp_path, ray_cluster):
    environment = {"RAY_ADDRESS": ray_cluster}
    sweep = SweepCommand(tmp_path / "store", "sweep", storage, 0, environment=environment)
    driver = sweep.start()
    driver.until(lambda: results(sweep), 120)
    driver.kill()
    finished = results(sweep)
    assert 0 < len(finished) < 4, "it was killed too late"
    printed = sweep.finish()
    # A trial may have come to its end after its driver's death: then it is found finished.
    left = int(re.search(r"trials   4, (\d) left", printed)[1])
    assert 0 < left <= 4 - len(finished)
    assert finished.items() <= results(sweep).items()  # none of them was written again
    outcomes = {name: json.loads(text) for name, (text, _) in results(sweep).items()}
    assert len(outcomes) == 4 and all(each["score"] > 0.6 for each in outcomes.values())

    there = of_mlflow(sweep)
    assert len(there.children) == 4
    for run in there.children:
        assert run.info.status == "FINISHED"
        curve = there.client.get_metric_history(run.info.run_id, "dev/accuracy")
        told = outcomes[run.info.run_name]["curve"]
        assert [each.value for each in sorted(curve, key=lambda each: each.step)] == [
            each["score"] for each in told
        ]
    version = there.client.get_model_version_by_alias("classification", "challenger")
    best = max(outcomes.values(), key=lambda each: each["score"])
    winner = there.client.get_run(version.run_id)
    assert outcomes[winner.info.run_name]["score"] == best["score"]
    artifacts = [each.path for each in there.client.list_artifacts(there.parent.info.run_id)]
    assert {"report.html", "report.md", "report.json", "best.yaml"} <= set(artifacts)

    again = sweep.finish(seconds=60)
    assert "registered   models:/classification/1, alias challenger" in again
    assert results(sweep).items() >= finished.items()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_trial_that_fails_is_tried_again_and_reported(storage, tmp_path, ray_cluster):
    # Weights that are not finite after the first step, however often it is tried.
    sweep = SweepCommand(
        tmp_path / "store",
        "sweep",
        storage,
        0,
        {"axis": ("optimizer.peak_learning_rate=3e-3,1e38",)},
        {"RAY_ADDRESS": ray_cluster},
    )
    printed = sweep.finish()
    assert "2 trials: 1 finished, 1 failed" in printed
    failed = [line for line in printed.splitlines() if line.startswith("failed ")]
    assert len(failed) == 1 and "not finite" in failed[0]
    assert not (sweep.folder / "summary.txt").exists()  # the same command tries it again
    report = json.loads((sweep.folder / "artifacts" / "report.json").read_text())
    assert "not finite" in json.dumps(report)
    statuses = sorted(each.info.status for each in of_mlflow(sweep).children)
    assert statuses == ["FAILED", "FINISHED"]
