"""Tracking of a sweep: a run for the sweep at MLflow, and one below it for each trial.

The driver uses `SweepTracker`, which writes files; one process (`workflows.runs.sender`) sends
all runs from them, with `SweepSender`. Only the sender imports MLflow.
"""

import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bert_core.disk import LockTakenError, give_up, locked
from bert_core.errors import UserError
from workflows.runs.mlflow_run import MAX_PAUSE_SECONDS, RunSender
from workflows.runs.tracker import (
    LOCK_NAME,
    SPECIFICATION_NAME,
    STATE_NAME,
    TrackedRun,
    Tracker,
    TrackingSummary,
    read_json,
    summarize_tracking,
    write_json,
    write_specification,
)

TRIALS_NAME = "tracking_trials.json"


@dataclass(frozen=True)
class TrackedTrial:
    """How far a trial is: `status` None while it goes on, `starts` one more each time it begins."""

    status: str | None = None
    starts: int = 1


class SweepTracker:
    """Sends a sweep's run and those of its trials to MLflow, from one process of low priority.

    The sweep's run is that of its folder: its journal (`journal.jsonl`, written by the driver), its
    artifacts and the use of the machine. Which trials it has stands in a file there, so a sender
    that dies loses nothing: the next `begin`, `end` or `finish` starts another, and so does the
    same sweep begun again. A trial's run is put below the sweep that began it last.

    Nothing here raises, and threads may call it side by side: a sweep goes on without tracking, and
    `finish` says what is missing.
    """

    def __init__(
        self,
        sweep_folder: Path,
        run: TrackedRun,
        *,
        interval_seconds: float = 5.0,
        system_interval_seconds: float = 10.0,
    ) -> None:
        self._folder = sweep_folder
        self._error: str | None = None
        self._unwritten: str | None = None
        self._trials = read_trials(sweep_folder)
        self._lock = threading.RLock()  # trials begin and end in threads of their own
        self._kill_trials()  # those of an earlier start died with it
        self._write()  # before the sender starts, which tells a sweep by it
        self._sender = Tracker(
            sweep_folder,
            run,
            interval_seconds=interval_seconds,
            system_interval_seconds=system_interval_seconds,
        )

    @property
    def process_id(self) -> int | None:
        """The sender's process id, None when it could not be started."""
        return self._sender.process_id

    def begin(self, run_folder: Path, run: TrackedRun) -> None:
        """Follows a trial's run from now on, be it new or one that goes on or has ended before."""
        try:
            write_specification(run_folder, run)
        except OSError as error:
            self._error = str(error)
            return
        folder = _plain(run_folder)
        with self._lock:
            earlier = self._trials.get(folder, TrackedTrial(starts=0))
            self._trials[folder] = TrackedTrial(starts=earlier.starts + 1)
            self._write()
            self._sender.revive()

    def end(self, run_folder: Path, status: str) -> None:
        """Lets a trial's run be ended at MLflow, after the rest of its journal and its artifacts.

        `status` is FINISHED, FAILED or KILLED. Only a run that has begun is ended.
        """
        folder = _plain(run_folder)
        with self._lock:
            if folder in self._trials:
                self._trials[folder] = replace(self._trials[folder], status=status)
                self._write()
                self._sender.revive()

    def finish(
        self, status: str = "FINISHED", timeout_seconds: float | None = 60.0
    ) -> TrackingSummary:
        """Gives the sender time for the rest, ends the sweep's run and says what is left of all.

        Trials that go on are ended as KILLED. With a timeout of 0 the sender is stopped at once.
        """
        self._kill_trials()
        self._write(status)
        summary = self._sender.finish(status, timeout_seconds)
        error = self._error or self._unwritten or summary.error
        return _with_trials(replace(summary, error=error), self._trials)

    def run_id_of(self, run_folder: Path) -> str | None:
        """MLflow's id of a run, of the sweep or a trial; None where MLflow has not answered yet."""
        return read_json(run_folder / STATE_NAME).get("run_id")

    def _kill_trials(self) -> None:
        for folder, trial in self._trials.items():
            self._trials[folder] = replace(trial, status=trial.status or "KILLED")

    def _write(self, status: str | None = None) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_trials(self._folder, self._trials, status)
            self._unwritten = None
        except OSError as error:  # the next one writes the same and more
            self._unwritten = str(error)


def is_sweep(folder: Path) -> bool:
    """Whether the folder is a sweep's, and not that of one run."""
    return (folder / TRIALS_NAME).exists()


def write_trials(
    sweep_folder: Path, trials: Mapping[Path, TrackedTrial], status: str | None
) -> None:
    """Writes which trials a sweep has, and how it ended, if it has; raises OSError.

    Folders are named relative to the sweep's, so that the storage may move.
    """
    names = {os.path.relpath(path, sweep_folder): asdict(trial) for path, trial in trials.items()}
    write_json(sweep_folder / TRIALS_NAME, {"status": status, "trials": names})


def read_trials(sweep_folder: Path) -> dict[Path, TrackedTrial]:
    """The trials by their runs' folders, less those that were removed; {} for a run's folder."""
    content = read_json(sweep_folder / TRIALS_NAME).get("trials", {})
    trials = {_plain(sweep_folder / name): TrackedTrial(**row) for name, row in content.items()}
    return {
        folder: trial for folder, trial in trials.items() if (folder / SPECIFICATION_NAME).exists()
    }


def sweep_status(sweep_folder: Path) -> str:
    """How a sweep ended; KILLED where its driver did not come to say so."""
    return read_json(sweep_folder / TRIALS_NAME).get("status") or "KILLED"


def summarize_sweep(folder: Path) -> TrackingSummary:
    """Reads from files what of a sweep with its trials, or of one run, has been sent."""
    return _with_trials(summarize_tracking(folder), read_trials(folder))


def _with_trials(summary: TrackingSummary, folders: Iterable[Path]) -> TrackingSummary:
    trials = [summarize_tracking(folder) for folder in folders]
    unsent = summary.unsent_records + sum(trial.unsent_records for trial in trials)
    errors = [summary.error, *(trial.error for trial in trials)]
    return replace(summary, unsent_records=unsent, error=next(filter(None, errors), None))


def _plain(folder: Path) -> Path:
    """The folder without `..`, by its name alone, as relative names are made."""
    return Path(os.path.abspath(folder))  # noqa: PTH100 - resolve() follows links


PARENT_TAG = "mlflow.parentRunId"  # by which MLflow's pages nest runs


@dataclass(frozen=True)
class OpenTrial:
    """A trial that this process alone sends, while it holds the lock."""

    starts: int
    sender: RunSender
    held: ExitStack


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
        return any(self._advance(*item) for item in read_trials(self._sweep_folder).items())

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

    def close(self) -> None:
        """Closes the journals of the sweep and its trials, and releases the trials' locks."""
        self._own.close()
        for folder in list(self._open):
            self._close(folder)

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
        with ExitStack() as held:
            try:
                held.enter_context(locked(folder / LOCK_NAME, give_up))
            except LockTakenError:
                return False
            sender = held.enter_context(closing(RunSender(folder, {PARENT_TAG: self._own.run_id})))
            self._open[folder] = OpenTrial(trial.starts, sender, held.pop_all())
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
            closed.held.close()
