"""What a training worker does: one run after the other, each a `for` around the training loop.

A batch's way through a run: `train_job` opens the run, `TrainingRun` loops over
`bert_core.training.loop.train`, which calls the run's loss, which calls the model. Pre-training and
fine-tuning differ in the `RunParts` that they pass; resuming, the journal, checkpoints and progress
are the same. Everything is read from the run folder and the data.
"""

import gc
import shutil
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch

from bert_core.disk import atomic_write
from bert_core.errors import UserError
from bert_core.training.checkpoint import (
    FILES,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from bert_core.training.checkpoint_folder import checkpoint_name, checkpoint_step
from bert_core.training.loop import ComputeLoss, StepBatches, StepResult, TrainingState
from bert_core.training.ranks import number_of_rank_zero
from workflows.clusters.workers import Worker, current_worker
from workflows.messages import Outcome, RunProgress, Speed
from workflows.runs.folder import RunFolder, is_of_last_step, sole_writer
from workflows.runs.journal import Journal
from workflows.runs.storage import RemoteRun, agree_on_checkpoint
from workflows.runs.tracker import JOURNAL_NAME
from workflows.settings import storage_folder
from workflows.training.backend import RemainingSteps, TorchBackend, autocast_dtype
from workflows.training.run_settings import RunSettings

if TYPE_CHECKING:
    from workflows.training.xla_backend import XlaBackend


@dataclass(frozen=True)
class WorkerJob:
    """A run as its driver hands it to workers."""

    open_parts: Callable[[Worker, Path], "RunParts"]
    """Reads the data and builds the fresh state of the run in a folder. Raises `UserError`."""
    run_folder: Path
    """On the driver's machine; workers of a remote run have a copy of their own."""
    storage: str


def worker_main(config: dict[str, Any]) -> list[Outcome]:
    """Trains the `jobs` of `config`; Ray Train calls this in every worker."""
    with current_worker(config) as worker:
        return train_jobs(config["jobs"], worker)


def train_jobs(jobs: Sequence[WorkerJob], worker: Worker) -> list[Outcome]:
    """Trains jobs one after the other, each as if alone, until one is asked to stop.

    Returns the outcome of each job that was begun.
    """
    outcomes: list[Outcome] = []
    for number, job in enumerate(jobs):
        if number_of_rank_zero(int(worker.stop_requested()), worker.device):
            break
        worker.begin_job(number)
        outcomes.append(train_job(job, worker))
        worker.end_job(outcomes[-1])
        if outcomes[-1].stopped:
            break
        gc.collect()  # model, optimizer and rows are freed before the next job allocates its own
    return outcomes


def train_job(job: WorkerJob, worker: Worker) -> Outcome:
    """Trains what is left of a run, from its newest whole checkpoint.

    The data of a run that is trained already are not read.
    """
    folder, remote = run_location(job.storage, job.run_folder)
    if remote is None and not folder.is_dir():  # a node that came after the driver's check
        raise UserError(
            "a node that has joined cannot reach the storage",
            f"{folder} at {socket.gethostname()}",
            "give --storage in a folder that all nodes share, or an address",
        )
    path, _ = agreed_checkpoint(worker, RunFolder(folder), remote)
    if path is not None and is_of_last_step(path):
        step = checkpoint_step(path)
        if worker.rank == 0:
            worker.publish(RunProgress(step=step, total_steps=step))
        return Outcome(step, stopped=False)
    return TrainingRun(job.open_parts(worker, folder), worker, folder, remote).train()


def run_location(storage: str, run_folder: Path) -> tuple[Path, RemoteRun | None]:
    """Where a worker of this machine works: the run folder, or a copy of what is at the address."""
    if "://" not in storage:
        return run_folder, None
    remote = RemoteRun(storage, run_folder.name)
    folder = storage_folder(storage) / "runs" / run_folder.name
    remote.adopt(RunFolder(folder))
    return folder, remote


Backend: TypeAlias = "TorchBackend | XlaBackend"
"""Computes steps and evaluations of one worker; both have the same methods."""

READ_EVERY_STEPS = 10
"""Steps between two reads of an accelerator's results; on CPU they are there at once."""
PUBLISH_SECONDS = 0.5
"""The least time between two messages to the driver."""


RECENT_STEPS = 50
"""Steps over which rates are taken."""
PEAKS = 3
"""How often the device's peak is measured; the best counts."""


class Evaluation(Protocol):
    """Measures the model now and then."""

    notes: dict[str, Any]
    """What a checkpoint keeps of earlier evaluations, and gives back when the run resumes."""

    @property
    def summary(self) -> str:
        """The best evaluation so far, in a few words."""
        ...

    def is_due(self, step: int) -> bool:
        """Whether to evaluate after this step, unless it is the last, which always is."""
        ...

    def evaluate(self, step: int) -> Mapping[str, float]:
        """Metrics by name, computed by all ranks together; those of rank 0 count."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the run is to end although steps are left; that of rank 0 counts."""
        ...


@dataclass(frozen=True)
class RunParts:
    """What a run is made of."""

    settings: RunSettings
    backend: Backend
    state: TrainingState
    """Model and optimizer before the first step, the same on every rank."""
    batches: Callable[[int], Iterator[StepBatches]]
    """The global batches from a step on."""
    compute_loss: ComputeLoss
    learning_rate: Callable[[int], float]
    """The learning rate of the step after so many finished ones."""
    step_metrics: Callable[[StepResult], dict[str, float]]
    """The metrics of one step by name: means over the global batch."""
    step_flops: Callable[[StepResult], float]
    """FLOPs of one step, all ranks together."""
    evaluation: Evaluation
    total_steps: int
    steps_left: Callable[[int], float]
    """The steps after so many finished ones, in steps of the last one's size."""
    input_hashes: Mapping[str, str]
    """Of what the run reads, for its checkpoints."""
    out_of_memory_remedy: str
    evaluates_first: bool = False
    """Whether the state before the first step is measured, too, at step 0."""
    kept_files: tuple[str, ...] = ()
    """Files of the run folder that belong to a checkpoint, besides the journal."""


def backend_of(worker: Worker, settings: RunSettings) -> Backend:
    """The backend of a worker's device."""
    dtype = autocast_dtype(settings)
    if worker.through_xla:
        from workflows.training.xla_backend import XlaBackend  # JAX takes the chips on import

        return XlaBackend(dtype)
    return TorchBackend(worker, dtype)


class TrainingRun:
    """One run in one worker. `folder` is the run folder, or this machine's copy of `remote`."""

    def __init__(
        self, parts: RunParts, worker: Worker, folder: Path, remote: RemoteRun | None = None
    ) -> None:
        self.parts = parts
        self.worker = worker
        self.folder = RunFolder(folder)
        self.remote = remote
        self.messages: list[str] = []
        self._throughput = Throughput(parts.backend, worker.world_size, parts.steps_left)
        self._unread: list[StepResult] = []
        self._progress = RunProgress(total_steps=parts.total_steps)
        self._published = 0.0

    def train(self) -> Outcome:
        """Trains the steps that are left.

        Waits until the workers of an earlier start are gone. Raises `UserError` with the run's
        remedy when the device's memory does not suffice.
        """
        parts = self.parts
        writer = nullcontext() if self.worker.rank else sole_writer(self.folder)
        with parts.backend.out_of_memory(parts.out_of_memory_remedy), writer:
            return self._train()

    def _train(self) -> Outcome:
        parts, checkpoints = self.parts, self.parts.settings.checkpoint
        self._throughput.start(self._resume())
        stopped = False
        if parts.evaluates_first and parts.state.step == 0:
            self.worker.report(self._evaluate(0))
        steps = RemainingSteps(
            parts.state,
            parts.batches(parts.state.step),
            parts.compute_loss,
            parts.total_steps,
            parts.learning_rate,
            parts.settings,
            self.worker.stop_requested,
            self.messages.append,
        )
        for result in parts.backend.results(steps):
            self._unread.append(result)
            finished = result.step == parts.total_steps
            stopped = result.stopped and not finished
            evaluate = finished or parts.evaluation.is_due(result.step)
            checkpoint = finished or stopped or result.step % checkpoints.every_steps == 0
            if evaluate or checkpoint or self._read_is_due():
                self._read_results()
            figures = self._evaluate(result.step) if evaluate else {}
            is_over = evaluate and not finished and self._is_over()
            if checkpoint or is_over:
                self._save(is_last=finished or is_over)
            if figures:
                self.worker.report(figures)
            if is_over:
                stopped = False
                break
        if self.worker.rank == 0:
            self._journal.close()
        return Outcome(parts.state.step, stopped)

    def _resume(self) -> float:
        """Loads the newest whole checkpoint and cuts the journal back to it.

        Returns the worker seconds that led to it.
        """
        state = self.parts.state
        path, damaged = agreed_checkpoint(self.worker, self.folder, self.remote)
        self.messages += damaged
        copy, used = None, 0.0
        if path is not None:
            info = load_checkpoint(path, state)
            copy, used = info.files.get(JOURNAL_NAME), info.extra["used_seconds"]
            self.parts.evaluation.notes = info.extra["notes"]
            self.messages.append(f"resuming from step {state.step}")
            if info.num_threads != torch.get_num_threads():
                self.messages.append(
                    f"{torch.get_num_threads()} threads where there were {info.num_threads}: "
                    "sums may differ in the last bits"
                )
        if self.worker.rank == 0:
            self._journal = Journal(self.folder.path / JOURNAL_NAME)
            # Without a checkpoint nothing stays, not even what was measured before the first step.
            self._journal.cut_back(state.step if path is not None else -1, copy)
            self._restore_kept_files(path)
        self._publish(step=state.step, at_once=True)
        return used

    def _restore_kept_files(self, checkpoint: Path | None) -> None:
        """Makes the kept files those of the checkpoint; without one there are none."""
        for left in self.folder.path.glob(".*.written"):  # a killed worker's
            left.unlink(missing_ok=True)
        for name in self.parts.kept_files:
            here = self.folder.path / name
            here.unlink(missing_ok=True)
            if checkpoint is not None and (saved := checkpoint / FILES / name).exists():
                with atomic_write(here) as beside:
                    shutil.copyfile(saved, beside)

    def _read_is_due(self) -> bool:
        backend = self.parts.backend
        return not backend.results_cost_a_wait or len(self._unread) >= READ_EVERY_STEPS

    def _read_results(self) -> None:
        """Brings the results of the last steps to the host: journal, throughput, progress."""
        for result in self._unread:
            metrics = self.parts.step_metrics(result)
            speed = self._throughput.add(result, self.parts.step_flops(result))
            if self.worker.rank == 0:
                self._journal.append(result.step, metrics)
                self._publish(step=result.step, metrics=metrics, speed=speed)
        self._unread.clear()

    def _evaluate(self, step: int) -> dict[str, float]:
        with self._throughput.paused():
            figures = dict(self.parts.evaluation.evaluate(step))
        if self.worker.rank == 0:
            self._journal.append(step, figures)
            self._publish(metrics=figures, at_once=True)
        return figures

    def _is_over(self) -> bool:
        """Whether the evaluation ends the run early; asked by all ranks at once."""
        return bool(number_of_rank_zero(int(self.parts.evaluation.is_over), self.worker.device))

    def _save(self, *, is_last: bool = False) -> None:
        if self.worker.rank:
            return
        parts, settings = self.parts, self.parts.settings
        with self._throughput.paused():
            path = save_checkpoint(
                self.folder.checkpoints,
                parts.backend.current_state(parts.state),
                extra={
                    "settings": settings.model_dump(mode="json"),
                    **parts.input_hashes,
                    "total_steps": parts.state.step if is_last else parts.total_steps,
                    "planned_steps": parts.total_steps,
                    "used_seconds": self._throughput.usage(),
                    **parts.backend.description(),
                    "notes": parts.evaluation.notes,
                },
                files={JOURNAL_NAME: self._journal.path} | self._kept_files(),
                keep=settings.checkpoint.keep,
            )
            self._upload(path)
        self._publish(checkpoint=path.name, at_once=True, is_last=is_last)

    def _kept_files(self) -> dict[str, Path]:
        paths = {name: self.folder.path / name for name in self.parts.kept_files}
        return {name: path for name, path in paths.items() if path.exists()}

    def _upload(self, checkpoint: Path) -> None:
        """Uploads a checkpoint of a remote run; the next checkpoint retries what fails."""
        if self.remote is None:
            return
        try:
            self.remote.push_checkpoint(checkpoint, self.parts.settings.checkpoint.keep)
        except UserError as error:
            self.messages.append(
                f"{checkpoint.name} is on this machine alone, {error.what}: {error.where}; "
                "the next checkpoint tries again"
            )

    def _publish(
        self,
        *,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
        speed: Speed | None = None,
        checkpoint: str | None = None,
        at_once: bool = False,
        is_last: bool = False,
    ) -> None:
        """Updates the progress, and sends it to the driver unless it was sent just now."""
        if self.worker.rank:
            return
        before = self._progress
        self._progress = replace(
            before,
            step=before.step if step is None else step,
            total_steps=before.step if is_last else before.total_steps,
            metrics=before.metrics | dict(metrics or {}),
            speed=speed or before.speed,
            used_seconds=self._throughput.usage(),
            checkpoint=checkpoint or before.checkpoint,
            evaluation=self.parts.evaluation.summary,
            messages=tuple(self.messages),
        )
        if at_once or time.monotonic() - self._published > PUBLISH_SECONDS:
            self.worker.publish(self._progress)
            self._published = time.monotonic()


def agreed_checkpoint(
    worker: Worker, folder: RunFolder, remote: RemoteRun | None
) -> tuple[Path | None, list[str]]:
    """The checkpoint that all workers resume from, None for the start; called by all at once.

    Also returns a message for each damaged checkpoint that was passed over. With a `remote` each
    worker reads the address, without one rank 0 reads the folder for all.
    """
    step, damaged = 0, []
    if remote is not None:
        step, damaged = agree_on_checkpoint(remote, folder, worker.device)
    else:
        if worker.rank == 0:
            path, damaged = newest_checkpoint(folder.checkpoints)
            step = 0 if path is None else checkpoint_step(path)
        # Rank 0 has waited for the writer of an earlier start; another may look too early.
        step = number_of_rank_zero(step, worker.device)
    return (folder.checkpoints / checkpoint_name(step) if step else None), damaged


class Throughput:
    """Rates over the last steps, and the time that the run has used."""

    def __init__(
        self, backend: Backend, world_size: int, steps_left: Callable[[int], float]
    ) -> None:
        self._backend = backend
        self._world_size = world_size
        self._steps_left = steps_left
        self._steps: deque[tuple[float, int, int, float]] = deque(maxlen=RECENT_STEPS)
        self._last = 0.0
        self._peak, self._num_peaks = 0.0, 0
        self._busy_seconds = self._earlier_seconds = 0.0

    def start(self, earlier_seconds: float = 0.0) -> None:
        """Measures the device's peak and starts the clock.

        `earlier_seconds` is what `usage` returned at the end of the earlier starts of the run.
        """
        self._measure_peak()
        self._earlier_seconds = earlier_seconds
        self._last = time.perf_counter()

    def add(self, result: StepResult, flops: float) -> Speed:
        """Counts one step of so many FLOPs, at the time its results were read."""
        now = time.perf_counter()
        tokens, slots = int(result.num_real_tokens), int(result.num_slots)
        self._steps.append((now - self._last, tokens, slots, flops))
        self._busy_seconds += now - self._last
        self._last = now
        return self._speed(result.step)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves what happens inside out of the rates, though not out of the usage.

        The peak is measured again the first times: Ray's own start may still share the cores.
        """
        begin = time.perf_counter()
        yield
        self._busy_seconds += time.perf_counter() - begin
        if self._num_peaks < PEAKS:
            self._measure_peak()
        self._last += time.perf_counter() - begin

    def usage(self) -> float:
        """Worker seconds spent on this run, earlier starts included."""
        return self._earlier_seconds + self._busy_seconds * self._world_size

    def _measure_peak(self) -> None:
        self._peak = max(self._peak, self._backend.peak_flops() * self._world_size)
        self._num_peaks += 1

    def _speed(self, step: int) -> Speed:
        seconds, tokens, slots, flops = map(sum, zip(*self._steps, strict=True))
        return Speed(
            tokens_per_second=tokens / seconds,
            padding_share=1 - tokens / slots,
            mfu=flops / seconds / self._peak,
            memory_bytes=self._backend.memory_bytes(),
            eta_seconds=self._steps_left(step) * seconds / len(self._steps),
        )
