"""Compare training of embeddings with sentence-transformers' trainer: quality and speed.

`python -m benchmarks.embedding --task squad_search --data DIR --model FOLDER --json FILE`: both
start from one model, learn the same pairs in batches of one size for as many steps with one recipe,
seed by seed and in turns; the vectors of both are measured alike on dev. Each finished training is
added to the file, and the same command does what is missing.
"""

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measurement import surroundings
from benchmarks.results import run_program, started_results, write_results
from bert_core.errors import UserError
from bert_core.evaluation.intervals import compare, mean_difference
from bert_core.evaluation.outcomes import resampling_units
from bert_core.model_folder import load_model_folder
from bert_core.settings import FinetuningOptimizerSettings
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.coupled_batches import CoupledBatchSource, told_steps, vector_loss
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.task import FloatArray, add_task_head
from bert_core.tasks.text_embedding import RelatedTexts, TextEmbedding
from bert_core.training.loop import TrainingState, train
from bert_core.training.optimization import create_optimizer, linear_schedule

ARMS = ("ours", "sentence-transformers")
CPU = torch.device("cpu")
_PROGRESS_STEPS = 20


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    names = [name for name, task in TASKS.items() if isinstance(task, TextEmbedding)]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embedding", description=__doc__)
    parser.add_argument("--task", choices=names, default="squad_search")
    parser.add_argument("--data", required=True, help="folder with train and dev, or docs://")
    parser.add_argument("--options", type=json.loads, default={}, help="of the task, as JSON")
    parser.add_argument("--model", type=Path, required=True, help="folder of a model to start from")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--examples", type=int, default=3200, help="pairs drawn from train")
    parser.add_argument("--dev_examples", type=int, default=None, help="first pairs of dev")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32, help="pairs per step")
    parser.add_argument("--max_length", type=int, default=256, help="longest row, in tokens")
    parser.add_argument("--max_tokens", type=int, default=8192, help="of one forward pass of ours")
    parser.add_argument("--peak_learning_rate", type=float, default=2e-5)
    parser.add_argument("--json", type=Path, required=True, help="results, continued if present")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Trains what is missing and writes the results."""
    options = parse_arguments(arguments)
    Comparison(options).run()


class Comparison:
    """The data and the recipe of both arms, and their results."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        task = TASKS[options.task]
        assert isinstance(task, TextEmbedding)
        given = options.options | {"max_length": options.max_length}
        self.task = task = type(task).model_validate(task.model_dump() | given)
        if task.kind not in ("pairs", "scores"):
            raise UserError(f"no peer for {task.kind}", "--options", "take pairs or scores")
        every = task.examples(options.data, "train")
        chosen = np.random.default_rng(0).permutation(len(every))[: options.examples]
        self.train: list[RelatedTexts] = [every[index] for index in chosen]
        self.dev = task.examples(options.data, "dev")[: options.dev_examples]
        config, _, self.tokenizer = load_model_folder(options.model)
        if options.max_length > config.max_position_embeddings:
            what = f"rows of {options.max_length} tokens"
            remedy = f"give at most {config.max_position_embeddings}"
            raise UserError(what, "--max_length", remedy)
        self.dev_rows = task.encode(self.dev, self.tokenizer)
        left_out = ("json", "data", "model", "seeds")
        new = {
            "benchmark": "embedding",
            "settings": {k: v for k, v in vars(options).items() if k not in left_out and v != {}},
            "examples": {"train": len(self.train), "dev": len(self.dev)},
            "passages": len({example.texts[1] for example in self.dev}),
            "criterion": task.criterion,
            "model": options.model.resolve().parent.name,
            "surroundings": surroundings(CPU),
            "trainings": [],
            "compared": {},
        }
        self.results = started_results(options.json, new, ["settings", "examples"])

    def run(self) -> None:
        """Measures the model as it comes, then trains both arms for each seed, in turns."""
        if "start" not in self.results:
            self.results["start"] = self._measured(self._start_vectors())[1]
            self._write()
        for number, seed in enumerate(self.options.seeds):
            if str(seed) in self.results["compared"]:
                continue
            predictions = {}
            for arm in ARMS if number % 2 else ARMS[::-1]:
                vectors, seconds = self._train(arm, seed)
                predictions[arm], metrics = self._measured(vectors)
                rate = self.options.epochs * len(self.train) / seconds
                figures = {"arm": arm, "seed": seed, "metrics": metrics, "examples_a_second": rate}
                print(json.dumps(figures), flush=True)
                self.results["trainings"].append(figures)
            found = compare(
                *(self.task, predictions[ARMS[1]], predictions[ARMS[0]], self.dev),
                groups=resampling_units(self.dev),
            )
            self.results["compared"][str(seed)] = {
                name: asdict(each.difference) for name, each in found.metrics.items()
            }
            self._write()

    def _measured(self, vectors: FloatArray) -> tuple[list[dict[str, Any]], dict[str, float]]:
        predictions = self.task.decode(vectors, self.dev_rows, self.dev)
        return predictions, self.task.metrics(predictions, self.dev)

    def _start_vectors(self) -> FloatArray:
        _, model, _ = load_model_folder(self.options.model)
        add_task_head(model, self.task)
        return compute_all_outputs(self.task, model, self.dev_rows, device=CPU)[0]

    def _train(self, arm: str, seed: int) -> tuple[FloatArray, float]:
        """The vectors of dev after training, and the seconds that it took."""
        return self._train_ours(seed) if arm == "ours" else self._train_theirs(seed)

    def _train_ours(self, seed: int) -> tuple[FloatArray, float]:
        options = self.options
        torch.manual_seed(seed)
        _, model, _ = load_model_folder(options.model)
        add_task_head(model, self.task)
        begin = time.perf_counter()
        rows = self.task.encode(self.train, self.tokenizer)
        source = CoupledBatchSource(
            self.task,
            rows,
            len(self.train),
            batch_size=options.batch,
            max_tokens=options.max_tokens,
            seed=seed,
            layout="packed",
        )
        total_steps = options.epochs * source.steps_per_epoch
        optimizer = FinetuningOptimizerSettings(peak_learning_rate=options.peak_learning_rate)
        warmup = round(optimizer.warmup_share * total_steps)
        schedule = partial(linear_schedule, total_steps=total_steps, warmup_steps=warmup)
        told = told_steps(
            source.steps(0), self.task, model, first=0, device=CPU, autocast_dtype=None, seed=seed
        )
        for result in train(
            TrainingState(model, create_optimizer(model, optimizer)),
            told,
            partial(vector_loss, self.task),
            total_steps=total_steps,
            schedule=lambda step: options.peak_learning_rate * schedule(step),
            max_gradient_norm=optimizer.max_gradient_norm,
            device=CPU,
            autocast_dtype=None,
            seed=seed,
        ):
            if result.step % _PROGRESS_STEPS == 0:
                print(f"ours, seed {seed}: step {result.step} of {total_steps}", flush=True)
        seconds = time.perf_counter() - begin
        return compute_all_outputs(self.task, model, self.dev_rows, device=CPU)[0], seconds

    def _train_theirs(self, seed: int) -> tuple[FloatArray, float]:
        from datasets import Dataset
        from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
        from sentence_transformers.sentence_transformer.losses import (
            CoSENTLoss,
            MultipleNegativesRankingLoss,
        )
        from sentence_transformers.sentence_transformer.training_args import (
            SentenceTransformerTrainingArguments,
        )

        options, optimizer = self.options, FinetuningOptimizerSettings()
        model = SentenceTransformer(str(options.model), device="cpu")
        model.max_seq_length = options.max_length
        columns = zip(*(example.texts[:2] for example in self.train), strict=True)
        firsts, others = map(list, columns)
        named: dict[str, list[Any]] = {"anchor": firsts, "positive": others}
        loss = MultipleNegativesRankingLoss
        if self.task.kind == "scores":
            named["score"] = [float(example.answer or 0) for example in self.train]
            loss = CoSENTLoss
        data = Dataset.from_dict(named)
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            trainer = SentenceTransformerTrainer(
                model=model,
                args=SentenceTransformerTrainingArguments(
                    output_dir=folder,
                    num_train_epochs=options.epochs,
                    per_device_train_batch_size=options.batch,
                    learning_rate=options.peak_learning_rate,
                    warmup_ratio=optimizer.warmup_share,
                    weight_decay=optimizer.weight_decay,
                    max_grad_norm=optimizer.max_gradient_norm,
                    lr_scheduler_type="linear",
                    seed=seed,
                    use_cpu=True,
                    save_strategy="no",
                    logging_strategy="no",
                    report_to=[],
                    disable_tqdm=True,
                ),
                train_dataset=data,
                loss=loss(model, scale=self.task.loss_scale),
            )
            trainer.train()
            seconds = time.perf_counter() - begin
        return self._their_vectors(model), seconds

    def _their_vectors(self, model: Any) -> FloatArray:  # noqa: ANN401 - a SentenceTransformer
        """The vectors of dev's texts, in the order of our rows."""
        texts = list(dict.fromkeys(text for example in self.dev for text in example.texts))
        return model.encode(texts, batch_size=32, convert_to_numpy=True)

    def _write(self) -> None:
        write_results(self.results | {"summary": summarize(self.results)}, self.options.json)


def summarize(results: dict[str, Any]) -> dict[str, Any]:
    """Mean metrics and rates of both arms, and our differences with 95 % intervals over seeds."""
    of_arms = {arm: [t for t in results["trainings"] if t["arm"] == arm] for arm in ARMS}
    if not all(of_arms.values()):
        return {}
    names = results["trainings"][0]["metrics"]
    rates = {arm: {t["seed"]: t["examples_a_second"] for t in of_arms[arm]} for arm in ARMS}
    ours, theirs = ({t["seed"]: t["metrics"] for t in of_arms[arm]} for arm in ARMS)
    seeds = sorted(ours.keys() & theirs.keys())
    summary: dict[str, Any] = {
        "examples_a_second": {
            arm: float(np.median([*some.values()])) for arm, some in rates.items()
        },
        "speedup": float(np.median([rates[ARMS[0]][s] / rates[ARMS[1]][s] for s in seeds])),
        "metrics": {
            name: {
                arm: float(np.mean([t["metrics"][name] for t in some]))
                for arm, some in of_arms.items()
            }
            for name in names
        },
    }
    if len(seeds) > 1:
        summary["difference"] = {
            name: asdict(
                mean_difference(
                    [theirs[seed][name] for seed in seeds], [ours[seed][name] for seed in seeds]
                )
            )
            for name in names
        }
    return summary


if __name__ == "__main__":
    run_program(main)
