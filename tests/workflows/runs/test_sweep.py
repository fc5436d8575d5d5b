import fcntl
import shutil

import pytest
from tracked_runs import described, wait_until, write_steps

from benchmarks.mlflow_server import MlflowServer, free_port
from bert_core.errors import UserError
from workflows.runs.journal import Journal
from workflows.runs.mlflow_run import open_client
from workflows.runs.sender import verify_exactly_once
from workflows.runs.sweep_tracker import PARENT_TAG, SweepSender, TrackedTrial, write_trials
from workflows.runs.tracker import (
    JOURNAL_NAME,
    LOCK_NAME,
    STATE_NAME,
    read_json,
    sender_environment,
    write_specification,
)


class Files:
    """What a driver and its trials leave on disk, a sender being started by the test."""

    def __init__(self, storage, uri):
        self.storage, self.uri = storage, uri
        self.trials = {}

    def folder(self, name):
        return self.storage / "runs" / name

    def sweep(self, name="sweep"):
        folder = self.storage / "sweeps" / name
        self.specify(folder)
        return folder

    def specify(self, folder, **changes):
        key = f"key of {folder}"
        write_specification(folder, described(self.uri, folder, run_key=key, **changes))

    def trial(self, name, trial, steps=(), **changes):
        folder = self.folder(name)
        self.specify(folder, **changes)
        write_steps(Journal(folder / JOURNAL_NAME), steps)
        self.trials[folder] = trial
        return folder

    def sender(self, sweep=None):
        sweep = sweep or self.sweep()
        write_trials(sweep, self.trials, None)
        return SweepSender(sweep)

    def run(self, name):
        run_id = read_json(self.folder(name) / STATE_NAME)["run_id"]
        return open_client(self.uri).get_run(run_id)


@pytest.fixture
def files(tmp_path, store_uri):
    return Files(tmp_path, store_uri)


def send(sender, status="FINISHED"):
    while sender.send_batch():
        pass
    sender.finish(status)


def ended(sender):
    try:
        sender.finish("FINISHED")
    except UserError:
        return False
    return True


def test_a_trial_that_has_been_sent_is_left_alone(files):
    folder = files.trial("a", TrackedTrial("FINISHED"), range(1, 5))
    send(files.sender())
    first = files.run("a").info.end_time
    send(files.sender())
    files.trials[folder] = TrackedTrial("FINISHED", starts=2)  # begun and ended, nothing new
    send(files.sender())
    assert files.run("a").info.end_time == first

    Journal(folder / JOURNAL_NAME).append(5, {"train/loss": 0.2})
    send(files.sender())
    second = files.run("a").info.end_time
    (folder / "artifacts" / "report.md").write_text("good")
    send(files.sender())
    third = files.run("a").info.end_time
    assert first < second < third
    assert files.run("a").data.metrics["train/loss"] == 0.2
    files.specify(folder, tags={"git.dirty": "true"})
    send(files.sender())
    assert files.run("a").data.tags["git.dirty"] == "true"
    files.trials[folder] = TrackedTrial("FAILED", starts=2)
    send(files.sender())
    assert files.run("a").info.status == "FAILED"


def test_a_trial_may_begin_again_between_two_looks(files):
    sender = files.sender()
    folder = files.trial("a", TrackedTrial("FAILED"), range(1, 5))
    write_trials(files.sweep(), files.trials, None)
    while sender.send_batch():
        pass
    assert files.run("a").info.status == "FAILED"
    files.trial("a", TrackedTrial("FAILED", starts=2), range(5, 9))
    write_trials(files.sweep(), files.trials, None)
    while sender.send_batch():
        pass
    assert verify_exactly_once(folder).correct
    files.trial("a", TrackedTrial(None, starts=3), tags={"git.dirty": "true"})
    write_trials(files.sweep(), files.trials, None)
    while sender.send_batch():
        pass
    assert files.run("a").info.status == "RUNNING"
    assert files.run("a").data.tags["git.dirty"] == "true"
    files.trial("a", TrackedTrial(None, starts=4), tags={"git.dirty": "false"})
    write_trials(files.sweep(), files.trials, None)
    while sender.send_batch():
        pass
    assert files.run("a").data.tags["git.dirty"] == "false"
    sender.finish("FINISHED")
    assert files.run("a").info.status == "KILLED"


def test_a_trial_is_below_the_sweep_that_began_it_last(files):
    files.trial("a", TrackedTrial("FINISHED"), range(1, 5))
    for name in ("first", "second"):
        sweep = files.sweep(name)
        send(files.sender(sweep))
        parent = read_json(sweep / STATE_NAME)["run_id"]
        assert files.run("a").data.tags[PARENT_TAG] == parent
    assert verify_exactly_once(files.folder("a")).correct


def test_a_trial_that_mlflow_refuses_holds_up_no_other(files):
    client = open_client(files.uri)
    deleted = client.create_experiment("deleted")
    client.delete_experiment(deleted)
    files.trial("bad", TrackedTrial(), range(1, 5), experiment="deleted")
    good = files.trial("good", TrackedTrial("FINISHED"), range(1, 5))
    sender = files.sender()
    while sender.send_batch():
        pass
    assert verify_exactly_once(good).correct
    with pytest.raises(UserError, match="trials are not sent: bad"):
        sender.finish("FINISHED")
    assert "deleted" in read_json(files.folder("bad") / STATE_NAME)["error"]
    sweep = files.sweep()
    assert read_json(sweep / STATE_NAME)["status"] == "FINISHED"

    client.restore_experiment(deleted)
    wait_until(lambda: ended(sender), seconds=10)
    assert verify_exactly_once(files.folder("bad")).correct


def test_a_damaged_trial_holds_up_no_other(files):
    bad = files.trial("bad", TrackedTrial("FINISHED"), range(1, 5))
    (bad / "tracking.json").write_text("{")
    good = files.trial("good", TrackedTrial("FINISHED"), range(1, 5))
    with pytest.raises(UserError, match="trials are not sent: bad"):
        send(files.sender())
    assert verify_exactly_once(good).correct


def test_a_trial_whose_folder_was_removed_is_forgotten(files):
    shutil.rmtree(files.trial("removed", TrackedTrial("FINISHED"), range(1, 5)))
    good = files.trial("good", TrackedTrial("FINISHED"), range(1, 5))
    send(files.sender())
    assert verify_exactly_once(good).correct


def test_a_run_that_another_process_sends_is_left_to_it(files):
    folder = files.trial("a", TrackedTrial("FINISHED"), range(1, 5))
    sender = files.sender()
    with (folder / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not sender.send_batch()
        assert not (folder / STATE_NAME).exists()
        with pytest.raises(UserError, match="trials are not sent: a"):
            sender.finish("FINISHED")
    send(sender)
    assert verify_exactly_once(folder).correct


@pytest.fixture
def patience(monkeypatch):
    """The waits of a sender's process in this one."""
    for name, value in sender_environment().items():
        monkeypatch.setenv(name, value)


def test_nothing_is_asked_for_the_trials_while_mlflow_is_away(tmp_path, patience):
    files = Files(tmp_path, f"http://127.0.0.1:{free_port()}")
    for number in range(3):
        files.trial(f"trial_{number}", TrackedTrial("FINISHED"), range(1, 5))
    sender = files.sender()
    with pytest.raises(Exception, match="refused"):
        sender.send_batch()
    assert not list(tmp_path.glob(f"runs/*/{STATE_NAME}"))


@pytest.mark.slow
def test_mlflow_going_away_is_no_fault_of_each_trial(tmp_path, store_template, patience):
    shutil.copy(store_template, tmp_path / "server.db")
    server = MlflowServer(tmp_path)
    server.start()
    try:
        files = Files(tmp_path, server.uri)
        for name in "abc":
            files.trial(name, TrackedTrial(), range(1, 5))
        sender = files.sender()
        while sender.send_batch():
            pass
        server.kill()
        for name in "abc":
            files.trial(name, TrackedTrial(), range(5, 9))
        with pytest.raises(Exception, match="refused"):
            sender.send_batch()
        states = [read_json(files.folder(name) / STATE_NAME) for name in "abc"]
        assert [bool(state["error"]) for state in states] == [True, False, False]
        server.start()
        send(sender)
        assert all(verify_exactly_once(files.folder(name)).correct for name in "abc")
    finally:
        server.kill()
