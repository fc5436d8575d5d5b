"""What one start of a sweep counts; what it does goes through Ray in `test_tune.py`."""

from types import SimpleNamespace

import pytest
from finetuning_runs import write_encoder, write_task
from sweep_runs import sweep_settings

from bert_core.errors import UserError
from workflows.messages import RunProgress, Speed
from workflows.runs.storage import open_storage
from workflows.sweeps.planned import TrialStatus
from workflows.sweeps.run import conclude, export_winner, total_speed, write_report
from workflows.sweeps.sweep import opened_sweep


@pytest.fixture
def sweep(tmp_path):
    write_task(tmp_path / "data")
    write_encoder(tmp_path / "encoder")
    with opened_sweep(sweep_settings(tmp_path), open_storage(str(tmp_path))) as sweep:
        yield sweep


def test_the_speed_is_that_of_what_runs():
    def trial(state, speed):
        progress = RunProgress(speed=Speed(speed, 0.0, 0.5, 1 << 30, 60.0))
        return SimpleNamespace(status=TrialStatus(state, progress=progress))

    trials = [trial("running", 100.0), trial("trained", 50.0), trial("running", 20.0)]
    assert total_speed(trials) == {"tokens_per_second": 120.0}
    assert total_speed([SimpleNamespace(status=TrialStatus("running"))]) == {}


def test_the_time_of_every_start_counts(sweep):
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), sweep.counted_time():
            raise KeyboardInterrupt
    assert 0 < sweep.seconds() < 1


def test_a_sweep_keeps_its_run_at_mlflow(sweep, tmp_path):
    first = sweep.tracked_run()
    assert first == sweep.tracked_run() and first.experiment == "sweeps"
    assert first.run_name == sweep.folder.name and first.params["seeds"] == "1"
    assert first.tags["data.sha256"] == sweep.data.sha256
    assert str(tmp_path) not in "".join(first.params.values())


def test_where_all_trials_failed_the_reason_is_said(tmp_path):
    write_task(tmp_path / "data")
    write_encoder(tmp_path / "encoder")
    with opened_sweep(sweep_settings(tmp_path), open_storage(str(tmp_path))) as sweep:
        for trial in sweep.trials:
            trial.failure = "the disk is full"
        driver = SimpleNamespace(tracking=None)
        assert export_winner(sweep, driver) is None
        lines = write_report(sweep, at_once=2)
        assert "4 failed" in lines[0]
        assert "the disk is full" in (sweep.folder.path / "artifacts" / "report.md").read_text()
        with pytest.raises(UserError, match="no trial has finished: the disk is full"):
            conclude(sweep, driver, None, lines)
        assert not sweep.folder.summary.exists()
