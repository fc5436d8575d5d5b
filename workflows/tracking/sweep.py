"""The runs of a sweep at MLflow: its own, and below it one for each trial.

In: a sweep's folder (`workflows.sweeps.tracker` says what is in it). Out: the runs, sent in turn.
"""

import fcntl
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bert_core.errors import UserError
from workflows.sweeps.tracker import TrackedTrial, read_trials
from workflows.tracking.mlflow_run import MAX_PAUSE_SECONDS, RunSender
from workflows.tracking.tracker import LOCK_NAME

PARENT_TAG = "mlflow.parentRunId"  # by which MLflow's pages nest runs


@dataclass(frozen=True)
class OpenTrial:
    """A trial that this process alone sends, while it holds the lock."""

    starts: int
    sender: RunSender
    lock: IO[str]


@dataclass(frozen=True)
class Trouble:
    """A trial that could not be sent: the pause that was made, and when it is over."""

    pause_seconds: float
    until: float


class SweepSender:
    """Sends a sweep's run and its trials' as `RunSender` sends one, and is used like that.

    The sweep's run comes first: its id is in the trials' tags. What goes wrong with one trial while
    MLflow answers holds up no other.
    """

    def __init__(self, sweep_folder: Path) -> None:
        self._sweep_folder = sweep_folder
        self._own = RunSender(sweep_folder)
        self._open: dict[Path, OpenTrial] = {}
        self._sent: dict[Path, TrackedTrial] = {}
        self._troubles: dict[Path, Trouble] = {}
        self._is_ending = False
        self._status: str | None = None

    def send_batch(self) -> bool:
        """Sends next records of one run, or ends a trial's; False when there is no more to do now.

        Raises whatever MLflow raises when it is away.
        """
        if self._own.send_batch():
            return True
        return any(self._advance(*each) for each in read_trials(self._sweep_folder).items())

    def finish(self, status: str) -> None:
        """Ends the trials that go on, as KILLED, and the sweep; what was written has to be sent.

        Raises `UserError` for trials that cannot be sent, after the sweep's run is ended.
        """
        if not self._is_ending:
            self._is_ending = True
            self._troubles.clear()
        while self.send_batch():
            pass
        if self._status != status:
            self._own.finish(status)
            self._status = status
        trials = read_trials(self._sweep_folder).items()
        unsent = [folder.name for folder, trial in trials if self._sent.get(folder) != trial]
        if unsent:
            raise UserError("trials are not sent", ", ".join(unsent), "see tracking.log, try again")

    def note(self, error: BaseException) -> None:
        """Keeps the message of a failed call for the summary."""
        self._own.note(error)

    def _advance(self, folder: Path, trial: TrackedTrial) -> bool:
        """Does the next thing for a trial; whether there was any."""
        trouble = self._troubles.get(folder)
        is_waiting = trouble is not None and time.monotonic() < trouble.until
        if is_waiting or self._sent.get(folder) == trial:
            return False
        try:
            found_work = self._take(folder, trial) and self._send(folder, trial)
        except Exception as error:  # whatever a server, a network or a disk comes up with
            self._note_trouble(folder, error)
            return False
        self._troubles.pop(folder, None)
        return found_work

    def _take(self, folder: Path, trial: TrackedTrial) -> bool:
        """Opens a trial; False when all of it has been sent before, or another process sends it."""
        taken = self._open.get(folder)
        if taken is not None and taken.starts == trial.starts:
            return True
        self._close(folder)
        lock = (folder / LOCK_NAME).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            sender = RunSender(folder, {PARENT_TAG: self._own.run_id})
        except Exception as error:
            lock.close()
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._open[folder] = OpenTrial(trial.starts, sender, lock)
        if trial.status is not None and sender.was_ended(trial.status):
            self._sent[folder] = trial
            self._close(folder)
        return folder in self._open

    def _send(self, folder: Path, trial: TrackedTrial) -> bool:
        sender = self._open[folder].sender
        if sender.send_batch():
            return True
        status = trial.status or ("KILLED" if self._is_ending else None)
        if status is None:
            return False
        sender.finish(status)
        self._sent[folder] = trial
        self._close(folder)
        return True

    def _note_trouble(self, folder: Path, error: Exception) -> None:
        if folder in self._open:
            self._open[folder].sender.note(error)
        else:
            print(f"{folder.name}: {error}", file=sys.stderr)
        self._own.check()  # raises when it is not for this trial alone
        earlier = self._troubles.get(folder, Trouble(0.0, 0.0))
        pause_seconds = min(max(2 * earlier.pause_seconds, 1.0), MAX_PAUSE_SECONDS)
        self._troubles[folder] = Trouble(pause_seconds, time.monotonic() + pause_seconds)

    def _close(self, folder: Path) -> None:
        closed = self._open.pop(folder, None)
        if closed is not None:
            closed.sender.close()
            closed.lock.close()
