"""How trials get a place on a cluster; whole sweeps are trained in `test_tune.py`."""

from types import SimpleNamespace

import pytest
import torch

from bert_core.errors import UserError
from bert_core.training.checkpoint import save_checkpoint
from bert_core.training.loop import TrainingState
from workflows.clusters.settings import ClusterSettings
from workflows.messages import RunProgress
from workflows.runs.folder import RunFolder
from workflows.sweeps import training
from workflows.sweeps.planned import TrialStatus, TrialToTrain
from workflows.sweeps.training import (
    Board,
    TrialPlace,
    TrialWorker,
    _Order,
    early_stopping,
    join_cluster_for,
)
from workflows.training.run import WorkerJob


def test_the_resources_of_a_trial():
    assert TrialPlace.of(ClusterSettings(), 0.5).resources == {"cpu": 1}
    assert TrialPlace.of(ClusterSettings(threads_per_worker=4), 1.0).resources == {"cpu": 4}
    use_gpu = ClusterSettings(use_gpu=True)
    assert TrialPlace.of(use_gpu, 0.5).resources == {"cpu": 1, "gpu": 0.5}


@pytest.mark.ray
def test_as_many_trials_run_as_there_is_room_for(ray_cluster, monkeypatch):
    del ray_cluster  # of 2 CPUs
    assert join_cluster_for(TrialPlace(1, 0.0)) == 2
    assert join_cluster_for(TrialPlace(2, 0.0)) == 1
    assert join_cluster_for(TrialPlace(1, 0.0), at_once=1) == 1
    assert join_cluster_for(TrialPlace(1, 0.0), at_once=8) == 2
    with pytest.raises(UserError, match="a trial needs 3 CPU: Ray sees 2 on a machine"):
        join_cluster_for(TrialPlace(3, 0.0), at_once=8)
    with pytest.raises(UserError, match="lower --gpus_per_trial"):
        join_cluster_for(TrialPlace(1, 0.5))
    monkeypatch.setenv("RAY_ADDRESS", "a cluster that may grow")
    assert join_cluster_for(TrialPlace(1, 1.0), at_once=8) == 8


def test_no_trial_begins_after_a_wish_to_stop():
    order = _Order(lambda: pytest.fail("it was asked"), 1, None)
    order.is_stopped = True
    assert order.suggest("id") == "FINISHED"


class Sent(dict):
    """What was sent to trials, by name."""

    def send(self, name, value):
        self[name] = value


def test_what_a_trial_reads_is_sent_before_it_begins():
    def trial(name, data):
        job = SimpleNamespace(folder=SimpleNamespace(name=name), worker_job=lambda: f"job {name}")
        return TrialToTrain(job, "dev/f1", {"task_data": (data, [data])}, {"task": name})

    # An optimizer proposes points while others run: what they read is known only then.
    trials, sent = [trial("a", "short"), trial("b", "long")], Sent()
    order = _Order(lambda: trials.pop(0) if trials else None, 2, sent)
    first = order.suggest("1")
    assert first["shared"] == {"task_data": "short"} and sent == {"short": ["short"]}
    assert (first["own"], first["job"], first["threads"]) == ({"task": "a"}, "job a", 2)
    order.suggest("2")
    assert sent == {"short": ["short"], "long": ["long"]}
    assert order.suggest("3") == "FINISHED"


@pytest.mark.parametrize("epochs", [1, 3, 4, 9])
def test_a_trial_is_ended_early_before_its_last_epoch_only(epochs):
    scheduler = early_stopping(epochs)
    scheduler.set_search_properties("score", "max")
    decisions = []
    for number, score in enumerate((0.9, 0.8, 0.7, 0.1)):
        trial = SimpleNamespace(trial_id=str(number), status="RUNNING")
        scheduler.on_trial_add(None, trial)
        decisions.append(
            [
                scheduler.on_trial_result(None, trial, {"score": score, "epoch": epoch + 1.0})
                for epoch in range(epochs)
            ]
        )
    assert all(each[-1] == "CONTINUE" for each in decisions), "it has ended by itself"
    assert {*decisions[0]} == {"CONTINUE"}
    assert (decisions[-1][0] == "STOP") == (epochs > 1)


def test_the_board_keeps_the_last_of_each():
    board = Board()
    board.note("a", state="running", progress=RunProgress(step=1))
    board.note("b", state="running")
    board.note("a", progress=RunProgress(step=2))
    assert board.statuses() == {
        "a": TrialStatus("running", progress=RunProgress(step=2)),
        "b": TrialStatus("running"),
    }
    assert not board.stop_requested()
    board.request_stop()
    assert board.stop_requested()


@pytest.fixture
def worker():
    board = Board()
    channel = SimpleNamespace(note=SimpleNamespace(remote=board.note))
    return board, TrialWorker("a", torch.device("cpu"), channel, "dev/f1")


def test_progress_goes_to_the_board_whole(worker):
    board, trial = worker
    progress = RunProgress(step=3, checkpoint="step-00000003", evaluation="dev f1 0.612")
    trial.publish(progress)
    assert board.statuses() == {"a": TrialStatus(progress=progress)} and (
        trial.rank,
        trial.world_size,
    ) == (0, 1)


def test_a_trial_that_had_ended_before_a_kill_is_at_its_last_step(worker, tmp_path):
    board, trial = worker
    model = torch.nn.Linear(2, 2)
    state = TrainingState(model, torch.optim.AdamW(model.parameters()), step=30)
    folder = RunFolder(tmp_path / "runs" / "a")
    save_checkpoint(folder.checkpoints, state, extra={"total_steps": 30}, files={}, keep=1)
    job = WorkerJob(pytest.fail, folder.path, str(tmp_path))
    assert not training._train(job, {}, trial)
    assert board.statuses()["a"].progress == RunProgress(step=30, total_steps=30)


def test_tune_is_told_the_criterion(worker, monkeypatch):
    _, trial = worker
    told = []
    monkeypatch.setattr(training.tune, "report", told.append)
    trial.report({"dev/loss": 1.0, "dev/f1": 0.5, "dev/epoch": 2.0})
    trial.report({"heldout/loss": 1.0})
    assert told == [{"score": 0.5, "epoch": 2.0}]
