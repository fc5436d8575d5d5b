"""Fine-tuning in a worker: a task's rows, its loss and its evaluation on dev.

With `FeatureSettings` the encoder stays as it is and a tagger is trained on its hidden states,
which are kept in a folder of their own for other runs on the same data and encoder.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bert_core.config import ModelConfig, forward_flops, training_flops
from bert_core.disk import atomic_write, write_atomically
from bert_core.errors import UserError
from bert_core.features.states import stored_states
from bert_core.model.bert import VECTORS, WORDS, Bert
from bert_core.model.strategies import find_strategy
from bert_core.model.tagger import FeatureTagger
from bert_core.model_folder import load_model_folder
from bert_core.settings import FinetuningOptimizerSettings
from bert_core.tasks.coupled_batches import (
    CoupledBatchSource,
    loss_of_examples,
    told_steps,
    vector_loss,
)
from bert_core.tasks.distillation import distilled_loss
from bert_core.tasks.encoded_rows import EncodedRows, FeatureRows, TaskBatchSource, layout_for
from bert_core.tasks.label_loss import LabelLoss
from bert_core.tasks.metrics import less_is_better
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.task import FloatArray, Task, add_task_head, task_loss
from bert_core.tasks.text_embedding import TextEmbedding
from bert_core.training.layers import decayed_groups, draw_anew, freeze
from bert_core.training.loop import ComputeLoss, StepBatches, StepResult, TrainingState
from bert_core.training.optimization import create_optimizer, linear_schedule, parameter_groups
from workflows.clusters.workers import Worker
from workflows.finetuning.data import Split, TaskData, read_task_data
from workflows.finetuning.settings import (
    FeatureSettings,
    FinetuneSettings,
    TaskRunSettings,
    read_settings,
)
from workflows.finetuning.teacher import Teaching, taught_rows
from workflows.training.backend import TorchBackend, autocast_dtype
from workflows.training.run import Backend, RunParts, backend_of

BEST_WEIGHTS, BEST_PREDICTIONS = "best.safetensors", "best_predictions.jsonl"
"""Weights and dev predictions of the best epoch, in the run folder and in each checkpoint."""
BEST_OUTPUTS = "best_outputs.safetensors"
"""The head's answers to dev in the best epoch, beside them, where decisions are to be tuned."""
FOLD_OUTPUTS = "fold_outputs.safetensors"
"""Of a fold those of the epoch of the lowest loss: its probabilities are good, which those of the
best labels need not be."""


def open_finetuning(
    settings: dict[str, Any],
    encoder: Path,
    data_sha256: str,
    features: Path,
    worker: Worker,
    folder: Path,
    *,
    teaching: Teaching | None = None,
    task_data: TaskData | None = None,
    task: Task | None = None,
) -> RunParts:
    """The parts of a run from the settings that its driver sent as JSON.

    `task_data` holds data that were read for several runs together, `task` what of it is this
    run's. Raises `UserError` where this worker reads other data than the driver did.
    """
    read = read_settings(settings)
    if task_data is not None and task is not None:
        task_data = replace(task_data, task=task)
    parts = finetuning_parts(
        read, encoder, worker, folder, features=features, teaching=teaching, data=task_data
    )
    if parts.input_hashes["data_hash"] != data_sha256:
        raise UserError("the data changed while the run was starting", read.data_name, "repeat")
    return parts


def finetuning_parts(
    settings: TaskRunSettings,
    encoder: Path,
    worker: Worker,
    folder: Path,
    *,
    features: Path | None = None,
    teaching: Teaching | None = None,
    data: TaskData | None = None,
) -> RunParts:
    """Reads the encoder and, where no `data` are given, the data; draws what is new from the seed.

    `features` is the folder of kept hidden states, needed for `FeatureSettings` alone, `teaching`
    what is needed where the settings name a teacher.
    """
    backend = backend_of(worker, settings)
    torch.manual_seed(settings.seed)  # before the head is drawn
    config, model, tokenizer = load_model_folder(
        encoder, changes=settings.encoder_changes(), draws=True
    )
    frozen = 0
    if isinstance(settings, FinetuneSettings):
        frozen = settings.freeze_layers
        draw_anew(model, settings.reinit_layers)
        model.encoder.recomputes_layers = settings.recompute == "layers"
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
        freeze(model, frozen)
        trained = model
        step_flops = partial(encoder_flops, config, task, frozen)
    trained = trained.to(worker.device)
    dtype = autocast_dtype(settings)
    limits: dict[str, Any] = {
        "batch_size": settings.batch_size,
        "max_tokens": settings.max_tokens,
        "seed": settings.seed,
        "layout": layout_for(config, worker.device, dtype, training=True),
    }
    shape = None
    if settings.loss.changed:
        shape = LabelLoss.of(settings.loss, task.labels, data.train.rows.labels)
    compute_loss: ComputeLoss = partial(task_loss, task, shape=shape)
    if isinstance(settings, FinetuneSettings) and settings.teacher is not None:
        assert teaching is not None
        train_rows = taught_rows(settings, teaching, data, worker)
        soft = settings.distillation
        compute_loss = partial(distilled_loss, task, shape=shape, settings=soft)
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
        state=TrainingState(trained, optimizer_of(trained, settings.optimizer)),
        batches=batches,
        compute_loss=compute_loss,
        learning_rate=lambda step: learning_rate(settings, total_steps, step),
        step_metrics=partial(step_metrics, task),
        step_flops=step_flops,
        evaluation=evaluation,
        total_steps=total_steps,
        steps_left=lambda step: total_steps - step,
        input_hashes={"data_hash": data.sha256},
        out_of_memory_remedy=out_of_memory_remedy(settings, int(train_rows.lengths.max())),
        kept_files=evaluation.kept_files,
    )


def out_of_memory_remedy(settings: TaskRunSettings, longest: int) -> str:
    """What makes a step fit whose longest row has so many tokens: no pass has less than a row."""
    if settings.max_tokens > longest:
        return f"lower --max_tokens from {settings.max_tokens}: the result stays the same"
    if isinstance(settings, FinetuneSettings) and settings.recompute == "nothing":
        return "add --recompute layers to the same command: the result stays the same"
    return f"start a run under another --name with --options.max_length below {longest}"


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


def optimizer_of(
    model: Bert | FeatureTagger, settings: FinetuningOptimizerSettings
) -> torch.optim.Optimizer:
    """The optimizer, with a learning rate for each layer where they differ."""
    if settings.layer_decay == 1 or not isinstance(model, Bert):
        return create_optimizer(model, settings)
    groups = parameter_groups(model, settings.weight_decay)
    return create_optimizer(model, settings, decayed_groups(model, groups, settings.layer_decay))


def learning_rate(settings: TaskRunSettings, total_steps: int, step: int) -> float:
    """The learning rate of the step after `step` finished ones: linear warm-up, linear decay."""
    optimizer = settings.optimizer
    return optimizer.peak_learning_rate * linear_schedule(
        step, total_steps=total_steps, warmup_steps=round(optimizer.warmup_share * total_steps)
    )


def step_metrics(task: Task, result: StepResult) -> dict[str, float]:
    """Loss, accuracy over labels, learning rate and gradient norm of one step."""
    _, correct, count, *taught = result.sums.tolist()
    metrics = {
        "train/loss": float(result.loss),
        "train/learning_rate": result.learning_rate,
        "train/gradient_norm": float(result.gradient_norm),
    }
    if taught:
        metrics["train/loss_to_teacher"] = taught[0] / max(taught[1], 1)
    if task.problem_type != "regression":
        metrics["train/accuracy"] = correct / max(count, 1)
    return metrics


def encoder_flops(config: ModelConfig, task: Task, frozen: int, result: StepResult) -> float:
    """FLOPs of encoder and pooler, forward and backward; the head is too small to count.

    The `frozen` lowest layers have no backward pass. A head that scores spans is taken to read all
    tokens: it reads those of the passage. That of words counts, as it does in pre-training.
    """
    num_tokens, num_labels = int(result.num_real_tokens), int(result.sums[-1])
    squares = result.sum_of_squared_lengths
    saved = 0.0
    if frozen:
        below = config.model_copy(update={"num_hidden_layers": frozen})
        counts = {"num_predictions": 0, "num_rows": 0, "num_read": num_tokens}
        counts |= {"num_tokens": num_tokens, "sum_of_squared_lengths": squares}
        saved = training_flops(below, **counts) - forward_flops(below, **counts)
    return -saved + training_flops(
        config,
        num_tokens=num_tokens,
        sum_of_squared_lengths=squares,
        num_predictions=num_tokens if task.head.name == WORDS else 0,
        num_rows=num_labels if task.head.pooled else 0,
        num_read=num_tokens
        if task.head.name in ("span", VECTORS, WORDS) or task.head.reads_mean
        else num_labels,
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
        states = stored_states(
            self._encoder,
            rows,
            self._folder / split,
            self._layers,
            device=self._worker.device,
            max_tokens=self._settings.max_tokens,
            autocast_dtype=autocast_dtype(self._settings),
            progress=self._worker.publish_share(f"computing the features of {split}"),
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
        kept = {BEST_OUTPUTS: self._settings.decisions.changed, FOLD_OUTPUTS: self._keeps_outputs}
        outputs = (name for name, is_kept in kept.items() if is_kept)
        return (BEST_WEIGHTS, BEST_PREDICTIONS, *outputs)

    @property
    def summary(self) -> str:
        """The task's criterion in the best epoch so far."""
        best = self.notes.get("best")
        return "" if best is None else f"dev {self._task.criterion} {best['score']:.3f}"

    def is_due(self, step: int) -> bool:
        """At the end of each epoch, or every so many steps."""
        return step % (self._settings.evaluation.every_steps or self.steps_per_epoch) == 0

    @property
    def is_over(self) -> bool:
        """Whether so many evaluations have found nothing better; see `patience`."""
        patience = self._settings.patience
        return patience is not None and self.notes.get("without_better", 0) >= patience

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
        epoch = step / self.steps_per_epoch
        figures = {"dev/loss": loss / max(int(dev.rows.label_counts.sum()), 1)}
        if isinstance(task, TextEmbedding):
            size, count = self._settings.batch_size, len(dev.examples)
            figures["dev/loss"] = loss_of_examples(
                task, torch.from_numpy(outputs), dev.rows, count, size
            )
        figures |= {f"dev/{name}": value for name, value in metrics.items()}
        self._keep_the_best(epoch, figures, predictions, outputs)
        if self._keeps_outputs and figures["dev/loss"] < self.notes.get("lowest_loss", math.inf):
            self.notes["lowest_loss"] = figures["dev/loss"]
            write_weights(self._folder / FOLD_OUTPUTS, {"outputs": torch.from_numpy(outputs)})
        return figures | {"dev/epoch": epoch}

    def _keep_the_best(
        self,
        epoch: float,
        figures: dict[str, float],
        predictions: Sequence[Mapping[str, Any]],
        outputs: FloatArray,
    ) -> None:
        """Keeps what the best evaluation so far has found, and counts those without a better."""
        selecting = self._settings.evaluation.metric or self._task.criterion
        height = figures[f"dev/{selecting}"]
        height = -height if less_is_better(f"dev_{selecting}") else height
        best = self.notes.get("best")
        before = math.nan if best is None else best.get("height", best["score"])
        is_better = math.isnan(before) or height > before
        if best is not None and self._settings.decisions.thresholds and height == before:
            # Of a rare label F1 may be 0 after every epoch, until it has a threshold of its own.
            is_better = figures["dev/loss"] < best["figures"]["dev/loss"]
        self.notes["without_better"] = self.notes.get("without_better", 0) + 1
        if is_better:
            self.notes["without_better"] = 0
            self.notes["best"] = {
                "epoch": int(epoch) if epoch.is_integer() else round(epoch, 4),
                "score": figures[f"dev/{self._task.criterion}"],
                "height": height,
                "figures": figures,
            }
            write_weights(self._folder / BEST_WEIGHTS, self._model.state_dict())
            if self._settings.decisions.changed:
                answers = {"outputs": torch.from_numpy(outputs)}
                write_weights(self._folder / BEST_OUTPUTS, answers)
            lines = "".join(json.dumps(prediction) + "\n" for prediction in predictions)
            write_atomically(self._folder / BEST_PREDICTIONS, lines)


def write_weights(path: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """Writes weights beside the file's name and renames it."""
    with atomic_write(path) as beside:
        save_file({name: weight.detach().cpu() for name, weight in weights.items()}, beside)
