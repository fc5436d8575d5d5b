"""The sender's process: brings a run's journal to MLflow while the run goes on, or afterwards.

`python -m workflows.tracking follow|send|verify RUN_FOLDER`, and `create TRACKING_URI`.
"""

import argparse
import fcntl
import os
import select
import signal
import sys
import time
from pathlib import Path

from bert_core.errors import UserError
from workflows.journal import Journal
from workflows.mlflow_run import RunSender, create_store
from workflows.system_metrics import SystemSampler
from workflows.tracker import SYSTEM_JOURNAL_NAME, sender_environment, summarize_tracking
from workflows.tracking_report import verify_exactly_once

MAX_PAUSE_SECONDS = 30.0
ORPHAN_SECONDS = 20.0  # how long a sender goes on after the training process died
LOCK_NAME = "tracking.lock"


class Orders:
    """What the training process wants, read from the pipe that is this process's standard input.

    `status` is None until the run is to be ended, with KILLED when the training process died.
    """

    def __init__(self) -> None:
        self.status: str | None = None
        self._hung_up = False
        self._parent = os.getppid()
        self._text = b""

    @property
    def orphaned(self) -> bool:
        """Whether the training process is gone, be it after it gave its last order."""
        return self._hung_up or os.getppid() != self._parent

    def wait(self, seconds: float) -> None:
        """Returns after `seconds`, or at once when the run is to be ended."""
        end = time.monotonic() + seconds
        while self.status is None:
            left = end - time.monotonic()
            ready, _, _ = select.select([0], [], [], max(0.0, min(left, 1.0)))
            if ready:
                self._read()
            elif self.orphaned:
                self._die()
            elif left <= 0:
                return
        if not self.orphaned:
            time.sleep(max(0.0, min(end - time.monotonic(), 1.0)))

    def _read(self) -> None:
        received = os.read(0, 1024)
        self._text += received
        if self._text.startswith(b"finish ") and self._text.endswith(b"\n"):
            self.status = self._text.split()[1].decode()
        elif not received:
            self._die()

    def _die(self) -> None:
        self.status, self._hung_up = "KILLED", True


def follow(run_folder: Path, interval_seconds: float, system_interval_seconds: float) -> None:
    """Sends new records every `interval_seconds` until told to finish, or the parent is gone."""
    orders = Orders()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(10)  # steps come first, but not so far that a busy machine starves this process
    with (run_folder / LOCK_NAME).open("w") as lock:
        _wait_for_lock(lock.fileno(), orders)
        sender = RunSender(run_folder)
        sampler = SystemSampler(os.getppid(), run_folder)
        system_journal = Journal(run_folder / SYSTEM_JOURNAL_NAME)
        pause, next_send, next_sample = interval_seconds, 0.0, 0.0
        deadline = float("inf")
        while time.monotonic() < deadline:
            now = time.monotonic()
            if orders.orphaned and deadline == float("inf"):
                deadline = now + ORPHAN_SECONDS
            if now >= next_sample and orders.status is None:
                _sample(sampler, system_journal)
                next_sample = now + system_interval_seconds
            if now >= next_send or orders.status is not None:
                pause = _send(sender, orders, interval_seconds, pause)
                if pause == 0:
                    return
                next_send = time.monotonic() + pause
            orders.wait(max(0.05, min(next_send, next_sample) - time.monotonic()))


def send(run_folder: Path, status: str, timeout_seconds: float) -> bool:
    """Sends what a run has not sent, and ends it at MLflow; False when the time was too short."""
    sys.stdout.flush()
    deadline = time.monotonic() + timeout_seconds
    with (run_folder / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sender = RunSender(run_folder)
        pause = 1.0
        while True:
            try:
                while sender.send_batch():
                    pass
                sender.finish(status)
                return True
            except Exception as error:  # whatever a server, a network or a disk comes up with
                sender.note(error)
            if time.monotonic() + pause > deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)


def _send(sender: RunSender, orders: Orders, interval_seconds: float, pause: float) -> float:
    """Sends all there is; returns the seconds until the next attempt, 0 when the run is ended."""
    try:
        while sender.send_batch():
            if orders.status is None:
                orders.wait(0)
        if orders.status is not None:
            sender.finish(orders.status)
            return 0.0
    except Exception as error:  # whatever a server, a network or a disk comes up with
        sender.note(error)
        longest = MAX_PAUSE_SECONDS if orders.status is None else 2.0
        return min(max(2 * pause, 1.0), longest)
    return interval_seconds


def _sample(sampler: SystemSampler, journal: Journal) -> None:
    try:
        journal.append(int(time.time()), sampler.sample())
    except (UserError, ValueError) as error:  # disk full, or a clock set back: no sample then
        print(f"no system metrics: {error}", file=sys.stderr)


def _wait_for_lock(file_number: int, orders: Orders) -> None:
    """Waits until the sender of an earlier start of this run has gone."""
    while True:
        try:
            fcntl.flock(file_number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            orders.wait(0.5)
            if orders.orphaned:
                sys.exit(1)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workflows.tracking", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    follow_parser = commands.add_parser("follow", help="send while a run goes on (by the run)")
    follow_parser.add_argument("--interval_seconds", type=float, default=5.0)
    follow_parser.add_argument("--system_interval_seconds", type=float, default=10.0)
    send_parser = commands.add_parser("send", help="send what was missed while MLflow was down")
    send_parser.add_argument("--status", default="FINISHED", help="FINISHED, FAILED or KILLED")
    send_parser.add_argument("--timeout_seconds", type=float, default=300.0)
    verify_parser = commands.add_parser("verify", help="compare MLflow with the journal")
    for each in (follow_parser, send_parser, verify_parser):
        each.add_argument("run_folder", type=Path)
    commands.add_parser("create", help="create a SQLite store").add_argument("tracking_uri")
    return parser.parse_args()


def main() -> int:
    """Runs one command; 0 when all is sent or as it should be, 1 when not, 2 for bad input."""
    arguments = _parse()
    os.environ.update(sender_environment())
    try:
        if arguments.command == "create":
            create_store(arguments.tracking_uri)
        elif arguments.command == "follow":
            intervals = arguments.interval_seconds, arguments.system_interval_seconds
            follow(arguments.run_folder, *intervals)
        elif arguments.command == "send":
            sent = send(arguments.run_folder, arguments.status, arguments.timeout_seconds)
            summary = summarize_tracking(arguments.run_folder)
            print(f"run {summary.run_id}: {summary.unsent_records} records left to send")
            return 0 if sent else 1
        else:
            report = verify_exactly_once(arguments.run_folder)
            print(report)
            return 0 if report.correct else 1
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
