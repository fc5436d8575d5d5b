"""Compare fine-tuning results with transformers' Trainer: same seeds and settings, dev metrics.

`python -m benchmarks.finetuning_quality --task mrpc --data DIR --model FOLDER --json FILE`. Each
finished training is added to the file. The same command resumes a stopped one from its last
checkpoint in --work, which also holds dev predictions until both arms of a seed can be compared by
example.
"""

import argparse
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.finetuning_arms import (
    Recipe,
    our_training,
    their_outputs,
    their_trainer,
    write_start,
)
from benchmarks.measurement import surroundings
from benchmarks.results import run_program, started_results, write_results
from bert_core.evaluation.intervals import compare, mean_difference
from bert_core.evaluation.outcomes import resampling_units
from bert_core.model_folder import load_model_folder
from bert_core.settings import FinetuningOptimizerSettings
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.task import FloatArray, Task
from bert_core.training.checkpoint import save_checkpoint

ARMS = ("ours", "transformers")
PROGRESS_SECONDS = 60.0

Measure = Callable[[int, Callable[[], FloatArray]], None]
"""Evaluates on dev: an arm calls it after each epoch, with its number from 1."""


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.finetuning_quality", description=__doc__
    )
    parser.add_argument("--task", choices=tuple(TASKS), required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder with train and dev")
    parser.add_argument("--model", type=Path, required=True, help="an encoder's model folder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32, help="examples per step")
    parser.add_argument("--peak_learning_rate", type=float, default=3e-5)
    parser.add_argument("--examples", type=int, default=None, help="drawn from train; default all")
    parser.add_argument("--dev_examples", type=int, default=None, help="first examples of dev")
    parser.add_argument("--checkpoint_every", type=int, default=100, help="in steps")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, required=True, help="results, continued if present")
    parser.add_argument("--work", type=Path, required=True, help="folder for models, predictions")
    return parser.parse_args(arguments)


class Arms:
    """The data and settings of both arms, and their results."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device(options.device)
        _, _, tokenizer = load_model_folder(options.model)
        task = TASKS[options.task]
        train = task.examples(options.data, "train")
        if options.examples is not None:
            chosen = np.random.default_rng(0).permutation(len(train))[: options.examples]
            train = [train[index] for index in chosen]
        self.task: Task = task.with_labels(train)
        self.dev = task.examples(options.data, "dev")[: options.dev_examples]
        self.train_rows: EncodedRows = self.task.encode(train, tokenizer)
        self.dev_rows: EncodedRows = self.task.encode(self.dev, tokenizer)
        self.results = self._results_so_far(len(train))

    def _results_so_far(self, num_train: int) -> dict[str, Any]:
        """The results in the file. Raises `UserError` if they have other settings."""
        left_out = ("json", "work", "data", "model", "seeds", "checkpoint_every")
        new = {
            "benchmark": "finetuning_quality",
            "settings": {k: v for k, v in vars(self.options).items() if k not in left_out},
            "examples": {"train": num_train, "dev": len(self.dev)},
            "criterion": self.task.criterion,
            "surroundings": surroundings(self.device),
            "trainings": [],
            "compared": {},
        }
        return started_results(self.options.json, new, ["settings", "examples"])

    def run(self) -> None:
        """Runs the missing trainings, seed by seed, and records the metrics."""
        for seed in self.options.seeds:
            for arm in ARMS:
                if not any((t["arm"], t["seed"]) == (arm, seed) for t in self.results["trainings"]):
                    self.results["trainings"].append(self._train(arm, seed))
                    self._write()
            self._compare(seed)
            self._write()

    def _train(self, arm: str, seed: int) -> dict[str, Any]:
        folder = self.options.work / f"{self.options.task}-start-{seed}"
        write_start(self.options.task, self.task, self.options.model, folder, seed)
        steps_per_epoch = -(-self.train_rows.num_items // self.options.batch)
        recipe = Recipe(
            FinetuningOptimizerSettings(peak_learning_rate=self.options.peak_learning_rate),
            batch_size=self.options.batch,
            total_steps=self.options.epochs * steps_per_epoch,
            seed=seed,
            device=self.device,
        )
        training = Training(self.options.work / f"{self.options.task}-{arm}-{seed}")

        def measure(epoch: int, outputs: Callable[[], FloatArray]) -> None:
            predictions = self.task.decode(outputs(), self.dev_rows, self.dev)
            figures = dict(self.task.metrics(predictions, self.dev))
            text = json.dumps(predictions)
            self._predictions(arm, seed).write_text(text, encoding="utf-8")
            training.keep(epoch, figures)
            print(f"{arm} seed {seed} epoch {epoch}: {figures}", flush=True)

        train = _train_ours if arm == "ours" else _train_theirs
        progress = Progress(f"{arm} seed {seed}", recipe.total_steps)
        train(self, folder, recipe, training.folder, measure, progress)
        epochs = training.epochs
        shutil.rmtree(training.folder)
        return {"arm": arm, "seed": seed, "epochs": epochs}

    def _predictions(self, arm: str, seed: int) -> Path:
        return self.options.work / f"{self.options.task}-{arm}-{seed}.json"

    def _compare(self, seed: int) -> None:
        """The paired bootstrap over dev of this seed's two models, after the last epoch."""
        if str(seed) in self.results["compared"]:
            return
        paths = [self._predictions(arm, seed) for arm in ("transformers", "ours")]
        if not all(path.exists() for path in paths):
            print(f"seed {seed}: no predictions left, so not compared by example")
            return
        theirs, ours = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
        found = compare(self.task, theirs, ours, self.dev, groups=resampling_units(self.dev))
        self.results["compared"][str(seed)] = {
            name: asdict(each.difference) for name, each in found.metrics.items()
        }

    def _write(self) -> None:
        write_results(self.results | {"summary": summarize(self.results)}, self.options.json)


class Training:
    """The folder of a running training: checkpoints, and the metrics of finished epochs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "epochs.json"

    @property
    def epochs(self) -> list[dict[str, float]]:
        """The metrics of each epoch."""
        return list(self._figures().values())

    def keep(self, epoch: int, figures: dict[str, float]) -> None:
        """Writes the metrics of an epoch, from 1; repeated after a kill."""
        kept = self._figures() | {str(epoch): figures}
        write_results(dict(sorted(kept.items(), key=lambda pair: int(pair[0]))), self._path)

    def _figures(self) -> dict[str, dict[str, float]]:
        return json.loads(self._path.read_text(encoding="utf-8")) if self._path.exists() else {}


class Progress:
    """Prints progress and the estimated time left, at intervals."""

    def __init__(self, name: str, total_steps: int) -> None:
        self._name, self._total_steps = name, total_steps
        self._first: int | None = None
        self._begin = self._said = time.monotonic()

    def reach(self, step: int) -> None:
        """Records the number of finished steps; those before the first call are not timed."""
        if self._first is None:
            self._first = step - 1
        now = time.monotonic()
        if now - self._said > PROGRESS_SECONDS:
            self._said = now
            left = (now - self._begin) * (self._total_steps - step) / (step - self._first)
            print(f"{self._name}: step {step:,} of {self._total_steps:,}, ", end="")
            print(f"{left / 60:.0f} min left", flush=True)


def _train_ours(
    arms: Arms, folder: Path, recipe: Recipe, work: Path, measure: Measure, progress: Progress
) -> None:
    model, state, steps = our_training(arms.task, arms.train_rows, folder, recipe, work)
    for result in steps:
        progress.reach(result.step)
        epoch, within = divmod(result.step, recipe.total_steps // arms.options.epochs)
        if within == 0:
            measure(
                epoch,
                lambda: compute_all_outputs(
                    arms.task,
                    model,
                    arms.dev_rows,
                    device=arms.device,
                    autocast_dtype=recipe.dtype,
                )[0],
            )
        if result.step % arms.options.checkpoint_every == 0:
            save_checkpoint(work, state, extra={}, files={}, keep=1)


def _train_theirs(
    arms: Arms, folder: Path, recipe: Recipe, work: Path, measure: Measure, progress: Progress
) -> None:
    from transformers import TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint

    trainer = their_trainer(
        arms.task,
        arms.train_rows,
        folder,
        recipe,
        fastest=False,
        checkpoints=work,
        checkpoint_every=arms.options.checkpoint_every,
    )

    def measure_at_end_of_epoch(step: int) -> None:
        epoch, within = divmod(step, recipe.total_steps // arms.options.epochs)
        if step and within == 0:
            measure(epoch, lambda: their_outputs(arms.task, arms.dev_rows, trainer))

    class Watch(TrainerCallback):
        def on_train_begin(self, *given: Any, **_: Any) -> None:  # noqa: ANN401
            measure_at_end_of_epoch(given[1].global_step)  # it was stopped before it was measured

        def on_step_end(self, *given: Any, **_: Any) -> None:  # noqa: ANN401
            progress.reach(given[1].global_step)

        def on_epoch_end(self, *given: Any, **_: Any) -> None:  # noqa: ANN401
            measure_at_end_of_epoch(given[1].global_step)

    trainer.add_callback(Watch())
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(work)))


def summarize(results: dict[str, Any]) -> dict[str, Any]:
    """For each metric after the last epoch: both arms' means, and their difference with interval.

    The interval is Student's over the seeds that both arms have, None for fewer than two; ours less
    theirs.
    """
    figures = {(t["arm"], t["seed"]): t["epochs"][-1] for t in results["trainings"]}
    seeds = sorted(seed for arm, seed in figures if arm == "ours")
    seeds = [seed for seed in seeds if ("transformers", seed) in figures]
    summary: dict[str, Any] = {"seeds": seeds}
    for name in figures["ours", seeds[0]] if seeds else ():
        ours, theirs = ([figures[arm, seed][name] for seed in seeds] for arm in ARMS)
        summary[name] = {
            "ours": float(np.mean(ours)),
            "transformers": float(np.mean(theirs)),
            "difference": _interval(theirs, ours),
        }
    return summary


def _interval(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float] | None:
    return asdict(mean_difference(theirs, ours)) if len(ours) > 1 else None


def main() -> None:
    """Runs what is missing and prints the summary."""
    options = parse_arguments()
    torch.set_flush_denormal(True)
    options.work.mkdir(parents=True, exist_ok=True)
    arms = Arms(options)
    arms.run()
    print(json.dumps(summarize(arms.results), indent=1))


if __name__ == "__main__":
    run_program(main)
