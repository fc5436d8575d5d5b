"""Sweeps at length: told to stop, workers and machines lost, searches that are killed and go on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from finetuning_runs import write_encoder, write_task
from storage_addresses import folder_address
from sweep_runs import SweepCommand

from workflows.runs.journal import read_records
from workflows.runs.sender import verify_exactly_once

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]


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


def test_where_all_trials_fail_the_report_says_why(make_sweep):
    sweep = make_sweep(optimizer__peak_learning_rate=1e38, axis=("batch_size=8,16",))
    printed = sweep.finish(code=2)
    assert "error: no trial has finished" in printed and "not finite" in printed
    assert "not finite" in (sweep.folder / "artifacts" / "report.md").read_text()


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
