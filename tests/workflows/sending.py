"""The sender of a run in this process, for tests of what it sends."""

from contextlib import contextmanager

import pytest

from workflows.runs.sender import send


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
