"""The command of a sweep: refusals, and sweeps on a real cluster that are killed and resumed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient
from storage_addresses import folder_address
from sweep_runs import SweepCommand, sweep_arguments, write_inputs

from workflows.runs.journal import read_records
from workflows.runs.sender import verify_exactly_once
from workflows.tune import main


@pytest.fixture
def storage(tmp_path):
    return write_inputs(tmp_path, train=600)


@pytest.mark.parametrize(
    ("axes", "changed", "expected"),
    [
        (["epoch=2,3"], {}, "did you mean epochs: --axis epoch"),
        (["epochs="], {}, "an axis without values: --axis epochs="),
        (["epochs=two"], {}, "'two' is no value of it"),
        (["[]"], {}, "at least 1 item"),
        ([], {"seed": -1}, "greater than or equal to 0"),
        ([], {"options__metric": "f2"}, "unknown metric"),
        (["options.metric=accuracy,f1"], {}, "no axis of a sweep: --axis options.metric"),
        ([], {"optoins__max_length": 8}, "unknown setting, did you mean options.max_length"),
        ([], {"task": "mprc"}, "did you mean mrpc"),
        ([], {"data": "nowhere"}, "nowhere"),
        ([], {"preset": "no_such_file.yaml"}, "cannot be read"),
        ([], {"tracking__register_as": "team/cats"}, "take '/' out of it"),
        (
            [],
            {"tracking__register_as": "cats", "tracking__uri": "http://127.0.0.1:9"},
            "no version of cats can be registered",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(storage, capsys, monkeypatch, axes, changed, expected):
    monkeypatch.setattr("workflows.tune.train", lambda _: pytest.fail("it was not refused"))
    assert main(sweep_arguments(storage, *axes, **changed)) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and expected in lines[0], captured.err
    assert not list(storage.glob("runs/*/")) and not list(storage.glob("sweeps/*/"))


@pytest.mark.ray
def test_what_the_cluster_lacks_is_refused_before_a_sweep(
    storage, capsys, ray_cluster, monkeypatch
):
    assert main([*sweep_arguments(storage), "--cluster.use_gpu", "--gpus_per_trial", "2"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: a trial needs 2 GPU: Ray sees 0 on a machine")
    # A path of this process is another folder on the trials' machine.
    monkeypatch.setattr("workflows.clusters.tasks._own_node", lambda: "another")
    monkeypatch.chdir(storage)
    assert main(sweep_arguments(storage, storage="/proc/self/cwd")) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: 1 of 1 other nodes cannot reach the folder: /proc/self/cwd/")
    assert not list(storage.glob("sweeps/*/"))


def outcomes(sweep):
    """The outcomes of the finished trials by their runs' names."""
    paths = sorted(sweep.storage.glob("runs/*/trial.json"))
    return {path.parent.name: json.loads(path.read_text()) for path in paths}


def mlflow_runs(sweep):
    """MLflow's client, the sweep's run, and those of its trials."""
    client = MlflowClient(f"sqlite:///{sweep.storage / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("sweeps")
    runs = client.search_runs([experiment.experiment_id])
    trials = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    (parent,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)
    assert {run.data.tags["mlflow.parentRunId"] for run in trials} == {parent.info.run_id}
    return client, parent, trials


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(400)
def test_a_killed_sweep_trains_only_what_is_missing(
    storage, tmp_path, ray_cluster, monkeypatch, capsys
):
    axes = ("batch_size=8,16,24", "optimizer.peak_learning_rate=3e-3")
    settings, environment = {"axis": axes, "at_once": 1}, {"RAY_ADDRESS": ray_cluster}
    sweep = SweepCommand(tmp_path / "store", "sweep", storage, 0, settings, environment)
    driver = sweep.start()
    driver.until(lambda: outcomes(sweep), 120)
    driver.kill()
    written = {path: path.stat().st_mtime_ns for path in sweep.storage.glob("runs/*/trial.json")}
    assert 0 < len(written) < 3, "it was killed too late"

    monkeypatch.setenv("RAY_ADDRESS", ray_cluster)
    sweep.settings.pop("at_once")  # the rest is trained two at a time
    assert main(sweep.arguments()) == 0
    # A trial may have ended after its driver was killed: then it counts as finished.
    left = int(re.search(r"trials   3, (\d) left", capsys.readouterr().out)[1])
    assert 0 < left <= 3 - len(written)
    assert all(path.stat().st_mtime_ns == time for path, time in written.items())
    trained = outcomes(sweep)
    assert len(trained) == 3 and all(trial["score"] > 0.6 for trial in trained.values())

    client, parent, trials = mlflow_runs(sweep)
    assert len(trials) == 3
    for run in trials:
        assert run.info.status == "FINISHED"
        metrics = client.get_metric_history(run.info.run_id, "dev/accuracy")
        curve = trained[run.info.run_name]["curve"]
        assert [metric.value for metric in sorted(metrics, key=lambda metric: metric.step)] == [
            epoch["score"] for epoch in curve
        ]
    version = client.get_model_version_by_alias("classification", "challenger")
    winner = client.get_run(version.run_id)
    best = max(trial["score"] for trial in trained.values())
    assert trained[winner.info.run_name]["score"] == best
    artifacts = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert {"report.html", "report.md", "report.json", "best.yaml"} <= artifacts

    assert main(sweep.arguments()) == 0
    assert "registered   models:/classification/1, alias challenger" in capsys.readouterr().out
    assert outcomes(sweep) == trained

    # As another sweep, of which the winner was no winner, leaves it.
    folder = sweep.storage / "runs" / winner.info.run_name
    weights = (folder / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(folder / "checkpoints")
    shutil.rmtree(folder / "model")
    (sweep.folder / "summary.txt").unlink()
    assert main(sweep.arguments()) == 0
    printed = capsys.readouterr().out
    assert "the best, without weights: is trained again" in printed
    assert re.search(r"^batch_size=.*  accuracy [01]\.\d+ after epoch", printed, re.MULTILINE), (
        printed
    )
    again = outcomes(sweep)[winner.info.run_name]
    assert again["curve"] == trained[winner.info.run_name]["curve"]
    assert (folder / "model" / "model.safetensors").read_bytes() == weights


def slow_sweep(test):
    """Marks a test of a whole sweep that only `make test-all` runs."""
    return pytest.mark.slow(pytest.mark.ray(pytest.mark.timeout(900)(test)))


@pytest.fixture
def make_sweep(storage, tmp_path, ray_cluster):
    def make(**settings):
        given = {name.replace("__", "."): value for name, value in settings.items()}
        environment = {"RAY_ADDRESS": ray_cluster}
        return SweepCommand(tmp_path / "store", "sweep", storage, 0, given, environment)

    return make


@pytest.fixture
def two_trials(make_sweep):
    """A sweep of two trials, its driver, and the steps of both, which have passed 20."""
    sweep = make_sweep(epochs=8, axis=("batch_size=8,16",))
    driver = sweep.start()
    driver.until(lambda: len(steps(sweep)) == 2 and min(steps(sweep).values()) > 20, 200)
    return sweep, driver


def steps(sweep):
    """The newest step of each trial that has begun."""
    newest = {}
    for path in sweep.storage.glob("runs/*/journal.jsonl"):
        for record in read_records(path):
            newest[path.parent.name] = record.step
    return newest


@slow_sweep
def test_a_failed_trial_is_tried_again_and_reported(make_sweep):
    # At this rate the weights are not finite after the first step, at every attempt.
    sweep = make_sweep(axis=("optimizer.peak_learning_rate=3e-3,1e38",))
    printed = sweep.finish()
    assert "2 trials: 1 finished, 1 failed" in printed
    failed = [line for line in printed.splitlines() if line.startswith("failed ")]
    assert len(failed) == 1 and "not finite" in failed[0]
    assert not (sweep.folder / "summary.txt").exists()  # the same command tries it again
    report = json.loads((sweep.folder / "artifacts" / "report.json").read_text())
    assert "not finite" in json.dumps(report)
    _, _, trials = mlflow_runs(sweep)
    assert sorted(run.info.status for run in trials) == ["FAILED", "FINISHED"]


@slow_sweep
def test_where_all_trials_fail_the_report_says_why(make_sweep):
    sweep = make_sweep(optimizer__peak_learning_rate=1e38, axis=("batch_size=8,16",))
    printed = sweep.finish(code=2)
    assert "error: no trial has finished" in printed and "not finite" in printed
    assert "not finite" in (sweep.folder / "artifacts" / "report.md").read_text()


@slow_sweep
def test_an_interrupted_sweep_resumes_its_trials(two_trials):
    sweep, driver = two_trials
    driver.process.send_signal(signal.SIGINT)
    assert driver.wait(100) == 130, driver.output()
    assert "stopped; the same command goes on" in driver.output()
    before = steps(sweep)
    assert not outcomes(sweep)
    for folder in sweep.storage.glob("runs/*/checkpoints"):
        assert list(folder.glob("step*")), "it was saved"
    assert "2 trials: 2 finished" in sweep.finish()
    assert all(steps(sweep)[name] > step for name, step in before.items())
    for folder in (sweep.folder, *sweep.storage.glob("runs/*/")):
        report = verify_exactly_once(folder)
        assert report.correct, report


@slow_sweep
def test_a_trial_whose_process_is_killed_is_started_again(two_trials):
    sweep, driver = two_trials
    processes = psutil.Process().children(recursive=True)
    trials = [
        process for process in processes if "ImplicitFunc.train" in " ".join(process.cmdline())
    ]
    assert len(trials) == 2
    trials[0].kill()
    assert driver.wait(300) == 0, driver.output()
    assert "2 trials: 2 finished" in driver.output()
    assert all(len(trial["curve"]) == 8 for trial in outcomes(sweep).values())


@slow_sweep
def test_a_lost_machine_costs_only_its_trials(make_sweep):
    axes = ("batch_size=8,16", "optimizer.peak_learning_rate=3e-3,1e-3")
    sweep = make_sweep(epochs=6, axis=axes)
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


@slow_sweep
def test_a_sweep_at_an_address_resumes_on_another_machine(make_sweep, tmp_path):
    # The workers' working copy is in this process's home, the drivers' in their own.
    sweep = make_sweep(axis=("batch_size=8,16",), storage=folder_address(tmp_path / "there"))
    sweep.environment["HOME"] = str(tmp_path / "first")
    assert "2 trials: 2 finished" in sweep.finish()
    sweep.environment["HOME"] = str(tmp_path / "second")
    printed = sweep.finish()
    assert "trials   2, 0 left" in printed and "2 trials: 2 finished" in printed
    models = list((tmp_path / "second").glob(".bertline/copies/*/runs/*/model/config.json"))
    assert len(models) == 1


@slow_sweep
def test_a_killed_search_by_optuna_proposes_the_rest(make_sweep):
    pytest.importorskip("optuna")
    # Of other lengths the data are others: they are sent when such a point is proposed.
    axes = ("optimizer.peak_learning_rate=log:1e-6..1e-2", "options.max_length=8,32")
    sweep = make_sweep(axis=axes, search="optuna", points=6, epochs=3, stop_early=True)
    driver = sweep.start()
    driver.until(lambda: len(outcomes(sweep)) >= 2, 200)
    driver.kill()
    before = outcomes(sweep)
    assert len(before) < 6, "it was killed too late"
    printed = sweep.finish()
    after = outcomes(sweep)
    assert "6 trials" in printed and len(after) == 6
    assert before.items() <= after.items()
    assert len({tuple(trial["point"].values()) for trial in after.values()}) == 6
    for trial in after.values():
        assert len(trial["curve"]) == 3 or trial["stopped_early"]
