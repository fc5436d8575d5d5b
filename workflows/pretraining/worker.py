"""Pre-training in a worker: the rows, the losses and the held-out evaluation of a run."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from bert_core.adaptation import StartModel, load_start_model, train_new_rows
from bert_core.config import ModelConfig, ModernConfig, training_flops
from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder
from bert_core.pretraining import (
    SUM_NAMES,
    PretrainingEvaluation,
    TokenTeacher,
    compute_loss,
    evaluate_pretraining,
)
from bert_core.settings import Objective, RowSettings, metric_name
from bert_core.text.batches import BatchSource, Replay, StepBatches, rows_taken
from bert_core.text.collation import PretrainingBatch
from bert_core.text.masking import Vocabulary
from bert_core.text.shards import TokenShards, heldout_bytes_per_token, open_shards, read_index
from bert_core.tokenizer import load_tokenizer
from bert_core.training.checkpoint import load_checkpoint
from bert_core.training.loop import StepResult, TrainingState, compiled
from bert_core.training.optimization import create_optimizer, linear_schedule, stable_schedule
from workflows.clusters.workers import Worker
from workflows.pretraining.settings import PretrainSettings, out_of_memory_remedy
from workflows.training.run import Backend, RunParts, backend_of

_COUNTED_ROWS = 2048
"""Rows in which [SEP] is counted for the unigram baseline of next tokens."""


def open_pretraining(
    settings: dict[str, Any],
    shards: Path,
    start: Path | None,
    worker: Worker,
    folder: Path,
    *,
    teacher: Path | None = None,
) -> RunParts:
    """The parts of a run from the settings that its driver sent as JSON."""
    parsed = PretrainSettings.model_validate(settings)
    return pretraining_parts(parsed, shards, worker, folder, start, teacher)


def pretraining_parts(
    settings: PretrainSettings,
    shards: Path,
    worker: Worker,
    folder: Path,
    start: Path | None = None,
    teacher: Path | None = None,
) -> RunParts:
    """Opens the shards and the start model, or draws one. Rows are cached in `folder`.

    `teacher` is the folder of the model that the settings name, if they do.
    """
    backend = backend_of(worker, settings)
    pinned = worker.device.type == "cuda"
    rows = PretrainingRows(settings, shards, backend, folder / "cache", pinned=pinned)
    other = settings.evaluation.other
    if other is not None:
        other = PretrainingRows(settings, other, backend, folder / "cache")
    torch.manual_seed(settings.seed)
    begun = initial_model(settings, load_tokenizer(shards), start, rows.token_counts(0))
    model = begun.model.to(worker.device)
    model.encoder.recomputes_layers = settings.recompute == "layers"
    state = TrainingState(model, create_optimizer(model, settings.optimizer))
    if any(phase.trains == "new_pieces" for phase in settings.phases):
        train_new_rows(begun, state.optimizer, lambda: trains_new_rows(settings, state.step))
    if settings.decay_from is not None:
        load_checkpoint(settings.decay_from, state)
        state.step = state.num_rows_seen = state.num_tokens_seen = 0
    return RunParts(
        settings=settings,
        backend=backend,
        state=state,
        batches=rows.batches,
        compute_loss=_in_its_phase(settings, state, _loss(settings, worker.device, teacher)),
        learning_rate=lambda step: learning_rate(settings, step),
        step_metrics=lambda result: step_metrics(result, settings.rows.objective),
        step_flops=lambda result: step_flops(model.config, result),
        evaluation=HeldOutEvaluation(settings, rows, model, backend, worker.device, other=other),
        evaluates_first=start is not None and not worker.through_xla,  # it has no weights yet
        total_steps=settings.total_steps,
        steps_left=lambda step: steps_left(settings, step),
        input_hashes={
            "data_hash": rows.shards.data_hash,
            "tokenizer_hash": rows.shards.tokenizer_hash,
        },
        out_of_memory_remedy=out_of_memory_remedy(settings),
    )


def trains_new_rows(settings: PretrainSettings, step: int) -> bool:
    """Whether the step after `step` finished ones is of a phase that trains new pieces alone."""
    return settings.phases[settings.phase_at(step)[0]].trains == "new_pieces"


def initial_model(
    settings: PretrainSettings,
    tokenizer: Tokenizer,
    start: Path | None,
    token_counts: np.ndarray | None = None,
) -> StartModel:
    """The model before the first step: that of a folder, or one drawn from torch's generator.

    A head that the folder lacks begins with what `token_counts` say.
    """
    if start is None:
        vocabulary = Vocabulary.from_tokenizer(tokenizer)
        config = settings.architecture(vocabulary.size, vocabulary.pad_id)
        drawn = Bert.for_pretraining(config, next_sentence="next_sentence" in settings.heads)
        return StartModel(drawn, settings.heads, first_new_row=0)
    model = settings.model
    return load_start_model(
        start,
        heads=settings.heads,
        changes=model.changes,
        num_positions=model.max_position_embeddings,
        extension=model.position_extension,
        tokenizer=tokenizer if settings.vocabulary == "extend" else None,
        token_counts=token_counts,
    )


def _loss(settings: PretrainSettings, device: torch.device, teacher: Path | None = None) -> Any:  # noqa: ANN401 - compiled or not
    if teacher is not None:
        _, model, _ = load_model_folder(teacher)
        model = model.to(device).eval().requires_grad_(False)
        return partial(compute_loss, teacher=TokenTeacher(model, settings.distillation))
    if settings.compile and device.type == "cuda":
        # The programs of an earlier run in this process count against the compiler's limit.
        torch.compiler.reset()
        return compiled(compute_loss, num_shapes=len(settings.phases))
    return compute_loss


def _in_its_phase(settings: PretrainSettings, state: TrainingState, loss: Any) -> Any:  # noqa: ANN401 - compiled or not
    """The loss with the rotary positions of the phase that the next step is of."""
    if all(phase.global_rope_theta is None for phase in settings.phases):
        return loss

    def of_phase(model: Bert, *batch: Any, **counts: Any) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ANN401 - those of the loss
        set_rope_theta(model, settings, settings.phase_at(state.step)[0])
        return loss(model, *batch, **counts)

    return of_phase


def set_rope_theta(model: Bert, settings: PretrainSettings, phase: int) -> None:
    """Gives rotary positions the base that they have in a phase; another block has none."""
    config, theta = model.config, settings.global_rope_theta_of(phase)
    if isinstance(config, ModernConfig) and config.global_rope_theta != theta:
        model.encoder.set_global_rope_theta(theta)


def learning_rate(settings: PretrainSettings, step: int) -> float:
    """The learning rate of the step after `step` finished ones: one schedule over all phases."""
    optimizer = settings.optimizer
    total = settings.total_steps
    warmup = settings.warmup_steps
    if optimizer.schedule == "wsd":
        decay = max(1, round(optimizer.decay_share * total))
        share = stable_schedule(step, total_steps=total, warmup_steps=warmup, decay_steps=decay)
    else:
        share = linear_schedule(step, total_steps=total, warmup_steps=warmup)
    return optimizer.peak_learning_rate * share


def steps_left(settings: PretrainSettings, step: int) -> float:
    """The steps after `step` finished ones, in steps of the last one's size.

    A step of more and longer rows counts as so many times their slots.
    """
    pairs = zip(settings.phases, settings.batches, strict=True)
    slots = [batch.global_batch_size * phase.sequence_length for phase, batch in pairs]
    own = slots[settings.phase_at(max(step - 1, 0))[0]]
    left, end = 0.0, 0
    for phase, each in zip(settings.phases, slots, strict=True):
        end += phase.steps
        left += min(phase.steps, max(0, end - step)) * each / own
    return left


def step_metrics(result: StepResult, objective: Objective) -> dict[str, float]:
    """The metrics of one step by name: means over the global batch."""
    sums = result.sums.tolist()
    predictions, rows = max(sums[2], 1), max(sums[5], 1)
    metrics = {
        "train/loss": float(result.loss),
        f"train/{metric_name(objective, 'masked_token_loss')}": sums[0] / predictions,
        f"train/{metric_name(objective, 'masked_token_accuracy')}": sums[1] / predictions,
        "train/learning_rate": result.learning_rate,
        "train/gradient_norm": float(result.gradient_norm),
    }
    if len(sums) > len(SUM_NAMES):
        metrics["train/loss_to_teacher"] = sums[len(SUM_NAMES)] / predictions
    if sums[5]:
        metrics["train/next_sentence_loss"] = sums[3] / rows
        metrics["train/next_sentence_accuracy"] = sums[4] / rows
    return metrics


def step_flops(config: ModelConfig, result: StepResult) -> float:
    """FLOPs of encoder, predicted tokens and pairs, forward and backward."""
    sums = result.sums.tolist()
    return training_flops(
        config,
        num_tokens=int(result.num_real_tokens),
        sum_of_squared_lengths=result.sum_of_squared_lengths,
        num_predictions=int(sums[2]),
        num_rows=int(sums[5]),
        num_read=int(sums[2] + sums[5]),
    )


class PretrainingRows:
    """The rows of a run: its global batches and its held-out ones."""

    def __init__(
        self,
        settings: PretrainSettings,
        folder: Path,
        backend: Backend,
        cache: Path,
        *,
        pinned: bool = False,
    ) -> None:
        self.folder = folder
        self.shards = open_shards(folder, "train")
        self.bytes_per_token = heldout_bytes_per_token(read_index(folder))
        self.vocabulary = Vocabulary.from_tokenizer(load_tokenizer(folder))
        self._replay: Replay | None = None
        if settings.replay is not None:
            self._replay = Replay(open_shards(settings.replay, "train"), settings.replay_share)
        self._settings = settings
        self._backend = backend
        self._cache = cache
        self._pinned = pinned

    def batches(self, step: int) -> Iterator[StepBatches]:
        """The global batches from this step on, through all phases."""
        settings = self._settings
        while step < settings.total_steps:
            number, first = settings.phase_at(step)
            left = first + settings.phases[number].steps - step
            source = self._training(number)
            steps = source.steps(step - first, *self._backend.share(), pinned=self._pinned)
            yield from islice(steps, left)
            step += left

    def heldout(self, phase: int) -> Iterator[PretrainingBatch]:
        """This worker's share of the held-out rows: the same ones in all phases of one length."""
        heldout = open_shards(self.folder, "heldout")
        source = self._source(heldout, phase, self._settings.heldout_rows, name=0)
        return source.epoch_zero(self._settings.evaluation.num_rows, *self._backend.share())

    def token_counts(self, phase: int) -> np.ndarray:
        """How often each token is predicted in training, [vocabulary]."""
        counts = np.load(self.folder / "token_counts.npy", allow_pickle=False)
        if self._settings.rows.objective == "left_to_right":
            share = self._training(phase).separator_share(_COUNTED_ROWS)
            counts[self.vocabulary.sep_id] = round(counts.sum() * share / (1 - share))
        return counts

    def _training(self, phase: int) -> BatchSource:
        """The batches of a phase, which go on in the rows of those before it of its length.

        A run that lets a run's rate fall has an order of its own: it would begin with the rows
        that the other began with, and their masks.
        """
        settings = self._settings
        first = settings.first_of_its_rows(phase)
        before = zip(settings.batches[first:phase], settings.phases[first:phase], strict=True)
        return self._source(
            self.shards,
            phase,
            settings.rows_of(phase),
            name=first if settings.decay_from is None else f"decay {first}",
            first_row=sum(rows_taken(batch, each.steps) for batch, each in before),
        )

    def _source(
        self,
        shards: TokenShards,
        phase: int,
        rows: RowSettings,
        *,
        name: int | str,
        first_row: int = 0,
    ) -> BatchSource:
        return BatchSource(
            shards,
            self.vocabulary,
            rows=rows,
            batch=self._settings.batches[phase],
            sequence_length=self._settings.phases[phase].sequence_length,
            seed=self._settings.seed,
            phase=name,
            first_row=first_row,
            static_shapes=self._backend.static_shapes,
            cache_folder=self._cache,
            replay=self._replay if shards is self.shards else None,
        )


class HeldOutEvaluation:
    """Measures the model on held-out rows every so many steps."""

    summary = ""
    is_over = False

    def __init__(
        self,
        settings: PretrainSettings,
        rows: PretrainingRows,
        model: Bert,
        backend: Backend,
        device: torch.device,
        *,
        other: PretrainingRows | None = None,
    ) -> None:
        self.notes: dict[str, Any] = {}
        self._settings = settings
        self._rows = {"heldout": rows} | ({} if other is None else {"other": other})
        self._model = model
        self._backend = backend
        self._device = device

    def is_due(self, step: int) -> bool:
        """Every so many steps."""
        return step % self._settings.evaluation.every_steps == 0

    def evaluate(self, step: int) -> dict[str, float]:
        """The figures of `measure` that there are, by their names in the journal.

        With bits per byte, which compare across vocabularies: the mean loss of a token over the
        bytes that one stands for.
        """
        objective = self._settings.rows.objective
        figures: dict[str, float] = {}
        for corpus, rows in self._rows.items():
            measured = self.measure(step, rows)
            for name, value in asdict(measured).items():
                if value is not None:
                    figures[f"{corpus}/{metric_name(objective, name)}"] = value
            if rows.bytes_per_token is not None:
                bits = measured.masked_token_loss / math.log(2)
                figures[f"{corpus}/bits_per_byte"] = bits / rows.bytes_per_token
        return figures

    def measure(self, step: int, rows: PretrainingRows) -> PretrainingEvaluation:
        """Measures the model on the rows of the phase that `step` ended in, or begins with."""
        last = min(step, self._settings.total_steps) - 1
        number, _ = self._settings.phase_at(max(last, 0))
        set_rope_theta(self._model, self._settings, number)
        loss, dtype = self._backend.evaluation_loss(compute_loss)
        return evaluate_pretraining(
            self._model,
            rows.heldout(number),
            loss,
            device=self._device,
            token_counts=rows.token_counts(number),
            autocast_dtype=dtype,
        )
