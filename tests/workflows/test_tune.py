"""The command of a sweep: refused in one line; on a real cluster killed, stopped and resumed."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from finetuning_runs import write_encoder, write_task
from storage_addresses import folder_address
from sweep_runs import SweepCommand, sweep_arguments

from workflows.runs.journal import read_records
from workflows.runs.sender import verify_exactly_once
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


@pytest.fixture
def make_sweep(tmp_path, ray_cluster):
    write_task(tmp_path / "data", train=600)
    write_encoder(tmp_path / "encoder")

    def make(**settings):
        given = {name.replace("__", "."): value for name, value in settings.items()}
        environment = {"RAY_ADDRESS": ray_cluster}
        return SweepCommand(tmp_path / "store", "sweep", tmp_path, 0, given, environment)

    return make


def outcomes(sweep):
    """The trials that have finished, by their runs' names."""
    paths = sorted(sweep.storage.glob("runs/*/trial.json"))
    return {path.parent.name: json.loads(path.read_text()) for path in paths}


def steps(sweep):
    """The newest step of each trial that has begun."""
    newest = {}
    for path in sweep.storage.glob("runs/*/journal.jsonl"):
        for record in read_records(path):
            newest[path.parent.name] = record.step
    return newest


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_sweep_that_is_told_to_stop_goes_on_where_it_was(make_sweep):
    sweep = make_sweep(epochs=8, axis=("batch_size=8,16",))
    driver = sweep.start()
    driver.until(lambda: len(steps(sweep)) == 2 and min(steps(sweep).values()) > 20, 200)
    driver.process.send_signal(signal.SIGINT)
    assert driver.wait(100) == 130, driver.output()
    assert "stopped; the same command goes on" in driver.output()
    before = steps(sweep)
    assert not outcomes(sweep)
    for folder in sweep.storage.glob("runs/*/checkpoints"):
        assert list(folder.glob("step*")), "it was saved"
    assert "2 trials: 2 finished" in sweep.finish()
    assert all(steps(sweep)[name] > step for name, step in before.items())
    assert verify_exactly_once(sweep.folder).correct
    for folder in sweep.storage.glob("runs/*/journal.jsonl"):
        report = verify_exactly_once(folder.parent)
        assert report.correct, report


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_trial_whose_process_is_killed_is_begun_again(make_sweep):
    sweep = make_sweep(epochs=8, axis=("batch_size=8,16",))
    driver = sweep.start()
    driver.until(lambda: len(steps(sweep)) == 2 and min(steps(sweep).values()) > 20, 200)
    trials = [
        each
        for each in psutil.Process().children(recursive=True)
        if "ImplicitFunc.train" in " ".join(each.cmdline())
    ]
    assert len(trials) == 2
    trials[0].kill()
    assert driver.wait(300) == 0, driver.output()
    assert "2 trials: 2 finished" in driver.output()
    assert all(len(each["curve"]) == 8 for each in outcomes(sweep).values())


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_where_all_trials_fail_the_report_says_why(make_sweep):
    sweep = make_sweep(optimizer__peak_learning_rate=1e38, axis=("batch_size=8,16",))
    printed = sweep.finish(code=2)
    assert "error: no trial has finished" in printed and "not finite" in printed
    assert "not finite" in (sweep.folder / "artifacts" / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_machine_that_is_lost_costs_its_trials_alone(make_sweep, tmp_path):
    sweep = make_sweep(epochs=6, axis=("batch_size=8,16", "optimizer.peak_learning_rate=3e-3,1e-3"))
    program = Path(__file__).with_name("losing_node.py")
    command = [sys.executable, str(program), sys.executable, str(sweep.program)]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    outcome = subprocess.run(
        [*command, *sweep.arguments()], env=environment, capture_output=True, text=True
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "lost 1 trials" in outcome.stdout
    assert "4 trials: 4 finished" in outcome.stdout
    assert len(outcomes(sweep)) == 4


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_sweep_at_an_address_goes_on_on_another_machine(make_sweep, tmp_path):
    # The workers' working copy is that of this process's home, the drivers' are their own.
    uri = folder_address(tmp_path / "there")
    sweep = make_sweep(axis=("batch_size=8,16",), storage=uri)
    sweep.environment["HOME"] = str(tmp_path / "first")
    assert "2 trials: 2 finished" in sweep.finish()
    sweep.environment["HOME"] = str(tmp_path / "second")
    printed = sweep.finish()
    assert "trials   2, 0 left" in printed and "2 trials: 2 finished" in printed
    models = list((tmp_path / "second").glob(".bertline/copies/*/runs/*/model/config.json"))
    assert len(models) == 1


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_search_by_optuna_that_is_killed_proposes_the_rest(make_sweep):
    pytest.importorskip("optuna")
    axes = ("optimizer.peak_learning_rate=log:1e-6..1e-2", "batch_size=8,16")
    sweep = make_sweep(axis=axes, search="optuna", points=6, epochs=3, stop_early=True)
    driver = sweep.start()
    driver.until(lambda: len(outcomes(sweep)) >= 2, 200)
    driver.kill()
    before = outcomes(sweep)
    assert len(before) < 6, "it was killed too late"
    printed = sweep.finish()
    found = outcomes(sweep)
    assert "6 trials" in printed and len(found) == 6
    assert before.items() <= found.items()
    points = [tuple(each["point"].values()) for each in found.values()]
    assert len(set(points)) == 6
    for each in found.values():
        assert len(each["curve"]) == 3 or each["stopped_early"]
