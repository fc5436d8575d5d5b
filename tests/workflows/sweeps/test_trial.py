"""What stands around a trial; trials themselves go through Ray in `test_tune.py`."""

from types import SimpleNamespace

import pytest
import torch

from workflows.sweeps import trial as sweep_trial
from workflows.sweeps.trial import Board, TrialWorker


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
    trial.publish({"step": 3})
    assert board.news() == {"a": {"step": 3}} and (trial.rank, trial.world_size) == (0, 1)


def test_tune_is_told_the_criterion(worker, monkeypatch):
    _, trial = worker
    told = []
    monkeypatch.setattr(sweep_trial.tune, "report", told.append)
    trial.report({"dev/loss": 1.0, "dev/f1": 0.5, "dev/epoch": 2.0})
    trial.report({"heldout/loss": 1.0})
    assert told == [{"score": 0.5, "epoch": 2.0}]
