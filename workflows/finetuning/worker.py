"""Fine-tuning in a worker: a task's rows, its loss and its evaluation on dev.

With `FeatureSettings` the encoder stays as it is and a tagger is trained on its hidden states,
which are kept in a folder of their own for other runs on the same data and encoder.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bert_core.config import ModelConfig, training_flops
from bert_core.disk import atomic_write
from bert_core.errors import UserError
from bert_core.features.states import stored_states
from bert_core.model.bert import VECTORS, WORDS, Bert
from bert_core.model.strategies import find_strategy
from bert_core.model.tagger import FeatureTagger
from bert_core.model_folder import load_model_folder
from bert_core.tasks.coupled_batches import (
    CoupledBatchSource,
    loss_of_examples,
    told_steps,
    vector_loss,
)
from bert_core.tasks.encoded_rows import EncodedRows, FeatureRows, TaskBatchSource, layout_for
from bert_core.tasks.label_loss import LabelLoss
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.task import Task, add_task_head, task_loss
from bert_core.tasks.text_embedding import TextEmbedding
from bert_core.training.loop import ComputeLoss, StepBatches, StepResult, TrainingState
from bert_core.training.optimization import create_optimizer, linear_schedule
from workflows.clusters.workers import Worker
from workflows.finetuning.data import Split, TaskData, read_task_data
from workflows.finetuning.settings import FeatureSettings, TaskRunSettings, read_settings
from workflows.messages import RunProgress
from workflows.progress import duration
from workflows.training.backend import TorchBackend, autocast_dtype
from workflows.training.run import Backend, RunParts, backend_of

BEST_WEIGHTS, BEST_PREDICTIONS = "best.safetensors", "best_predictions.jsonl"
"""Weights and dev predictions of the best epoch, in the run folder and in each checkpoint."""
FOLD_OUTPUTS = "fold_outputs.safetensors"
"""As these, of a fold what the head said in the epoch of the lowest loss: its probabilities are
good, which those of the best labels need not be."""
_PUBLISH_SECONDS = 1.0


def open_finetuning(
    settings: dict[str, Any],
    encoder: Path,
    data_sha256: str,
    features: Path,
    worker: Worker,
    folder: Path,
    *,
    task_data: TaskData | None = None,
) -> RunParts:
    """The parts of a run from the settings that its driver sent as JSON.

    `task_data` holds data that were read for several runs together. Raises `UserError` where this
    worker reads other data than the driver did.
    """
    read = read_settings(settings)
    parts = finetuning_parts(read, encoder, worker, folder, features=features, data=task_data)
    if parts.data_hash != data_sha256:
        raise UserError("the data changed while the run was starting", read.data_name, "repeat")
    return parts


def finetuning_parts(
    settings: TaskRunSettings,
    encoder: Path,
    worker: Worker,
    folder: Path,
    *,
    features: Path | None = None,
    data: TaskData | None = None,
) -> RunParts:
    """Reads the encoder and, where no `data` are given, the data; draws what is new from the seed.

    `features` is the folder of kept hidden states, needed for `FeatureSettings` alone.
    """
    backend = backend_of(worker, settings)
    torch.manual_seed(settings.seed)  # before the head is drawn
    config, model, tokenizer = load_model_folder(encoder, changes=settings.encoder_changes())
    data = data or read_task_data(settings, tokenizer)
    task = data.task
    train_rows, dev_rows = data.train.rows, data.dev.rows
    trained: Bert | FeatureTagger
    if isinstance(settings, FeatureSettings):
        assert features is not None
        states = FeatureStates(settings, model, features, worker)
        dev_rows = states.rows("dev", dev_rows)
        train_rows = states.rows("train", train_rows)
        trained = new_tagger(settings, config, task)
        step_flops: Callable[[StepResult], float] = partial(tagger_flops, settings, config)
    else:
        add_task_head(model, task)
        trained = model
        step_flops = partial(encoder_flops, config, task)
    trained = trained.to(worker.device)
    dtype = autocast_dtype(settings)
    limits: dict[str, Any] = {
        "batch_size": settings.batch_size,
        "max_tokens": settings.max_tokens,
        "seed": settings.seed,
        "layout": layout_for(config, worker.device, dtype, training=True),
    }
    compute_loss: ComputeLoss = partial(task_loss, task)
    if settings.loss.changed:
        shape = LabelLoss.of(settings.loss, task.labels, data.train.rows.labels)
        compute_loss = partial(task_loss, task, shape=shape)
    batches: Callable[[int], Iterator[StepBatches]]
    if isinstance(task, TextEmbedding) and isinstance(trained, Bert):
        source = CoupledBatchSource(task, train_rows, len(data.train.examples), **limits)
        compute_loss = partial(vector_loss, task)
        batches = partial(_told, source, task, trained, backend, settings.seed)
    else:
        source = TaskBatchSource(train_rows, **limits)
        batches = partial(_shared, source, backend)
    total_steps = settings.epochs * source.steps_per_epoch
    evaluation = DevEvaluation(settings, task, data.dev, dev_rows, trained, worker, backend, folder)
    evaluation.steps_per_epoch = source.steps_per_epoch
    return RunParts(
        settings=settings,
        backend=backend,
        state=TrainingState(trained, create_optimizer(trained, settings.optimizer)),
        batches=batches,
        compute_loss=compute_loss,
        learning_rate=lambda step: learning_rate(settings, total_steps, step),
        step_metrics=partial(step_metrics, task),
        step_flops=step_flops,
        evaluation=evaluation,
        total_steps=total_steps,
        data_hash=data.sha256,
        out_of_memory_remedy=(
            f"lower --max_tokens from {settings.max_tokens}: the result stays the same"
        ),
        kept_files=evaluation.kept_files,
    )


def _shared(source: TaskBatchSource, backend: Backend, first: int) -> Iterator[StepBatches]:
    """The steps from `first` on, of each this worker's share."""
    return source.steps(first, *backend.share())


def _told(
    source: CoupledBatchSource,
    task: TextEmbedding,
    model: Bert,
    backend: Backend,
    seed: int,
    first: int,
) -> Iterator[StepBatches]:
    """As `_shared`, where a step's loss is of all its examples together; see `told_steps`."""
    assert isinstance(backend, TorchBackend), "the settings refuse a TPU"
    return told_steps(
        source.steps(first, *backend.share()),
        task,
        model,
        first=first,
        device=backend.device,
        autocast_dtype=backend.autocast_dtype,
        seed=seed,
    )


def learning_rate(settings: TaskRunSettings, total_steps: int, step: int) -> float:
    """The learning rate of the step after `step` finished ones: linear warm-up, linear decay."""
    optimizer = settings.optimizer
    return optimizer.peak_learning_rate * linear_schedule(
        step, total_steps=total_steps, warmup_steps=round(optimizer.warmup_share * total_steps)
    )


def step_metrics(task: Task, result: StepResult) -> dict[str, float]:
    """Loss, accuracy over labels, learning rate and gradient norm of one step."""
    _, correct, count = result.sums.tolist()
    metrics = {
        "train/loss": float(result.loss),
        "train/learning_rate": result.learning_rate,
        "train/gradient_norm": float(result.gradient_norm),
    }
    if task.problem_type != "regression":
        metrics["train/accuracy"] = correct / max(count, 1)
    return metrics


def encoder_flops(config: ModelConfig, task: Task, result: StepResult) -> float:
    """FLOPs of encoder and pooler, forward and backward; the head is too small to count.

    A head that scores spans is taken to read all tokens: it reads those of the passage. That of
    words counts, as it does in pre-training.
    """
    num_tokens, num_labels = int(result.num_real_tokens), int(result.sums[2])
    return training_flops(
        config,
        num_tokens=num_tokens,
        sum_of_squared_lengths=result.sum_of_squared_lengths,
        num_predictions=num_tokens if task.head.name == WORDS else 0,
        num_rows=num_labels if task.head.pooled else 0,
        num_read=num_tokens if task.head.name in ("span", VECTORS, WORDS) else num_labels,
    )


def tagger_flops(settings: FeatureSettings, config: ModelConfig, result: StepResult) -> float:
    """FLOPs of the LSTM, both directions, forward and backward, at all words."""
    size, layers = settings.tagger.lstm_size, settings.tagger.lstm_layers
    strategy = find_strategy(settings.strategy)
    inputs = strategy.feature_size(config.num_hidden_layers, config.hidden_size)
    weights = 2 * 4 * size * (inputs + size + (layers - 1) * 3 * size)
    return 3 * 2.0 * weights * int(result.sums[2])


def new_tagger(settings: FeatureSettings, config: ModelConfig, task: Task) -> FeatureTagger:
    """A tagger over hidden states, drawn from the seed."""
    torch.manual_seed(settings.seed)
    return FeatureTagger(
        find_strategy(settings.strategy),
        config,
        num_outputs=task.head.num_outputs,
        lstm_size=settings.tagger.lstm_size,
        lstm_layers=settings.tagger.lstm_layers,
        dropout_prob=settings.tagger.dropout,
    )


class FeatureStates:
    """Hidden states of the layers that a strategy reads, computed once and kept in a folder."""

    def __init__(
        self, settings: FeatureSettings, model: Bert, folder: Path, worker: Worker
    ) -> None:
        self._settings = settings
        self._encoder = model.encoder.to(worker.device)
        self._layers = find_strategy(settings.strategy).layers_of(
            model.encoder.config.num_hidden_layers
        )
        self._folder = folder
        self._worker = worker

    def rows(self, split: str, rows: EncodedRows) -> FeatureRows:
        """The rows of a split with their states."""
        begin = published = time.monotonic()

        def progress(share: float) -> None:
            nonlocal published
            now = time.monotonic()
            if now - published > _PUBLISH_SECONDS:
                published = now
                left = duration((now - begin) * (1 - share) / share)
                text = f"computing the features of {split}, {share:.0%}, {left} left"
                self._worker.publish(RunProgress(activity=text))

        states = stored_states(
            self._encoder,
            rows,
            self._folder / split,
            self._layers,
            device=self._worker.device,
            max_tokens=self._settings.max_tokens,
            autocast_dtype=autocast_dtype(self._settings),
            progress=progress,
        )
        return FeatureRows.of(rows, states)


class DevEvaluation:
    """Measures the model on dev after each epoch and keeps weights and predictions of the best."""

    steps_per_epoch: int

    def __init__(
        self,
        settings: TaskRunSettings,
        task: Task,
        dev: Split,
        rows: EncodedRows,
        model: Bert | FeatureTagger,
        worker: Worker,
        backend: Backend,
        folder: Path,
    ) -> None:
        self.notes: dict[str, Any] = {}
        self._settings = settings
        self._task = task
        self._dev = dev
        self._rows = rows
        self._model = model
        self._worker = worker
        self._dtype = backend.autocast_dtype
        self._folder = folder
        self._keeps_outputs = settings.fold is not None and task.has_label_loss

    @property
    def kept_files(self) -> tuple[str, ...]:
        """What is written of the best epochs."""
        outputs = (FOLD_OUTPUTS,) if self._keeps_outputs else ()
        return (BEST_WEIGHTS, BEST_PREDICTIONS, *outputs)

    @property
    def summary(self) -> str:
        """The task's criterion in the best epoch so far."""
        best = self.notes.get("best")
        return "" if best is None else f"dev {self._task.criterion} {best['score']:.3f}"

    def is_due(self, step: int) -> bool:
        """At the end of each epoch."""
        return step % self.steps_per_epoch == 0

    def evaluate(self, step: int) -> Mapping[str, float]:
        """The task's metrics on dev; {} on other ranks than 0."""
        outputs, loss = compute_all_outputs(
            self._task,
            self._model,
            self._rows,
            device=self._worker.device,
            max_tokens=self._settings.max_tokens,
            autocast_dtype=self._dtype,
        )
        if self._worker.rank:
            return {}
        task, dev = self._task, self._dev
        predictions = task.decode(outputs, dev.rows, dev.examples)
        metrics = task.metrics(predictions, dev.examples)
        epoch = step // self.steps_per_epoch
        figures = {"dev/loss": loss / max(int(dev.rows.label_counts.sum()), 1)}
        if isinstance(task, TextEmbedding):
            size, count = self._settings.batch_size, len(dev.examples)
            figures["dev/loss"] = loss_of_examples(
                task, torch.from_numpy(outputs), dev.rows, count, size
            )
        figures |= {f"dev/{name}": value for name, value in metrics.items()}
        self._keep_the_best(epoch, metrics[task.criterion], figures, predictions)
        if self._keeps_outputs and figures["dev/loss"] < self.notes.get("lowest_loss", math.inf):
            self.notes["lowest_loss"] = figures["dev/loss"]
            write_weights(self._folder / FOLD_OUTPUTS, {"outputs": torch.from_numpy(outputs)})
        return figures | {"dev/epoch": float(epoch)}

    def _keep_the_best(
        self,
        epoch: int,
        score: float,
        figures: dict[str, float],
        predictions: Sequence[Mapping[str, Any]],
    ) -> None:
        best = self.notes.get("best")
        if best is None or score > best["score"] or math.isnan(best["score"]):
            self.notes["best"] = {"epoch": epoch, "score": score, "figures": figures}
            write_weights(self._folder / BEST_WEIGHTS, self._model.state_dict())
            lines = "".join(json.dumps(prediction) + "\n" for prediction in predictions)
            with atomic_write(self._folder / BEST_PREDICTIONS) as beside:
                beside.write_text(lines)


def write_weights(path: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """Writes weights beside the file's name and renames it."""
    with atomic_write(path) as beside:
        save_file({name: weight.detach().cpu() for name, weight in weights.items()}, beside)
