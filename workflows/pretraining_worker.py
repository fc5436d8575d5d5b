"""The pre-training loop as it runs on every worker: the caller's `for` around `train`.

Everything is read from the run folder and the shards; journal, checkpoints and news come out.
"""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bert_core.errors import UserError
from bert_core.model.bert import Bert
from bert_core.tasks.pretraining import PretrainingBatch, compute_loss
from bert_core.text.rows.batches import BatchSource, StepBatches
from bert_core.text.rows.masking import Vocabulary
from bert_core.text.shards import TokenShards, open_shards
from bert_core.tokenizer import load_tokenizer
from bert_core.training.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from bert_core.training.checkpoint_names import checkpoint_name, checkpoint_step
from bert_core.training.evaluation import PretrainingEvaluation, evaluate_pretraining
from bert_core.training.loop import StepResult, TrainingState, train
from bert_core.training.optimization import create_optimizer, linear_schedule
from bert_core.training.ranks import number_of_rank_zero
from workflows.cluster import Worker, current_worker
from workflows.journal import Journal
from workflows.pretrain_settings import PretrainSettings
from workflows.remote_run import RemoteRun, agree_on_checkpoint
from workflows.run_folder import RunFolder, sole_writer
from workflows.storage import working_copy
from workflows.throughput import Throughput
from workflows.tracker import JOURNAL_NAME

READ_EVERY_STEPS = 10
"""Steps between two looks at an accelerator's results; on CPU they are there at once."""


def train_worker(config: dict[str, Any]) -> dict[str, Any]:
    """Trains to the end, or to a request to stop, from the newest checkpoint that is whole.

    `config` holds `settings`, `run_folder` and `shards`; with a storage that is a URI, a worker has
    a working copy of its own machine instead of the run folder. Returns the last step and whether
    it was told to stop. Raises `UserError` for what a user can mend.
    """
    settings = PretrainSettings.model_validate(config["settings"])
    with current_worker(config) as worker:
        folder, remote = Path(config["run_folder"]), None
        if "://" in settings.storage:
            remote = RemoteRun(settings.storage, folder.name)
            folder = working_copy(settings.storage) / "runs" / folder.name
            remote.adopt(RunFolder(folder))
        run = PretrainingRun(settings, worker, folder, Path(config["shards"]), remote)
        try:
            if worker.rank:
                return run.train()
            with sole_writer(run.folder):
                return run.train()
        except torch.OutOfMemoryError as error:
            raise UserError(
                "the device is out of memory",
                str(worker.device),
                f"lower --batch.micro_batch_size from {settings.batch.micro_batch_size}: the "
                "result stays the same",
            ) from error


class PretrainingRun:
    """What one worker holds while it pre-trains."""

    def __init__(
        self,
        settings: PretrainSettings,
        worker: Worker,
        folder: Path,
        shards: Path,
        remote: RemoteRun | None = None,
    ) -> None:
        self.settings = settings
        self.worker = worker
        self.folder = RunFolder(folder)
        self.remote = remote
        self.shards_folder = shards
        self.shards = open_shards(shards, "train")
        self.vocabulary = Vocabulary.from_tokenizer(load_tokenizer(shards))
        self.dtype = None if settings.precision == "float32" else torch.bfloat16
        self.state = self._fresh_state()
        self.messages: list[str] = []
        config = self.settings.model.config(self.vocabulary.size, self.vocabulary.pad_id)
        self.throughput = Throughput(config, worker, settings.total_steps)
        self._unread: list[StepResult] = []

    def train(self) -> dict[str, Any]:
        """Goes through the steps that are left; see `train_worker`."""
        earlier_seconds = self._resume()
        settings, state = self.settings, self.state
        results = train(
            state,
            self._batches(),
            self._compute_loss(),
            total_steps=settings.total_steps,
            schedule=partial(_learning_rate, settings),
            max_gradient_norm=settings.optimizer.max_gradient_norm,
            device=self.worker.device,
            autocast_dtype=self.dtype,
            seed=settings.seed,
            should_stop=self.worker.stop_requested,
        )
        stopped = False
        self.throughput.start(earlier_seconds)
        for result in results:
            self._unread.append(result)
            finished = result.step == settings.total_steps
            stopped = result.stopped and not finished
            evaluate = finished or _due(result, settings.evaluation.every_steps)
            checkpoint = finished or stopped or _due(result, settings.checkpoint.every_steps)
            if evaluate or checkpoint or self._reading_is_due():
                self._read_results()
            if evaluate:
                self._evaluate(result.step)
            if checkpoint:
                self._save()
        return {"step": state.step, "stopped": stopped}

    def _fresh_state(self) -> TrainingState:
        config = self.settings.model.config(self.vocabulary.size, self.vocabulary.pad_id)
        torch.manual_seed(self.settings.seed)
        pairs = self.settings.rows.objective == "mlm_nsp"
        model = Bert.for_pretraining(config, next_sentence=pairs).to(self.worker.device)
        return TrainingState(model, create_optimizer(model, self.settings.optimizer))

    def _resume(self) -> float:
        """Loads the newest whole checkpoint and cuts the journal back to it.

        Returns the worker seconds that led to it.
        """
        path, damaged = self._newest_checkpoint()
        self.messages += damaged
        copy, used = None, 0.0
        if path is not None:
            info = load_checkpoint(path, self.state)
            copy, used = info.files.get(JOURNAL_NAME), info.extra["used_seconds"]
            self.messages.append(f"going on from step {self.state.step}")
            if info.num_threads != torch.get_num_threads():
                self.messages.append(
                    f"{torch.get_num_threads()} threads where there were {info.num_threads}: "
                    "sums may differ in the last bits"
                )
        if self.worker.rank == 0:
            self.journal = Journal(self.folder.path / JOURNAL_NAME)
            self.journal.cut_back(self.state.step, copy)
        self._publish({"step": self.state.step}, at_once=True)
        return used

    def _newest_checkpoint(self) -> tuple[Path | None, list[str]]:
        """What all workers go on from, and what was passed over."""
        step, damaged = 0, []
        if self.remote is not None:
            step, damaged = agree_on_checkpoint(self.remote, self.folder, self.worker.device)
        else:
            if self.worker.rank == 0:
                path, damaged = newest_checkpoint(self.folder.checkpoints)
                step = 0 if path is None else checkpoint_step(path)
            # Rank 0 has waited for the writer of an earlier start; another may look too early.
            step = number_of_rank_zero(step, self.worker.device)
        return (self.folder.checkpoints / checkpoint_name(step) if step else None), damaged

    def _source(self, shards: TokenShards, phase: int) -> BatchSource:
        return BatchSource(
            shards,
            self.vocabulary,
            rows=self.settings.rows,
            batch=self.settings.batch,
            sequence_length=self.settings.phases[phase].sequence_length,
            seed=self.settings.seed,
            phase=phase,
            static_shapes=self.worker.device.type != "cpu",
            cache_folder=self.folder.path / "cache",
        )

    def _batches(self) -> Iterator[StepBatches]:
        """The global batches from the present step on, through all phases."""
        step = self.state.step
        while step < self.settings.total_steps:
            number, first = self.settings.phase_at(step)
            left = first + self.settings.phases[number].steps - step
            source = self._source(self.shards, number)
            steps = source.steps(step - first, self.worker.rank, self.worker.world_size)
            yield from islice(steps, left)
            step += left

    def _compute_loss(self) -> Any:  # noqa: ANN401 - compiled or not, it is called alike
        if self.settings.compile and self.worker.device.type == "cuda":
            return torch.compile(compute_loss, fullgraph=True)
        return compute_loss

    def _reading_is_due(self) -> bool:
        return self.worker.device.type == "cpu" or len(self._unread) >= READ_EVERY_STEPS

    def _read_results(self) -> None:
        """Brings the results of the last steps to the host: journal, throughput, news."""
        for result in self._unread:
            metrics = step_metrics(result)
            self.throughput.add(result)
            if self.worker.rank == 0:
                self.journal.append(result.step, metrics)
                self._publish(metrics | {"step": result.step})
        self._unread.clear()

    def _evaluate(self, step: int) -> None:
        with self.throughput.paused():
            evaluation = self.evaluation(step)
        if self.worker.rank == 0:
            figures = {f"heldout/{k}": v for k, v in asdict(evaluation).items() if v is not None}
            self.journal.append(step, figures)
            self._publish(figures, at_once=True)

    def evaluation(self, step: int) -> PretrainingEvaluation:
        """Measures the model on the same held-out rows every time, divided among the workers."""
        number, _ = self.settings.phase_at(min(step, self.settings.total_steps) - 1)
        heldout = self._source(open_shards(self.shards_folder, "heldout"), number)
        batches: Iterator[PretrainingBatch] = heldout.epoch_zero(
            self.settings.evaluation.num_rows, self.worker.rank, self.worker.world_size
        )
        return evaluate_pretraining(
            self.state.model,
            batches,
            compute_loss,
            device=self.worker.device,
            token_counts=np.load(self.shards_folder / "token_counts.npy", allow_pickle=False),
            autocast_dtype=self.dtype,
        )

    def _save(self) -> None:
        if self.worker.rank:
            return
        with self.throughput.paused():
            path = save_checkpoint(
                self.folder.checkpoints,
                self.state,
                extra={
                    "settings": self.settings.model_dump(mode="json"),
                    "data_hash": self.shards.data_hash,
                    "used_seconds": self.throughput.usage(),
                    "device": self.worker.device.type,
                },
                files={JOURNAL_NAME: self.journal.path},
                keep=self.settings.checkpoint.keep,
            )
            self._upload(path)
        self._publish({"checkpoint": path.name}, at_once=True)

    def _upload(self, checkpoint: Path) -> None:
        """Brings a checkpoint to the URI, where there is one; a failure waits for the next one."""
        if self.remote is None:
            return
        try:
            self.remote.push_checkpoint(checkpoint, self.settings.checkpoint.keep)
        except UserError as error:
            self.messages.append(
                f"{checkpoint.name} is on this machine alone, {error.what}: {error.where}; "
                "the next checkpoint tries again"
            )

    def _publish(self, news: dict[str, Any], *, at_once: bool = False) -> None:
        if self.worker.rank == 0:
            self.throughput.publish({"messages": self.messages} | news, at_once=at_once)


def step_metrics(result: StepResult) -> dict[str, float]:
    """The metrics of one step by name: means over the global batch."""
    sums = result.sums.tolist()
    predictions, rows = max(sums[2], 1), max(sums[5], 1)
    metrics = {
        "train/loss": sums[0] / predictions + sums[3] / rows,
        "train/masked_token_loss": sums[0] / predictions,
        "train/masked_token_accuracy": sums[1] / predictions,
        "train/learning_rate": result.learning_rate,
        "train/gradient_norm": float(result.gradient_norm),
    }
    if sums[5]:
        metrics["train/next_sentence_loss"] = sums[3] / rows
        metrics["train/next_sentence_accuracy"] = sums[4] / rows
    return metrics


def _learning_rate(settings: PretrainSettings, step: int) -> float:
    optimizer = settings.optimizer
    return optimizer.peak_learning_rate * linear_schedule(
        step, total_steps=settings.total_steps, warmup_steps=optimizer.warmup_steps
    )


def _due(result: StepResult, every_steps: int) -> bool:
    return result.step % every_steps == 0
