"""A training run as every worker goes through it: the caller's `for` around `train`.

What pre-training and fine-tuning share: resume, journal, checkpoints, news. What differs is in the
abstract methods. Everything is read from the run folder and the data.
"""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from bert_core.config import ModelConfig
from bert_core.disk import written_whole
from bert_core.errors import UserError
from bert_core.processor import processor_name
from bert_core.training.checkpoint import (
    FILES,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from bert_core.training.checkpoint_names import checkpoint_name, checkpoint_step
from bert_core.training.loop import ComputeLoss, StepBatches, StepResult, TrainingState, train
from bert_core.training.ranks import number_of_rank_zero
from workflows.clusters.workers import Worker
from workflows.remote_run import RemoteRun, agree_on_checkpoint
from workflows.run_folder import RunFolder
from workflows.tracking.journal import Journal
from workflows.tracking.tracker import JOURNAL_NAME
from workflows.training import xla_device
from workflows.training.run_settings import RunSettings
from workflows.training.throughput import Throughput

READ_EVERY_STEPS = 10
"""Steps between two looks at an accelerator's results; on CPU they are there at once."""


class TrainingRun(ABC):
    """What one worker holds while it trains.

    A subclass opens its data, sets `config`, the shape of the model, `total_steps` and `data_hash`,
    and then calls this constructor, which builds the fresh state.
    """

    config: ModelConfig
    total_steps: int
    data_hash: str
    out_of_memory_remedy: str
    kept_files: tuple[str, ...] = ()
    """Files of the run folder that belong to a checkpoint, where they are, besides the journal."""

    def __init__(
        self, settings: RunSettings, worker: Worker, folder: Path, remote: RemoteRun | None
    ) -> None:
        self.worker = worker
        self.folder = RunFolder(folder)
        self.remote = remote
        self.run_settings = settings
        self.dtype = None if settings.precision == "float32" else torch.bfloat16
        self.state = self.fresh_state()
        self.messages: list[str] = []
        self.throughput = Throughput(worker, self.total_steps)
        self.notes: dict[str, Any] = {}
        """What a checkpoint keeps for the subclass, and gives back when the run goes on."""
        self._unread: list[StepResult] = []

    @abstractmethod
    def fresh_state(self) -> TrainingState:
        """Model and optimizer before the first step, the same on every rank."""

    @abstractmethod
    def batches(self, step: int) -> Iterator[StepBatches]:
        """The global batches from this step on."""

    @abstractmethod
    def compute_loss(self) -> ComputeLoss:
        """The loss function, as `train` calls it."""

    @abstractmethod
    def learning_rate(self, step: int) -> float:
        """The learning rate of the step after `step` finished ones."""

    @abstractmethod
    def step_metrics(self, result: StepResult) -> dict[str, float]:
        """The metrics of one step by name: means over the global batch."""

    @abstractmethod
    def step_flops(self, result: StepResult) -> float:
        """The FLOPs of one step, all ranks together."""

    @abstractmethod
    def evaluation_is_due(self, step: int) -> bool:
        """Whether the model is to be measured after this step, if it is not the last."""

    @abstractmethod
    def evaluate(self, step: int) -> Mapping[str, float]:
        """Measures the model, on all ranks together; the figures count on rank 0."""

    def results(self) -> Iterator[StepResult]:
        """Trains the steps that are left; each is made when its result is asked for."""
        settings = self.run_settings
        return train(
            self.state,
            self.batches(self.state.step),
            self.compute_loss(),
            total_steps=self.total_steps,
            schedule=self.learning_rate,
            max_gradient_norm=settings.optimizer.max_gradient_norm,
            device=self.worker.device,
            autocast_dtype=self.dtype,
            seed=settings.seed,
            should_stop=self.worker.stop_requested,
        )

    def current_state(self) -> TrainingState:
        """The state after the last step, where a checkpoint can be written of it."""
        return self.state

    def train(self) -> dict[str, Any]:
        """Goes through the steps that are left; the last step and whether it was told to stop."""
        earlier_seconds = self._resume()
        settings, state = self.run_settings, self.state
        stopped = False
        self.throughput.start(earlier_seconds)
        for result in self.results():
            self._unread.append(result)
            finished = result.step == self.total_steps
            stopped = result.stopped and not finished
            evaluate = finished or self.evaluation_is_due(result.step)
            due = result.step % settings.checkpoint.every_steps == 0
            checkpoint = finished or stopped or due
            if evaluate or checkpoint or self._reading_is_due():
                self._read_results()
            figures = self._evaluate(result.step) if evaluate else {}
            if checkpoint:
                self._save()
            if figures:
                self.worker.report(figures)
        if self.worker.rank == 0:
            self.journal.close()
        return {"step": state.step, "stopped": stopped}

    def _resume(self) -> float:
        """Loads the newest whole checkpoint and cuts the journal back to it.

        Returns the worker seconds that led to it.
        """
        path, damaged = agreed_checkpoint(self.worker, self.folder, self.remote)
        self.messages += damaged
        copy, used = None, 0.0
        if path is not None:
            info = load_checkpoint(path, self.state)
            copy, used = info.files.get(JOURNAL_NAME), info.extra["used_seconds"]
            self.notes = info.extra["notes"]
            self.messages.append(f"going on from step {self.state.step}")
            if info.num_threads != torch.get_num_threads():
                self.messages.append(
                    f"{torch.get_num_threads()} threads where there were {info.num_threads}: "
                    "sums may differ in the last bits"
                )
        if self.worker.rank == 0:
            self.journal = Journal(self.folder.path / JOURNAL_NAME)
            self.journal.cut_back(self.state.step, copy)
            self._bring_back(path)
        self._publish({"step": self.state.step, "total_steps": self.total_steps}, at_once=True)
        return used

    def _bring_back(self, checkpoint: Path | None) -> None:
        """Makes the kept files those of the checkpoint; without one there are none."""
        for left in self.folder.path.glob(".*.written"):  # a killed worker's
            left.unlink(missing_ok=True)
        for name in self.kept_files:
            here = self.folder.path / name
            here.unlink(missing_ok=True)
            if checkpoint is not None and (saved := checkpoint / FILES / name).exists():
                with written_whole(here) as beside:
                    shutil.copyfile(saved, beside)

    def _reading_is_due(self) -> bool:
        at_once = self.worker.device.type == "cpu" and not self.worker.through_xla
        return at_once or len(self._unread) >= READ_EVERY_STEPS

    def _read_results(self) -> None:
        """Brings the results of the last steps to the host: journal, throughput, news."""
        for result in self._unread:
            metrics = self.step_metrics(result)
            self.throughput.add(result, self.step_flops(result))
            if self.worker.rank == 0:
                self.journal.append(result.step, metrics)
                self._publish(metrics | {"step": result.step})
        self._unread.clear()

    def _evaluate(self, step: int) -> dict[str, float]:
        with self.throughput.paused():
            figures = dict(self.evaluate(step))
        if self.worker.rank == 0:
            self.journal.append(step, figures)
            self._publish(figures, at_once=True)
        return figures

    def _save(self) -> None:
        if self.worker.rank:
            return
        settings = self.run_settings
        with self.throughput.paused():
            path = save_checkpoint(
                self.folder.checkpoints,
                self.current_state(),
                extra={
                    "settings": settings.model_dump(mode="json"),
                    "data_hash": self.data_hash,
                    "total_steps": self.total_steps,
                    "used_seconds": self.throughput.usage(),
                    **self._device(),
                    "notes": self.notes,
                },
                files={JOURNAL_NAME: self.journal.path} | self._kept(),
                keep=settings.checkpoint.keep,
            )
            self._upload(path)
        self._publish({"checkpoint": path.name}, at_once=True)

    def _device(self) -> dict[str, str]:
        if self.worker.through_xla:
            return {"device": xla_device.kind(), "processor": xla_device.name()}
        device = self.worker.device
        return {"device": device.type, "processor": processor_name(device)}

    def _kept(self) -> dict[str, Path]:
        paths = {name: self.folder.path / name for name in self.kept_files}
        return {name: path for name, path in paths.items() if path.exists()}

    def _upload(self, checkpoint: Path) -> None:
        """Brings a checkpoint to the URI, where there is one; a failure waits for the next one."""
        if self.remote is None:
            return
        try:
            self.remote.push_checkpoint(checkpoint, self.run_settings.checkpoint.keep)
        except UserError as error:
            self.messages.append(
                f"{checkpoint.name} is on this machine alone, {error.what}: {error.where}; "
                "the next checkpoint tries again"
            )

    def _publish(self, news: dict[str, Any], *, at_once: bool = False) -> None:
        if self.worker.rank == 0:
            self.throughput.publish({"messages": self.messages} | news, at_once=at_once)


def agreed_checkpoint(
    worker: Worker, folder: RunFolder, remote: RemoteRun | None
) -> tuple[Path | None, list[str]]:
    """What all workers go on from, None for the start, and what was passed over; for all at once.

    With a `remote` each worker looks at the address, without one rank 0 looks for all.
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
