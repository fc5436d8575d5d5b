"""Real pre-training runs for tests: a small corpus, drivers as processes, and ways to kill them."""

import atexit
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import psutil
import torch
from tokenizers import Tokenizer

from bert_core.text.shards import (
    TOKEN_COUNTS_NAME,
    ShardIndex,
    open_shards,
    write_array,
    write_index,
    write_shard,
)
from bert_core.tokenizer import save_tokenizer, tokenizer_hash
from bert_core.tokenizer_training import train_wordpiece
from workflows.clusters.workers import Worker
from workflows.messages import Outcome, RunProgress
from workflows.pretraining.job import continue_from, find_start, find_teacher
from workflows.pretraining.settings import PretrainSettings
from workflows.pretraining.worker import pretraining_parts
from workflows.runs.journal import read_records
from workflows.runs.storage import RemoteRun, open_storage
from workflows.settings import parse_command_line
from workflows.training.run import TrainingRun

REPOSITORY = Path(__file__).parents[2]
PRETRAIN = REPOSITORY / "workflows" / "pretrain.py"


def write_corpus(
    folder: Path, *, num_documents: int = 320, seed: int = 7, tokenizer: Tokenizer | None = None
) -> Path:
    """Token shards of a made-up language: two training shards, one held out.

    Trains a tokenizer unless one is given.
    """
    choose = random.Random(seed)
    syllables = ["ba", "ke", "li", "mo", "nu", "ra", "shi", "to", "vu", "za"]
    words = ["".join(choose.choices(syllables, k=choose.randint(1, 4))) for _ in range(400)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    documents = [
        [
            " ".join(choose.choices(words, weights, k=choose.randint(3, 12))) + "."
            for _ in range(choose.randint(4, 16))
        ]
        for _ in range(num_documents)
    ]
    if tokenizer is None:
        lines = [line for document in documents for line in document]
        tokenizer = train_wordpiece(lines, 500, lowercase=True)
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(tokenizer, folder / "tokenizer.json")
    encoded = [
        [tokenizer.encode(line, add_special_tokens=False).ids for line in document]
        for document in documents
    ]
    heldout, train = max(1, num_documents // 8), num_documents // 2 + 1
    splits = {
        "train": [
            write_shard(folder, "train-00000", encoded[heldout:train], "uint16"),
            write_shard(folder, "train-00001", encoded[train:], "uint16"),
        ],
        "heldout": [write_shard(folder, "heldout-00000", encoded[:heldout], "uint16")],
    }
    tokens = [token for document in encoded[heldout:] for line in document for token in line]
    counts = np.bincount(tokens, minlength=tokenizer.get_vocab_size())
    index = ShardIndex(
        dtype="uint16",
        vocab_size=tokenizer.get_vocab_size(),
        tokenizer_sha256=tokenizer_hash(tokenizer),
        splits=splits,
        files={TOKEN_COUNTS_NAME: write_array(folder / TOKEN_COUNTS_NAME, counts)},
    )
    write_index(folder, index)
    return folder


@dataclass
class Run:
    """A run by its settings; every `start` is the same command."""

    program: ClassVar[Path] = PRETRAIN

    storage: Path
    name: str
    shards: Path
    steps: int
    settings: dict[str, object] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.storage / "runs" / self.name

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def arguments(self) -> list[str]:
        """The command line after the program's name."""
        one_phase = f'[{{"sequence_length": 32, "steps": {self.steps}}}]'
        phases = str(self.settings.get("phases", one_phase))
        total_steps = sum(phase["steps"] for phase in json.loads(phases))
        settings = {
            "storage": self.storage,
            "name": self.name,
            "shards": self.shards,
            "model.size": "tiny",
            "model.num_hidden_layers": 1,
            "model.max_position_embeddings": 32,
            "model.hidden_dropout_prob": 0.1,
            "model.attention_probs_dropout_prob": 0.1,
            "batch.global_batch_size": 8,
            "phases": phases,
            "optimizer.warmup_steps": min(20, total_steps - 1),
            "evaluation.every_steps": 10_000,
            "evaluation.num_rows": 64,
            "cluster.threads_per_worker": 1,
            **self.settings,
        }
        return [text for name, value in settings.items() for text in (f"--{name}", str(value))]

    def start(self) -> "Driver":
        """The command as a process, its output in a file."""
        return Driver(self)

    def finish(self, *, code: int = 0, seconds: float = 300) -> str:
        """Runs the command to its end and returns what it printed."""
        driver = self.start()
        assert driver.wait(seconds) == code, driver.output()
        return driver.output()

    def records(self) -> list[tuple[int, dict[str, float]]]:
        """Steps and metrics of the journal, without times."""
        return [
            (record.step, record.metrics) for record in read_records(self.folder / "journal.jsonl")
        ]

    def step(self) -> int:
        """The newest step in the journal, 0 before the first."""
        try:
            with (self.folder / "journal.jsonl").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
                lines = file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return 0
        return int(lines[-1].split(b",")[0].removeprefix(b'{"step":')) if lines else 0


class Driver:
    """One start of a run's command."""

    _started = 0

    def __init__(self, run: Run) -> None:
        self.run = run
        Driver._started += 1
        run.storage.mkdir(parents=True, exist_ok=True)
        self.log = run.storage / f"{run.name}-{Driver._started}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, run.program, *run.arguments()],
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | run.environment,
                cwd=run.storage,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        atexit.register(self.process.kill)  # whatever becomes of the test

    def output(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self, seconds: float = 300) -> int:
        """The exit code, after at most `seconds`."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {seconds} s:\n{self.output()}") from None

    def kill(self) -> None:
        """SIGKILL, and nothing is left of this process."""
        self.process.kill()
        self.process.wait()

    def until(
        self, condition: Callable[[], object], seconds: float = 180, *, pause: float = 0.01
    ) -> None:
        """Waits for something while the run goes on."""
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"it ended too early:\n{self.output()}"
            assert time.monotonic() < end, f"waited in vain:\n{self.output()}"
            time.sleep(pause)

    def until_step(self, step: int, seconds: float = 180) -> None:
        """Waits until the journal has reached a step."""
        self.until(lambda: self.run.step() >= step, seconds)


def training_workers() -> list[psutil.Process]:
    """The processes below this one that train, as Ray names them."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "RayTrainWorker" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def writer_of(run: Run) -> psutil.Process:
    """The worker that writes the journal of a run."""
    writer = find_writer(run)
    assert writer is not None, f"nobody writes the journal of {run.name}"
    return writer


def find_writer(run: Run) -> psutil.Process | None:
    """The worker that writes the journal of a run, None between two of them."""
    journal = str(run.folder / "journal.jsonl")
    for process in training_workers():
        try:
            if any(file.path == journal for file in process.open_files()):
                return process
        except psutil.Error:
            continue
    return None


def unfinished_checkpoints(run: Run) -> Iterator[str]:
    """Names of checkpoint folders that are being written."""
    try:
        yield from (path.name for path in run.checkpoints.iterdir() if ".tmp-" in path.name)
    except FileNotFoundError:
        return


def stop_inside_a_checkpoint_write(driver: Driver, worker: psutil.Process) -> str:
    """Freezes the worker while it writes a checkpoint; returns the unfinished folder's name."""
    run = driver.run
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if next(unfinished_checkpoints(run), None) is not None:
            worker.send_signal(signal.SIGSTOP)
            time.sleep(0.05)  # a system call under way ends first
            name = next(unfinished_checkpoints(run), None)
            if name is not None:
                return name
            worker.send_signal(signal.SIGCONT)
        time.sleep(0.0005)
    raise AssertionError(f"no checkpoint was being written:\n{driver.output()}")


def committed_checkpoints(run: Run) -> list[str]:
    """Names of the checkpoints under their final names, oldest first."""
    return sorted(path.name for path in run.checkpoints.glob("step-*") if "." not in path.name)


def rank_one_beside(worker: psutil.Process) -> psutil.Process | None:
    """The other of two training workers, None where there is one."""
    others = [each for each in training_workers() if each.pid != worker.pid]
    return others[0] if others else None


class Channel:
    """Keeps what rank 0 says to the driver, called as one calls an actor of Ray."""

    def __init__(self) -> None:
        self.progress: list[RunProgress] = []
        self.jobs: list[int | Outcome] = []
        """The numbers of jobs as they began, and the outcome of each."""
        self.publish = SimpleNamespace(remote=self.progress.append)
        self.begin_job = SimpleNamespace(remote=self.jobs.append)
        self.end_job = SimpleNamespace(remote=self.jobs.append)


class StoppingWorker(Worker):
    """A worker that is told to stop in a certain step; never, where the number is negative."""

    steps_left = -1

    def stop_requested(self) -> bool:
        self.steps_left -= 1
        return self.steps_left == 0


def train_here(
    run: Run, stop_after: int = -1, remote: RemoteRun | None = None
) -> tuple[Outcome, list[RunProgress]]:
    """One start of a run's worker, in this process without Ray: its outcome and its progress."""
    settings = parse_command_line(PretrainSettings, run.arguments())
    start = find_start(settings, open_storage(settings.storage))
    settings = continue_from(settings, start)
    worker = StoppingWorker(0, 1, torch.device("cpu"), Channel())
    worker.steps_left = stop_after
    run.folder.mkdir(parents=True, exist_ok=True)
    with worker_threads():
        folder = None if start is None else start.encoder.path
        shards = open_shards(run.shards, "train")
        found = find_teacher(settings, open_storage(settings.storage), shards)
        teacher = None if found is None else found.path
        parts = pretraining_parts(settings, run.shards, worker, run.folder, folder, teacher)
        outcome = TrainingRun(parts, worker, run.folder, remote).train()
    return outcome, worker._channel.progress


@contextmanager
def worker_threads() -> Iterator[None]:
    """Torch as a worker with one thread has it, on which the last bits depend."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(num_threads)
