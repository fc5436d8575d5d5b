"""Tracked runs for tests: their journals, and senders in this process."""

import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from workflows.runs.mlflow_run import RunSender
from workflows.runs.sender import send
from workflows.runs.tracker import STATE_NAME, DatasetInput, TrackedRun, read_json

SHA256 = "0123456789abcdef" * 4


def described(uri, folder, **changes):
    run = {
        "tracking_uri": uri,
        "experiment": "pretraining",
        "run_name": folder.name,
        "run_key": f"key of {folder.name}",
        "params": {"optimizer.peak_learning_rate": "0.0001", "text": str(folder / "a.txt")},
        "tags": {"git.dirty": "false", "folder": f"in {Path.home()}/data/wiki"},
        "dataset": DatasetInput("train", SHA256, f"{folder}/texts"),
    }
    return TrackedRun(**(run | changes))


def send_run(folder, status="FINISHED"):
    """Sends all of a run in this process and ends it, as its sender's process does."""
    sender = RunSender(folder)
    while sender.send_batch():
        pass
    sender.finish(status)
    sender.close()
    return sender


def write_steps(journal, steps, seconds=0.0):
    for step in steps:
        journal.append(step, {"train/loss": 1 / step, "train/learning_rate": step * 1e-4})
        if step % 10 == 0:
            journal.append(step, {"heldout/loss": 2 / step})
        time.sleep(seconds)


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("waited in vain")


def newest_sent(folder):
    return read_json(folder / STATE_NAME).get("confirmed", {}).get("train/loss", 0)


def has_ended(process_id):
    """Whether a process can be waited for: it has no thread but the first, and that is over."""
    place = Path(f"/proc/{process_id}")
    try:
        is_over = (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return is_over and len(list((place / "task").iterdir())) == 1
    except (FileNotFoundError, ProcessLookupError):
        return True


class SenderHere:
    """Stands for the sender's process of a `Tracker`: sends everything when it is told to end."""

    pid = None

    def __init__(self, run_folder, *_):
        self._folder, self._status, self._code, self.stdin = run_folder, "", None, self

    def write(self, order):
        self._status = order.decode().split()[1]

    def close(self):
        """The order is complete."""

    def poll(self):
        return self._code

    def wait(self, seconds=None):
        self._code = 0 if send(self._folder, self._status, seconds or 60) else 1
        return self._code


@contextmanager
def sending_here():
    """No process is started to send runs to MLflow: importing MLflow takes it seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workflows.runs.tracker.start_sender", SenderHere)
        yield
