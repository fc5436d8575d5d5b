import io
import re

import pytest
from sweep_runs import sweep_settings, write_inputs

from workflows.messages import RunProgress
from workflows.runs.storage import open_storage
from workflows.sweeps import live_table as sweep_table
from workflows.sweeps.live_table import SweepTable, describe, titled
from workflows.sweeps.outcome import TrialOutcome
from workflows.sweeps.planned import TrialStatus
from workflows.sweeps.sweep import opened_sweep


@pytest.fixture
def trials(tmp_path):
    write_inputs(tmp_path)
    settings = sweep_settings(tmp_path, "epochs=1,3", "optimizer.peak_learning_rate=1e-3,2e-5")
    with opened_sweep(settings, open_storage(str(tmp_path))) as sweep:
        yield sweep.trials


def finish(trial, score, **changed):
    outcome = TrialOutcome(
        trial.name, trial.point, trial.seed, score=score, best_epoch=1, seconds=75, **changed
    )
    outcome.write(trial.job.folder.path / "trial.json")
    trial.status = TrialStatus("behind" if outcome.stopped_early else "trained")


def running(**progress):
    return TrialStatus("running", progress=RunProgress(**progress))


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_trial_is_called_by_its_values(trials):
    assert describe({"optimizer.peak_learning_rate": 5e-05, "precision": "bfloat16"}) == (
        "peak_learning_rate=5e-05 precision=bfloat16"
    )
    assert titled(trials[0]) == "epochs=1 peak_learning_rate=0.001 seed=0"


def test_without_a_terminal_each_end_is_a_line(trials):
    stream = io.StringIO()
    with SweepTable(trials, stream) as table:
        table.show()
        assert stream.getvalue() == ""
        finish(trials[0], 0.8125)
        trials[1].status = TrialStatus("failed", "the device is out of memory")
        finish(trials[2], 0.5, stopped_early=True)
        table.show()
        table.show()
    assert stream.getvalue().splitlines() == [
        "epochs=1 peak_learning_rate=0.001 seed=0  accuracy 0.812 after epoch 1, 1 min 15 s",
        "epochs=1 peak_learning_rate=2e-05 seed=0  failed: the device is out of memory",
        "epochs=3 peak_learning_rate=0.001 seed=0  accuracy 0.500 after epoch 1, ended early,"
        " 1 min 15 s",
    ]


def test_what_an_earlier_start_has_done_is_not_repeated(trials):
    finish(trials[0], 0.9)
    trials[0].status = TrialStatus()
    stream = io.StringIO()
    with SweepTable(trials, stream) as table:
        table.show()
    assert stream.getvalue() == ""


def test_the_time_that_is_left_is_that_of_the_tokens(trials, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(sweep_table.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with SweepTable(trials, stream) as table:
        trials[2].status = running(step=0, total_steps=100)
        now[0] += 61
        table.show()
        assert stream.getvalue().endswith("1 running  ETA …\n")
        # Of 8 epochs in all, one and a half are done after 90 seconds: 65 tenths are left.
        trials[2].status = running(step=50, total_steps=100)
        now[0] += 90
        table.show()
    assert stream.getvalue().splitlines()[-1].endswith("ETA 6 min 30 s")


def test_a_terminal_shows_who_runs_and_who_is_best(trials):
    finish(trials[0], 0.7)
    finish(trials[1], 0.9)
    trials[2].status = running(step=10, total_steps=36, evaluation="dev accuracy 0.6")
    trials[3].status = running()
    stream = Terminal()
    with SweepTable(trials, stream) as table:
        table.show()
        table._live.refresh()
    shown = re.sub(r"\x1b\[[0-9;?]*\w", "", stream.getvalue())
    lines = [line.split() for line in shown.splitlines()]
    assert ["epochs", "peak_learning_rate", "seed", "state", "dev"] in lines
    assert ["3", "0.001", "0", "step", "10", "of", "36", "dev", "accuracy", "0.6"] in lines
    assert ["3", "2e-05", "0", "starting"] in lines
    first = lines.index(["1", "2e-05", "0", "epoch", "1", "was", "best", "0.900"])
    assert first < lines.index(["1", "0.001", "0", "epoch", "1", "was", "best", "0.700"])
    assert "2 of 4 trials done  2 running  best accuracy 0.900" in " ".join(shown.split("\n"))
