"""Fine-tune the encoder of `benchmarks.encoder_run` on GLUE tasks, with dev figures.

As `workflows/finetune.py` does, without Ray and scikit-learn. A stopped run resumes from its last
checkpoint, to the same weights.
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.encoder_run.pretraining import fresh_model
from benchmarks.encoder_run.recipe import Clock, Recipe, duration
from bert_core.errors import UserError
from bert_core.evaluation.intervals import NUM_RESAMPLES, percentile_interval, resampled
from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder
from bert_core.settings import FinetuningOptimizerSettings
from bert_core.tasks.catalog import GLUE, GlueTask
from bert_core.tasks.classification import Text
from bert_core.tasks.encoded_rows import EncodedRows, TaskBatchSource, layout_for
from bert_core.tasks.metrics import FloatArray
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.task import add_task_head, task_loss
from bert_core.text.masking import Vocabulary
from bert_core.training.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from bert_core.training.loop import TrainingState, train
from bert_core.training.optimization import create_optimizer, linear_schedule

FOLDERS = {
    "cola": "CoLA",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "qqp": "QQP",
    "qnli": "QNLI",
    "rte": "RTE",
    "wnli": "WNLI",
}
"""Tasks of two labels, and what their folders are called as published."""
ARMS = ("pre-trained", "untrained")
"""The encoder as it came out of pre-training, and as it went in; all else is alike."""
MAX_TOKENS = 8192
"""Of one forward pass; it changes no result."""
EVERY_STEPS = 20
"""Steps between two looks at the clock."""

Figures = dict[str, float]


@dataclass(frozen=True)
class GlueData:
    """A task with its examples of train and dev, as rows for one vocabulary."""

    name: str
    task: GlueTask
    train: EncodedRows
    dev: EncodedRows
    dev_examples: Sequence[Text]

    @property
    def gold(self) -> str:
        """The right answers of dev, the number of a label for each."""
        return letters([str(example.answer) for example in self.dev_examples], self.task)


class Finetuning:
    """An encoder's folder, and how it is fine-tuned."""

    def __init__(self, recipe: Recipe, encoder: Path, device: torch.device, folder: Path) -> None:
        """Checkpoints of what is under way go into `folder`."""
        self.recipe, self.encoder, self.device = recipe, encoder, device
        self.folder = folder
        self.dtype = torch.bfloat16 if device.type == "cuda" else None

    def read(self, name: str, glue: Path, num_examples: int | None) -> GlueData:
        """The data of a task; of train the first `num_examples` in a drawn order, or all.

        Raises `UserError` where they are not there.
        """
        data = glue / FOLDERS[name]
        if not data.is_dir():
            raise UserError("no such task", str(data), f"--glue has the folder {data.name}")
        _, _, tokenizer = load_model_folder(self.encoder)
        longest = min(GLUE[name].max_length, self.recipe.sequence_length)
        task = GLUE[name].model_copy(update={"max_length": longest})
        train_examples, dev = task.examples(data, "train"), task.examples(data, "dev")
        order = np.random.default_rng(0).permutation(len(train_examples))[:num_examples]
        chosen = [train_examples[index] for index in np.sort(order)]
        rows = [task.encode(each, tokenizer) for each in (chosen, dev)]
        return GlueData(name, task, *rows, dev_examples=dev)

    def run(
        self, data: GlueData, arm: str, seed: int, *, epochs: int, clock: Clock, every: float
    ) -> dict[str, Any] | None:
        """Dev figures after each epoch, and the predictions after the last, one letter each.

        None where the time of this call was up before. A checkpoint every so many seconds.
        """
        label = f"{data.name}, {arm}, seed {seed}"
        checkpoints = self.folder / label.replace(", ", "-").replace(" ", "-")
        model, state, notes = self._begin(data, arm, seed, checkpoints)
        source = self._source(data, model, seed)
        total = epochs * source.steps_per_epoch
        optimizer = self._optimizer_settings()
        warmup = round(optimizer.warmup_share * total)
        begin = saved = time.monotonic()
        first = state.step
        for result in train(
            state,
            source.steps(state.step),
            partial(task_loss, data.task),
            total_steps=total,
            schedule=lambda step: (
                optimizer.peak_learning_rate
                * linear_schedule(step, total_steps=total, warmup_steps=warmup)
            ),
            max_gradient_norm=optimizer.max_gradient_norm,
            device=self.device,
            autocast_dtype=self.dtype,
            seed=seed,
        ):
            if result.step % source.steps_per_epoch == 0:
                figures, notes["predictions"] = self._measure(data, model)
                notes["epochs"].append(figures)
            elif result.step % EVERY_STEPS:
                continue
            now = time.monotonic()
            left = (now - begin) * (total - result.step) / (result.step - first)
            clock.say(f"{label}  {describe(notes, result.step, total)}  ETA {duration(left)}")
            stopped = clock.is_over() and result.step < total
            if stopped or now - saved >= every:
                save_checkpoint(checkpoints, state, extra={"notes": notes}, files={}, keep=1)
                saved = time.monotonic()
            if stopped:
                return None
        shutil.rmtree(checkpoints, ignore_errors=True)
        print(f"{label}  {describe(notes, total, total)}", flush=True)
        return {"seed": seed, **notes}

    def _begin(
        self, data: GlueData, arm: str, seed: int, checkpoints: Path
    ) -> tuple[Bert, TrainingState, dict[str, Any]]:
        model = self._encoder(arm)
        torch.manual_seed(seed)  # before the head is drawn
        add_task_head(model, data.task)
        model = model.to(self.device)
        state = TrainingState(model, create_optimizer(model, self._optimizer_settings()))
        path, _ = newest_checkpoint(checkpoints)
        if path is None:
            return model, state, {"epochs": [], "predictions": ""}
        return model, state, load_checkpoint(path, state).extra["notes"]

    def _encoder(self, arm: str) -> Bert:
        changes = {"hidden_dropout_prob": self.recipe.finetuning_dropout}
        _, trained, tokenizer = load_model_folder(self.encoder, changes=changes)
        if arm == "pre-trained":
            return trained
        fresh = fresh_model(self.recipe, Vocabulary.from_tokenizer(tokenizer))
        trained.load_state_dict(fresh.state_dict())
        return trained

    def _source(self, data: GlueData, model: Bert, seed: int) -> TaskBatchSource:
        return TaskBatchSource(
            data.train,
            batch_size=self.recipe.finetuning_rows,
            max_tokens=MAX_TOKENS,
            seed=seed,
            layout=layout_for(model.config, self.device, self.dtype, training=True),
        )

    def _optimizer_settings(self) -> FinetuningOptimizerSettings:
        return FinetuningOptimizerSettings(peak_learning_rate=self.recipe.finetuning_learning_rate)

    def _measure(self, data: GlueData, model: Bert) -> tuple[Figures, str]:
        outputs, _ = compute_all_outputs(
            data.task,
            model,
            data.dev,
            device=self.device,
            max_tokens=MAX_TOKENS,
            autocast_dtype=self.dtype,
        )
        predictions = data.task.decode(outputs, data.dev, data.dev_examples)
        found = letters([prediction["label"] for prediction in predictions], data.task)
        return two_label_figures(data.gold, found), found


def letters(labels: Sequence[str], task: GlueTask) -> str:
    """A letter for each label, its number in the task."""
    return "".join(str(task.labels.index(label)) for label in labels)


def two_label_figures(gold: str, found: str) -> Figures:
    """Accuracy, F1 of label 1 and Matthews' correlation, as `bert_core.tasks.metrics` has them.

    By counting alone, since scikit-learn may not be where the GPU is. What is undefined is 0.
    """
    every_example_once = np.ones((1, len(gold)))
    weighted = _weighted_figures(gold, found, every_example_once)
    return {name: float(values[0]) for name, values in weighted.items()}


def compared(stage: Mapping[str, Any]) -> dict[str, float] | None:
    """Means of the criterion over the seeds of both arms, and their difference with its interval.

    The interval is that of the paired bootstrap over the examples of dev, 95 %; None before both
    arms have a seed in common.
    """
    runs = {arm: {run["seed"]: run["predictions"] for run in stage["arms"][arm]} for arm in ARMS}
    trained, untrained = (runs[arm] for arm in ARMS)
    seeds = sorted(trained.keys() & untrained.keys())
    if not seeds:
        return None

    def mean(found: Mapping[int, str], weights: FloatArray) -> FloatArray:
        figures = [_weighted_figures(stage["gold"], found[seed], weights) for seed in seeds]
        return np.mean([figure[stage["criterion"]] for figure in figures], axis=0)

    def both(weights: FloatArray) -> dict[str, FloatArray]:
        left, right = mean(trained, weights), mean(untrained, weights)
        return {"pre-trained": left, "untrained": right, "difference": left - right}

    whole = both(np.ones((1, len(stage["gold"]))))
    drawn = resampled(both, len(stage["gold"]), num_resamples=NUM_RESAMPLES, seed=0)
    interval = percentile_interval(float(whole["difference"][0]), drawn["difference"])
    figures = {name: float(values[0]) for name, values in whole.items()}
    return figures | {"low": interval.low, "high": interval.high}


def _weighted_figures(gold: str, found: str, weights: FloatArray) -> dict[str, FloatArray]:
    """Each figure for S ways to weight the examples, [S]; weights are [S, N]."""
    pairs = 2 * np.array([*gold], dtype=int) + np.array([*found], dtype=int)
    right_negative, wrong_positive, wrong_negative, right_positive = (
        weights @ (pairs == pair) for pair in range(4)
    )
    total = weights.sum(1)
    positive, called = right_positive + wrong_negative, right_positive + wrong_positive
    spread = positive * called * (total - positive) * (total - called)
    covariance = right_positive * right_negative - wrong_positive * wrong_negative
    return {
        "accuracy": (right_negative + right_positive) / total,
        "f1": _divided(2 * right_positive, positive + called),
        "matthews": _divided(covariance, np.sqrt(spread)),
    }


def _divided(above: FloatArray, below: FloatArray) -> FloatArray:
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def describe(notes: dict[str, Any], step: int, total: int) -> str:
    """How far it is, and the last figures on dev."""
    last = notes["epochs"][-1] if notes["epochs"] else {}
    figures = ", ".join(f"{name} {value:.3f}" for name, value in last.items())
    return f"step {step:,}/{total:,}" + (f"  dev {figures}" if figures else "")
