"""The sender's process: brings a run's journal to MLflow while the run goes on, or afterwards.

While it goes on, the process also samples the use of the machine, which it sends too.

`python -m workflows.runs.sender follow|send|verify FOLDER`, of a run or of a sweep and its
trials, and `create TRACKING_URI`.
"""

import argparse
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bert_core.disk import locked
from bert_core.errors import UserError
from workflows.runs.journal import Journal, read_records
from workflows.runs.mlflow_run import MAX_PAUSE_SECONDS, RunSender, create_store, open_client
from workflows.runs.sweep_tracker import (
    SweepSender,
    is_sweep,
    read_trials,
    summarize_sweep,
    sweep_status,
)
from workflows.runs.tracker import (
    JOURNAL_NAME,
    LOCK_NAME,
    SYSTEM_JOURNAL_NAME,
    THROUGHPUT_NAME,
    read_json,
    sender_environment,
)

MEGABYTE = 1e6
GPU_FIELDS = "index,utilization.gpu,memory.used,memory.total,power.draw"
STALE_SECONDS = 60.0  # a speed that is older is not the run's present one
ORPHAN_SECONDS = 20.0  # how long a sender goes on after the training process died


class Orders:
    """What the training process wants, read from the pipe that is this process's standard input.

    `status` is None until the run is to be ended, with KILLED when the training process died.
    """

    def __init__(self) -> None:
        self.status: str | None = None
        self._hung_up = False
        self._parent = os.getppid()
        self._end = float("inf")
        self._text = b""

    @property
    def orphaned(self) -> bool:
        """Whether the training process is gone, be it after it gave its last order."""
        return self._hung_up or os.getppid() != self._parent

    @property
    def expired(self) -> bool:
        """Whether the training process is gone for so long that the rest has to wait."""
        if self.orphaned and self._end == float("inf"):
            self._end = time.monotonic() + ORPHAN_SECONDS
        return time.monotonic() > self._end

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


class SystemSampler:
    """Samples the machine while a run goes on, by the names of MLflow's own system metrics.

    Processor, memory, disk and, where `nvidia-smi` is, the visible GPUs. `process_id` is that of
    the training process, `folder` lies on its disk.
    """

    def __init__(self, process_id: int, folder: Path) -> None:
        import psutil

        self._psutil = psutil
        self._process_id = process_id
        self._folder = folder
        self._nvidia_smi = shutil.which("nvidia-smi")
        psutil.cpu_percent(None)  # the first call has nothing to compare with

    def sample(self) -> dict[str, float]:
        """The present values; what cannot be read is left out."""
        memory = self._psutil.virtual_memory()
        disk = self._psutil.disk_usage(str(self._folder))
        values = {
            "system/cpu_utilization_percentage": self._psutil.cpu_percent(None),
            "system/system_memory_usage_megabytes": memory.used / MEGABYTE,
            "system/system_memory_usage_percentage": memory.percent,
            "system/disk_usage_megabytes": disk.used / MEGABYTE,
            "system/disk_usage_percentage": disk.percent,
            "system/disk_available_megabytes": disk.free / MEGABYTE,
        }
        return values | self._process_memory() | self._gpus() | _throughput(self._folder)

    def _process_memory(self) -> dict[str, float]:
        try:
            resident = self._psutil.Process(self._process_id).memory_info().rss
        except self._psutil.Error:
            return {}
        return {"system/training_process_memory_megabytes": resident / MEGABYTE}

    def _gpus(self) -> dict[str, float]:
        if self._nvidia_smi is None:
            return {}
        command = [self._nvidia_smi, f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader,nounits"]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible:
            command.append(f"--id={visible}")
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return {}
        values: dict[str, float] = {}
        for line in result.stdout.splitlines():
            values |= parse_gpu_line(line)
        return values


def parse_gpu_line(line: str) -> dict[str, float]:
    """Turns a line of `nvidia-smi` (GPU_FIELDS, MiB and watts) into metrics; {} if it has none."""
    cells = [cell.strip() for cell in line.split(",")]
    try:
        index, (utilization, used, total, power) = int(cells[0]), map(float, cells[1:])
    except ValueError:  # "[N/A]" on parts of a GPU, or a message instead of figures
        return {}
    prefix = f"system/gpu_{index}"
    return {
        f"{prefix}_utilization_percentage": utilization,
        f"{prefix}_memory_usage_megabytes": used * 2**20 / MEGABYTE,
        f"{prefix}_memory_usage_percentage": 100 * used / total,
        f"{prefix}_power_usage_watts": power,
    }


def _throughput(folder: Path) -> dict[str, float]:
    path = folder / THROUGHPUT_NAME
    if not path.exists() or time.time() - path.stat().st_mtime > STALE_SECONDS:
        return {}
    return read_json(path)


def open_sender(folder: Path) -> RunSender | SweepSender:
    """What sends the run of a folder, and with a sweep's own run those of its trials."""
    return SweepSender(folder) if is_sweep(folder) else RunSender(folder)


def follow(run_folder: Path, interval_seconds: float, system_interval_seconds: float) -> None:
    """Sends new records every `interval_seconds` until told to finish, or the parent is gone."""
    orders = Orders()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(10)  # steps come first, but not so far that a busy machine starves this process

    def wait() -> None:
        """Until the sender of an earlier start of this run has gone."""
        orders.wait(0.5)
        if orders.orphaned:
            sys.exit(1)

    with (
        locked(run_folder / LOCK_NAME, wait),
        closing(open_sender(run_folder)) as sender,
        closing(Journal(run_folder / SYSTEM_JOURNAL_NAME)) as system_journal,
    ):
        sampler = SystemSampler(os.getppid(), run_folder)
        pause, next_send, next_sample = interval_seconds, 0.0, 0.0
        while not orders.expired:
            now = time.monotonic()
            if now >= next_sample and orders.status is None:
                _sample(sampler, system_journal)
                next_sample = now + system_interval_seconds
            if now >= next_send or orders.status is not None:
                pause = _send(sender, orders, interval_seconds, pause)
                if pause == 0:
                    return
                next_send = time.monotonic() + pause
            orders.wait(max(0.05, min(next_send, next_sample) - time.monotonic()))


def send(run_folder: Path, status: str | None, timeout_seconds: float) -> bool:
    """Sends what a run has not sent, and ends it at MLflow; False when the time was too short.

    Without a `status` a sweep ends as its driver left it, and a run as FINISHED.
    """
    sys.stdout.flush()
    deadline = time.monotonic() + timeout_seconds
    with locked(run_folder / LOCK_NAME):
        status = status or (sweep_status(run_folder) if is_sweep(run_folder) else "FINISHED")
        with closing(open_sender(run_folder)) as sender:
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


def _send(
    sender: RunSender | SweepSender, orders: Orders, interval_seconds: float, pause: float
) -> float:
    """Sends all there is; returns the seconds until the next attempt, 0 when the run is ended."""
    try:
        while not orders.expired and sender.send_batch():
            if orders.status is None:
                orders.wait(0)
        if orders.status is not None and not orders.expired:
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


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workflows.runs.sender", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    follow_parser = commands.add_parser("follow", help="send while a run goes on (by the run)")
    follow_parser.add_argument("--interval_seconds", type=float, default=5.0)
    follow_parser.add_argument("--system_interval_seconds", type=float, default=10.0)
    send_parser = commands.add_parser("send", help="send what was missed while MLflow was down")
    send_parser.add_argument("--status", help="FINISHED, FAILED or KILLED")
    send_parser.add_argument("--timeout_seconds", type=float, default=300.0)
    verify_parser = commands.add_parser("verify", help="compare MLflow with the journal")
    for subparser in (follow_parser, send_parser, verify_parser):
        subparser.add_argument("run_folder", type=Path)
    commands.add_parser("create", help="create a SQLite store").add_argument("tracking_uri")
    return parser.parse_args(arguments)


@dataclass(frozen=True)
class TrackingReport:
    """How MLflow's history compares with the journal; entries are (step, name)."""

    num_metrics: int
    missing: list[tuple[int, str]]
    repeated: list[tuple[int, str]]
    unknown: list[tuple[int, str]]  # at MLflow only
    different: list[tuple[int, str]]  # once on both sides, but with another value

    @property
    def correct(self) -> bool:
        """Whether each (step, name) of the journal stands in MLflow exactly once, and no other."""
        return not (self.missing or self.repeated or self.unknown or self.different)


def verify_exactly_once(run_folder: Path) -> TrackingReport:
    """Compares MLflow's whole history of a run with its journal, system metrics left aside."""
    sender = RunSender(run_folder)
    if "run_id" not in sender.state:
        raise UserError("never sent to MLflow", str(run_folder), "send it first")
    client = open_client(sender.run.tracking_uri)
    journal = {
        (record.step, name): value
        for record in read_records(run_folder / JOURNAL_NAME)
        for name, value in record.metrics.items()
    }
    names = {name for _, name in journal} | set(client.get_run(sender.run_id).data.metrics)
    times: Counter[tuple[int, str]] = Counter()
    values: dict[tuple[int, str], float] = {}
    for name in sorted(name for name in names if not name.startswith("system/")):
        for metric in client.get_metric_history(sender.run_id, name):
            times[metric.step, name] += 1
            values[metric.step, name] = metric.value
    return TrackingReport(
        num_metrics=len(journal),
        missing=sorted(journal.keys() - times.keys()),
        repeated=sorted(entry for entry, number in times.items() if number > 1),
        unknown=sorted(times.keys() - journal.keys()),
        different=sorted(
            entry
            for entry in journal.keys() & values.keys()
            if repr(journal[entry]) != repr(values[entry])
        ),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; 0 when all is sent or as it should be, 1 when not, 2 for bad input."""
    given = _parse(arguments)
    try:
        if given.command == "create":
            create_store(given.tracking_uri)
        elif given.command == "follow":
            intervals = given.interval_seconds, given.system_interval_seconds
            follow(given.run_folder, *intervals)
        elif given.command == "send":
            sent = send(given.run_folder, given.status, given.timeout_seconds)
            summary = summarize_sweep(given.run_folder)
            print(f"run {summary.run_id}: {summary.unsent_records} records left to send")
            return 0 if sent else 1
        else:
            folders = [given.run_folder, *read_trials(given.run_folder)]
            reports = [verify_exactly_once(folder) for folder in folders]
            print(*reports, sep="\n")
            return 0 if all(report.correct for report in reports) else 1
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    os.environ.update(sender_environment())
    sys.exit(main())
