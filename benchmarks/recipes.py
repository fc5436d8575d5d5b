"""Compare recipes of fine-tuning on real tasks, by the product's own sweeps.

`python -m benchmarks.recipes --study imbalance|small_data|glue --data GLUE --model FOLDER
--storage DIR --json FILE`. Each variant differs from the plain recipe in one setting; all have the
same seeds. Trials that are trained already are not trained again, whichever sweep they were in, and
tasks that the file has are kept: `--tasks` may add one at a time.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measurement import surroundings
from benchmarks.results import run_program, write_results
from bert_core.errors import UserError
from bert_core.evaluation.decisions import folds, tuned_thresholds
from bert_core.evaluation.intervals import Interval, compare
from bert_core.evaluation.sweep import differences
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.task import Task
from bert_core.text.rng import IntArray
from workflows.finetuning.worker import BEST_PREDICTIONS
from workflows.paper.published import metric_title

ROOT = Path(__file__).parent.parent
PLAIN = "plain"
RARE, RARE_SHARE, RARE_ROWS = "SST-2, 5 % positive", 0.05, 2_000
_FOLDERS = {"cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC", "rte": "RTE", "wnli": "WNLI"}


@dataclass(frozen=True)
class Study:
    """Tasks with a recipe, and the settings that vary, one at a time; the first is the plain one.

    `axes` are those of `tune.py`, `seeds` the number by default.
    """

    tasks: tuple[str, ...]
    recipe: tuple[str, ...]
    axes: tuple[str, ...] = ()
    seeds: int = 5


_RECIPE = ("--optimizer.peak_learning_rate=1e-4", "--epochs=3", "--batch_size=16")
STUDIES = {
    "imbalance": Study(
        ("sst2",),
        (
            *("--optimizer.peak_learning_rate=2e-4", "--epochs=3", "--batch_size=32"),
            "--options.metric=f1_macro",
        ),
        ("loss.class_weights=none,balanced", "loss.focal_gamma=0,2"),
    ),
    "small_data": Study(
        ("mrpc", "rte"),
        _RECIPE,
        ("optimizer.layer_decay=1.0,0.9", "freeze_layers=0,2", "reinit_layers=0,1"),
    ),
    "glue": Study(("wnli", "rte", "mrpc", "cola", "sst2"), _RECIPE, seeds=3),
}


@dataclass
class Scores:
    """What the seeds of one variant reached on dev, in 0..1; less that of plain, with its reach.

    `thresholds` is what those tuned on either half of dev change on the other, for each seed two;
    None where tuning does not keep any.
    """

    scores: list[float]
    figures: dict[str, list[float]]
    seconds: list[float]
    trials: list[str]
    mean: float = 0.0
    deviation: float = 0.0
    difference: float | None = None
    reach: float | None = None
    thresholds: list[Interval | None] = field(default_factory=list)


@dataclass
class TaskScores:
    """A task's variants by name."""

    name: str
    criterion: str
    metric: str
    num_train: int
    num_dev: int
    variants: dict[str, Scores] = field(default_factory=dict)


def main(arguments: Sequence[str]) -> int:
    """Trains what is missing and writes the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recipes", description=__doc__)
    parser.add_argument("--study", choices=tuple(STUDIES), required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of GLUE's folders")
    parser.add_argument("--model", type=Path, required=True, help="an encoder's model folder")
    parser.add_argument("--storage", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--tasks", nargs="+", help="of the study; by default all")
    parser.add_argument("--seeds", type=int, help="of each variant")
    parser.add_argument("--json", type=Path, required=True, help="file for the results")
    options = parser.parse_args(arguments)
    study = STUDIES[options.study]
    seeds = options.seeds or study.seeds
    found: dict[str, Any] = {"study": options.study, "encoder": options.model.parent.name}
    found |= {"seeds": seeds, "recipe": list(study.recipe)}
    found["tasks"] = _tasks_of(options.json, found)
    for task in options.tasks or study.tasks:
        data = options.data.absolute() / _FOLDERS[task]
        if options.study == "imbalance":
            data = write_rare(data, options.storage.absolute() / "rare", RARE_ROWS)
        given = ["--task", task, "--data", str(data), "--model", str(options.model.absolute())]
        given += [*study.recipe, "--seeds", str(seeds), "--storage", str(options.storage)]
        scores = measured(f"{options.study}-{task}", given, study.axes, options.storage)
        if options.study == "imbalance":
            add_thresholds(scores, TASKS[task], data, options.storage)
        found["tasks"][task] = asdict(scores)
        print(table(scores), flush=True)
        found["surroundings"] = surroundings(torch.device("cpu"))
        write_results(found, options.json)
    return 0


def _tasks_of(path: Path, study: dict[str, Any]) -> dict[str, Any]:
    """The tasks that an earlier run of the same study wrote."""
    if not path.is_file():
        return {}
    earlier = json.loads(path.read_text())
    is_same = all(earlier.get(name) == value for name, value in study.items())
    return earlier["tasks"] if is_same else {}


def write_rare(data: Path, folder: Path, rows: int, share: float = RARE_SHARE) -> Path:
    """Writes train and dev of so many rows each from SST-2's training file, few of them positive.

    Every text occurs once.
    """
    lines = (data / "train.tsv").read_text(encoding="utf-8").splitlines()
    by_label: dict[str, list[str]] = {"0": [], "1": []}
    for line in dict.fromkeys(lines[1:]):
        by_label[line.rpartition("\t")[2]].append(line)
    draw = random.Random(0)
    rare = round(rows * share)
    wanted = {"0": rows - rare, "1": rare}
    drawn = {label: draw.sample(by_label[label], 2 * count) for label, count in wanted.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for number, split in enumerate(("train", "dev")):
        own = [line for label in drawn for line in drawn[label][number::2]]
        draw.shuffle(own)
        (folder / f"{split}.tsv").write_text("\n".join([lines[0], *own]) + "\n", encoding="utf-8")
    return folder


def measured(name: str, given: list[str], axes: Sequence[str], storage: Path) -> TaskScores:
    """The scores of the plain recipe and of each value of an axis that is another."""
    scores: TaskScores | None = None
    for axis in axes or ("none",):
        report = swept(f"{name}-{axis.partition('=')[0]}", [*given, "--axis", axis], storage)
        if scores is None:
            criterion, counts = report["criterion"], (report["num_train"], report["num_dev"])
            scores = TaskScores(name, criterion, metric_title(criterion), *counts)
        trials = {trial["name"]: trial for trial in report["trials"]}
        first = axis.partition("=")[2].split(",")[0]
        for point in report["points"]:
            own = [trials[each] for each in point["trials"] if trials[each]["score"] is not None]
            values = [
                f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
                for key, value in point["point"].items()
            ]
            is_plain = not values or _same(next(iter(point["point"].values())), first)
            scores.variants[PLAIN if is_plain else ", ".join(values)] = _scores(own)
    assert scores is not None
    others = {each: found.scores for each, found in scores.variants.items() if each != PLAIN}
    for each, found in differences(scores.variants[PLAIN].scores, others).items():
        scores.variants[each].difference = found.mean
        scores.variants[each].reach = found.reach
    return scores


def add_thresholds(scores: TaskScores, task: Task, data: Path, storage: Path) -> None:
    """Tunes the thresholds of each trial's best epoch on half of dev, and measures the other."""
    assert isinstance(task, Classification)
    task = task.model_copy(update={"metric": scores.criterion})
    examples = task.examples(str(data), "dev")
    labels = np.array([each.answer for each in examples])
    halves = np.zeros(len(examples), dtype=int)
    for label in task.labels:
        halves[np.flatnonzero(labels == label)[1::2]] = 1
    for variant in scores.variants.values():
        for trial in variant.trials:
            path = storage / "runs" / trial / BEST_PREDICTIONS
            predictions = [json.loads(line) for line in path.open(encoding="utf-8")]
            for half in range(2):
                own, other = (
                    np.flatnonzero((halves == half) == is_own) for is_own in (True, False)
                )
                change = threshold_change(task, predictions, examples, own, other)
                variant.thresholds.append(change)


def threshold_change(
    task: Classification,
    predictions: Sequence[dict[str, Any]],
    examples: Sequence[Text],
    own: IntArray,
    other: IntArray,
) -> Interval | None:
    """What thresholds of examples at `own` change at `other`; None where none are kept."""
    known = [examples[place] for place in own]
    fold = folds([repr(each.answer) for each in known], seed=0)
    tuned, _ = tuned_thresholds(task, [predictions[each] for each in own], known, fold, seed=0)
    if not tuned.thresholds:
        return None
    before, unseen = [predictions[each] for each in other], [examples[each] for each in other]
    after = tuned.decide(np.array([list(each["scores"].values()) for each in before]))
    compared = compare(task, before, list(after), unseen, seed=0)
    return compared.metrics[task.criterion].difference


def _same(value: object, text: str) -> bool:
    return float(text) == value if isinstance(value, int | float) else text == value


def _scores(trials: Sequence[dict[str, Any]]) -> Scores:
    scores = [trial["score"] for trial in trials]
    names = trials[0]["figures"] if trials else {}
    return Scores(
        scores=scores,
        figures={name: [trial["figures"][name] for trial in trials] for name in names},
        seconds=[trial["seconds"] for trial in trials],
        trials=[trial["name"] for trial in trials],
        mean=statistics.fmean(scores),
        deviation=statistics.stdev(scores) if len(scores) > 1 else 0.0,
    )


def swept(name: str, given: Sequence[str], storage: Path) -> dict[str, Any]:
    """The report of a sweep by its command; raises `UserError` on failure."""
    command = [sys.executable, str(ROOT / "workflows" / "tune.py"), *given, "--name", name]
    outcome = subprocess.run(command, env=os.environ)
    if outcome.returncode:
        raise UserError("the sweep failed", " ".join(command), "see its messages above")
    return json.loads((storage / "sweeps" / name / "artifacts" / "report.json").read_text())


def table(found: TaskScores) -> str:
    """The variants of a task in points, for the terminal."""
    lines = [f"{found.name}: {found.metric}, {found.num_train:,} train, {found.num_dev:,} dev"]
    for name, each in found.variants.items():
        text = f"  {name:32} {100 * each.mean:6.2f} ± {100 * each.deviation:5.2f}"
        if each.difference is not None:
            reach = "" if each.reach is None else f" ± {100 * each.reach:.2f}"
            text += f"   {100 * each.difference:+6.2f}{reach}"
        lines.append(f"{text}   {statistics.fmean(each.seconds):5.0f} s")
        for tuned in filter(None, each.thresholds):
            low, high = 100 * tuned.low, 100 * tuned.high
            lines.append(
                f"    with tuned thresholds {100 * tuned.value:+.2f} ({low:+.2f} to {high:+.2f})"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    run_program(lambda: main(sys.argv[1:]))
