"""What stands around a trial; trials themselves go through Ray in `test_tune.py`."""

from types import SimpleNamespace

import pytest
import torch

from bert_core.training.checkpoint import save_checkpoint
from bert_core.training.loop import TrainingState
from workflows.messages import RunProgress
from workflows.run_folder import RunFolder
from workflows.sweeps import trial as sweep_trial
from workflows.sweeps.trial import Board, TrialWorker
from workflows.training.worker_main import WorkerJob


def test_the_board_keeps_the_last_of_each():
    board = Board()
    board.note("a", {"state": "running", "step": 1})
    board.note("b", {"state": "running"})
    board.note("a", {"step": 2})
    assert board.news() == {"a": {"state": "running", "step": 2}, "b": {"state": "running"}}
    assert not board.stop_requested()
    board.request_stop()
    assert board.stop_requested()


@pytest.fixture
def worker():
    board = Board()
    channel = SimpleNamespace(note=SimpleNamespace(remote=board.note))
    return board, TrialWorker("a", torch.device("cpu"), channel, "dev/f1")


def test_news_go_to_the_board(worker):
    board, trial = worker
    trial.publish(RunProgress(step=3))
    assert board.news() == {"a": {"step": 3}} and (trial.rank, trial.world_size) == (0, 1)


def test_a_trial_that_had_ended_before_a_kill_is_at_its_last_step(worker, tmp_path):
    board, trial = worker
    model = torch.nn.Linear(2, 2)
    state = TrainingState(model, torch.optim.AdamW(model.parameters()), step=30)
    folder = RunFolder(tmp_path / "runs" / "a")
    save_checkpoint(folder.checkpoints, state, extra={"total_steps": 30}, files={}, keep=1)
    job = WorkerJob(pytest.fail, folder.path, str(tmp_path))
    assert not sweep_trial._train({"job": job, "shared": {}}, {}, trial)
    assert board.news() == {"a": {"step": 30, "total_steps": 30}}


def test_tune_is_told_the_criterion(worker, monkeypatch):
    _, trial = worker
    told = []
    monkeypatch.setattr(sweep_trial.tune, "report", told.append)
    trial.report({"dev/loss": 1.0, "dev/f1": 0.5, "dev/epoch": 2.0})
    trial.report({"heldout/loss": 1.0})
    assert told == [{"score": 0.5, "epoch": 2.0}]
