"""Measure what a teacher is worth to a student of fewer layers, on SST-2.

`python -m benchmarks.distillation --data SST-2 --model FOLDER --work DIR`: the teacher is
fine-tuned on `--rows` labelled sentences. Two students of `--layers` of the encoder's layers
follow: one learns the same labels alone, one is distilled, with other sentences of train as
unlabelled text. Runs that are finished are not repeated.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measurement import CLOCKS, Arm, median_ratio, run_interleaved, surroundings
from benchmarks.results import run_program, write_results
from bert_core.errors import UserError
from bert_core.predictor import load_predictor
from bert_core.tasks.catalog import GLUE

ROOT = Path(__file__).parent.parent
ROUNDS = 5
TEACHER, ALONE, DISTILLED = "teacher", "student-alone", "student-distilled"


def main() -> None:
    """Trains what is missing, prints the table and writes JSON."""
    options = parse_arguments()
    labelled, rest = divide(options)
    shared = [
        *("--task", "sst2", "--train", str(labelled), "--dev", str(options.data / "dev.tsv")),
        *("--options.max_length", "64", "--seed", str(options.seed)),
        *("--storage", str(options.work), "--checkpoint.every_steps", "200"),
        *("--optimizer.peak_learning_rate", str(options.learning_rate)),
        *("--cluster.threads_per_worker", str(options.threads)),
    ]
    of_student = ["--keep_layers", str(options.layers), "--epochs", str(options.student_epochs)]
    finetune(TEACHER, [*shared, "--model", options.model, "--epochs", str(options.epochs)])
    finetune(ALONE, [*shared, "--model", options.model, *of_student])
    taught = ["--teacher", TEACHER, "--unlabelled", str(rest), "--compare", ALONE]
    taught += ["--distillation.alpha", str(options.alpha)]
    taught += ["--distillation.temperature", str(options.temperature)]
    finetune(DISTILLED, [*shared, "--model", options.model, *of_student, *taught])

    run = options.work / "runs" / DISTILLED
    models = json.loads((run / "artifacts" / "distillation.json").read_text())
    scores = [model["score"]["value"] for model in models]
    closed = (scores[2] - scores[1]) / (scores[0] - scores[1])
    rates = throughput(options)
    results = {
        "benchmark": "distillation",
        "settings": {
            name: value
            for name, value in vars(options).items()
            if name not in ("data", "model", "work", "json")
        },
        "surroundings": surroundings(torch.device("cpu")),
        "models": models,
        "share_of_the_gap_closed": closed,
        "throughput": rates,
    }
    write_results(results, options.json)
    print((run / "summary.txt").read_text() if (run / "summary.txt").is_file() else "")
    print(f"share of the gap to the teacher closed: {closed:.0%}")
    print(f"sentences per second: {rates}")


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.distillation", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of GLUE's SST-2")
    parser.add_argument("--model", required=True, help="encoder of teacher and students")
    parser.add_argument("--work", type=Path, required=True, help="storage of the runs")
    parser.add_argument("--rows", type=int, default=12_000, help="labelled training sentences")
    parser.add_argument("--unlabelled", type=int, default=55_000, help="unlabelled ones, at most")
    parser.add_argument("--layers", type=int, default=2, help="layers of the students")
    parser.add_argument("--epochs", type=int, default=2, help="epochs of the teacher")
    parser.add_argument("--student_epochs", type=int, default=3)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--alpha", type=float, default=0.9)
    parser.add_argument("--temperature", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2, help="torch threads of training")
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args()


def divide(options: argparse.Namespace) -> tuple[Path, Path]:
    """Writes some rows of train with their labels, and others without: a table and a text."""
    header, *lines = (options.data / "train.tsv").read_text(encoding="utf-8").splitlines()
    order = np.random.default_rng(0).permutation(len(lines)).tolist()
    chosen = [lines[index] for index in order]
    options.work.mkdir(parents=True, exist_ok=True)
    labelled, rest = options.work / "labelled.tsv", options.work / "unlabelled.txt"
    labelled.write_text("\n".join([header, *chosen[: options.rows]]) + "\n", encoding="utf-8")
    others = chosen[options.rows : options.rows + options.unlabelled]
    texts = [line.rsplit("\t", 1)[0] for line in others]
    rest.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return labelled, rest


def finetune(name: str, arguments: Sequence[str]) -> None:
    """Trains a run by its command; raises `UserError` where it fails."""
    command = [sys.executable, str(ROOT / "workflows" / "finetune.py"), "--name", name]
    outcome = subprocess.run([*command, *arguments], cwd=ROOT)
    if outcome.returncode:
        raise UserError("a run failed", name, "see its output above")


def throughput(options: argparse.Namespace) -> dict[str, Any]:
    """Sentences of dev per second of CPU time in one thread, teacher and student taking turns."""
    torch.set_num_threads(1)
    examples = GLUE["sst2"].examples(options.data, "dev")
    arms = []
    for name in (TEACHER, DISTILLED):
        predictor = load_predictor(options.work / "runs" / name / "model")
        step = lambda predictor=predictor: predictor.predict_examples(examples)  # noqa: E731
        arms.append(Arm(name, is_peer=False, step=step))
    device = torch.device("cpu")
    run_interleaved(arms, device, rounds=ROUNDS, steps=1, clock=CLOCKS["cpu"])
    rates = {arm.name: len(examples) / arm.median_seconds for arm in arms}
    return rates | {"ratio": median_ratio(*arms)}


if __name__ == "__main__":
    run_program(main)
