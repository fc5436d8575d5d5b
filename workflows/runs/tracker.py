"""A run's tracking, seen from the training process: it describes the run and starts the sender.

In: names, settings and hashes of a run; its journal. Out: files in the run folder, from which a
process of its own (`workflows.runs.sender`) sends to MLflow. Nothing here imports MLflow.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import IO

from bert_core.disk import atomic_write
from bert_core.errors import UserError
from bert_core.strict_files import read_json_object
from workflows.runs.journal import read_records

JOURNAL_NAME = "journal.jsonl"
SYSTEM_JOURNAL_NAME = "system.jsonl"
ARTIFACTS_NAME = "artifacts"
SPECIFICATION_NAME = "tracking.json"
STATE_NAME = "tracking_state.json"
LOG_NAME = "tracking.log"
THROUGHPUT_NAME = "throughput.json"
LOCK_NAME = "tracking.lock"  # held by the one process that sends
# Two parts or more, and not the rest of a URI, a fraction such as 0.9/0.999 or a relative path.
ABSOLUTE_PATH = re.compile(
    r"(?:(?<=file://)|(?<=sqlite:///)|(?<![\w:/.~…<-]))(?:/[^\s/'\",;:()<>]+)+/([^\s/'\",;:()<>]+)/?"
)
PACKAGES = ("bertline", "torch", "tokenizers", "ray", "mlflow", "numpy")


@dataclass(frozen=True)
class DatasetInput:
    """What a run learns from: shown in MLflow as a dataset, its full hash as a tag."""

    name: str
    sha256: str
    source: str  # as the user typed it, or a short description; no resolved path of the machine


@dataclass(frozen=True)
class TrackedRun:
    """Everything the sender needs to know about a run besides its journal.

    `run_key` is unique for the run and survives restarts (made once, kept with the checkpoints):
    by it a run is found again whose id was never stored.
    """

    tracking_uri: str
    experiment: str
    run_name: str
    run_key: str
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    dataset: DatasetInput | None = None


@dataclass(frozen=True)
class TrackingSummary:
    """Where a run stands in MLflow, and what is not there yet."""

    run_id: str | None
    experiment_id: str | None
    unsent_records: int
    error: str | None  # the last one, None when all is sent


class Tracker:
    """Sends a run's journal to MLflow, from a child process of low priority.

    A thread would do for the waiting, but not for `import mlflow`: measured beside a loop on two
    cores it made steps more than twice as long for seconds. The child also outlives a SIGKILL of
    this process long enough to send what was written, and has its own timeouts.

    Nothing here raises: a run goes on without tracking, and `finish` says what is missing. Files
    put into `run_folder / "artifacts"` are logged as artifacts.
    """

    def __init__(
        self,
        run_folder: Path,
        run: TrackedRun,
        *,
        interval_seconds: float = 5.0,
        system_interval_seconds: float = 10.0,
    ) -> None:
        self._run_folder = run_folder
        self._options = (
            f"--interval_seconds={interval_seconds}",
            f"--system_interval_seconds={system_interval_seconds}",
        )
        self._error: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            write_specification(run_folder, run)
        except OSError as error:
            self._error = str(error)
        else:
            self.revive()

    @property
    def process_id(self) -> int | None:
        """The sender's process id, None when it could not be started."""
        return None if self._process is None else self._process.pid

    def revive(self) -> None:
        """Replaces a sender that has died, for a run that goes on for long."""
        try:
            self._start_if_dead()
        except OSError as error:
            self._error = str(error)

    def finish(
        self, status: str = "FINISHED", timeout_seconds: float | None = 60.0
    ) -> TrackingSummary:
        """Gives the sender time for the rest, ends the run at MLflow and says what is left.

        `status` is FINISHED, FAILED or KILLED. With a timeout of 0 the sender is stopped at once.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        for _ in range(2):  # a sender that was killed is replaced once
            if self._ended(status, deadline):
                break
        self._stop()
        return summarize_tracking(self._run_folder, self._error)

    def _ended(self, status: str, deadline: float | None) -> bool:
        """Whether the sender ended well, or there is no time for another."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            process = self._start_if_dead()
            with suppress(BrokenPipeError):
                _order(process, f"finish {status}\n")
            return process.wait(left) == 0
        except subprocess.TimeoutExpired:
            return True
        except OSError as error:
            self._error = str(error)
            return True

    def _start_if_dead(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()  # nothing was written to it that has not gone
            self._process = start_sender(self._run_folder, "follow", *self._options)
        return self._process

    def _stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def write_specification(run_folder: Path, run: TrackedRun) -> None:
    """Writes down what the run is, where its sender finds it; raises OSError."""
    (run_folder / ARTIFACTS_NAME).mkdir(parents=True, exist_ok=True)
    described = asdict(run) | {"folder": str(run_folder.absolute())}
    write_json(run_folder / SPECIFICATION_NAME, described)


def start_sender(run_folder: Path, command: str, *options: str) -> subprocess.Popen[bytes]:
    """Starts `workflows.runs.sender COMMAND RUN_FOLDER`, its messages in the run folder.

    Its standard input is a pipe: orders go in, and its end says that this process died.
    """
    program = [sys.executable, "-m", "workflows.runs.sender"]
    # The process group keeps a terminal's Ctrl-C from it; a new session would make a scheduling
    # group of its own, in which a low priority counts for nothing.
    with (run_folder / LOG_NAME).open("ab") as log:
        return subprocess.Popen(
            [*program, command, str(run_folder), *options],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=sender_environment(),
            process_group=0,
        )


def sender_environment() -> dict[str, str]:
    """The environment of a process that talks to MLflow: bounded waits, no retries but its own."""
    project = str(Path(__file__).resolve().parents[2])
    paths = [project, os.environ.get("PYTHONPATH", "")]
    defaults = {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "GIT_PYTHON_REFRESH": "quiet",
        "OMP_NUM_THREADS": "1",
    }
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    return defaults | dict(os.environ) | own


def summarize_tracking(run_folder: Path, error: str | None = None) -> TrackingSummary:
    """Reads from the run folder's files what has been sent and what has not."""
    state = read_json(run_folder / STATE_NAME)
    confirmed = state.get("confirmed", {})
    unsent = sum(
        any(record.step > confirmed.get(name, -1) for name in record.metrics)
        for record in read_records(run_folder / JOURNAL_NAME)
    )
    last_error = state.get("error") or error
    return TrackingSummary(
        run_id=state.get("run_id"),
        experiment_id=state.get("experiment_id"),
        unsent_records=unsent,
        error=last_error if state.get("status") is None else error,
    )


def code_tags(folder: Path) -> dict[str, str]:
    """Tags that say which code ran: git commit, whether it was changed since, package versions.

    Raises nothing: outside a git checkout the commit is left out. For the driver, as workers see
    an unpacked copy without its history.
    """
    tags = {f"version.{name}": version for name in PACKAGES if (version := _version(name))}
    commit = _git(folder, "rev-parse", "HEAD")
    if commit:
        tags["mlflow.source.git.commit"] = commit
        tags["git.dirty"] = str(bool(_git(folder, "status", "--porcelain"))).lower()
    return tags


def without_machine_paths(text: str) -> str:
    """The text with every absolute path cut to its last part, `/data/wiki/a.txt` to `…/a.txt`.

    URIs stay as they are, relative paths too.
    """
    return ABSOLUTE_PATH.sub(lambda match: f"…/{match[1]}", text)


def note_throughput(folder: Path, figures: Mapping[str, float]) -> None:
    """Writes a run's present speed, which the sender samples; nothing where there is none."""
    names = ("tokens_per_second", "padding_share", "mfu", "memory_bytes")
    speed = {f"system/training_{name}": figures[name] for name in names if name in figures}
    if speed:
        with suppress(OSError):  # a full disk is the checkpoint's to report
            write_json(folder / THROUGHPUT_NAME, speed)


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Writes a small file beside its name and renames it; readable by its owner only."""
    with atomic_write(path) as beside:
        beside.touch(mode=0o600)  # a tracking URI may hold a password
        beside.write_text(json.dumps(content, indent=1))


def read_json(path: Path) -> dict:
    """What `write_json` wrote, {} when it is missing or damaged."""
    try:
        return read_json_object(path, allow_nan=True)
    except UserError:
        return {}


def _order(process: subprocess.Popen[bytes], line: str) -> None:
    stream: IO[bytes] | None = process.stdin
    if stream is not None:
        stream.write(line.encode())
        stream.close()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> str:
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""
