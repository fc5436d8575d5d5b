"""The end of a sweep without a winner; one with a winner is in `test_tune.py`."""

from types import SimpleNamespace

import pytest
from finetuning_runs import write_encoder, write_task
from sweep_runs import sweep_settings

from bert_core.errors import UserError
from workflows.storage import open_storage
from workflows.sweeps.results import conclude, export_winner, write_report
from workflows.sweeps.sweep import opened_sweep


def test_where_all_trials_failed_the_reason_is_said(tmp_path):
    write_task(tmp_path / "data")
    write_encoder(tmp_path / "encoder")
    with opened_sweep(sweep_settings(tmp_path), open_storage(str(tmp_path))) as sweep:
        for trial in sweep.trials:
            trial.failure = "the disk is full"
        tracker = SimpleNamespace()
        assert export_winner(sweep, tracker) is None
        lines = write_report(sweep, at_once=2)
        assert "4 failed" in lines[0]
        assert "the disk is full" in (sweep.folder.path / "artifacts" / "report.md").read_text()
        with pytest.raises(UserError, match="no trial has finished: the disk is full"):
            conclude(sweep, None, lines, tracker, SimpleNamespace(error=None, unsent_records=0))
        assert not sweep.folder.summary.exists()
