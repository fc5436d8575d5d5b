"""Sweeps for tests: trials of a made-up task, trained here without Ray, and outcomes."""

import math
import random
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import ClassVar

import torch
from finetuning_runs import write_encoder, write_task
from pretraining_runs import REPOSITORY, Channel, Run, StoppingWorker

from workflows.finetune import parse as parse_finetuning
from workflows.sweeps.outcome import EpochFigures, SweepOutcome, TrialOutcome
from workflows.sweeps.settings import TuneSettings
from workflows.sweeps.sweep import PlannedTrial
from workflows.training.run import TrainingRun
from workflows.tune import parse

AXES = ("batch_size=8,16", "optimizer.peak_learning_rate=3e-3,1e-3")


def write_inputs(folder: Path, *, train: int = 90) -> Path:
    """Writes data and an encoder, as `sweep_arguments` names them; returns the folder."""
    write_task(folder / "data", train=train)
    write_encoder(folder / "encoder")
    return folder


def sweep_arguments(place: Path, *axes: str, **changed: object) -> list[str]:
    """The command line of a small sweep over the data and the encoder in a folder, its storage."""
    settings = {
        "data": place / "data",
        "model": place / "encoder",
        "storage": place,
        "epochs": 2,
        "options.max_length": 32,
        **{name.replace("__", "."): value for name, value in changed.items()},
    }
    given = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    return [*given, "--axis", *(axes or AXES)]


def sweep_settings(storage: Path, *axes: str, **changed: object) -> TuneSettings:
    """The same as settings."""
    return parse(sweep_arguments(storage, *axes, **changed))


def train_here(trial: PlannedTrial, stop_after: int = -1) -> None:
    """Trains a trial in this process, to its end or for so many steps; writes nothing down."""
    worker = StoppingWorker(0, 1, torch.device("cpu"), Channel())
    worker.steps_left = stop_after
    job, told = trial.job.worker_job(), trial.to_train()
    arguments = {name: value for name, (_, value) in told.shared.items()} | dict(told.own)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        parts = job.open_parts(worker, job.run_folder, **arguments)
        TrainingRun(parts, worker, job.run_folder).train()
    finally:
        torch.set_num_threads(num_threads)


@dataclass
class SweepCommand(Run):
    """A sweep over what lies in `shards`, as a process; `settings` has `axis` as a tuple."""

    program: ClassVar[Path] = REPOSITORY / "workflows" / "tune.py"

    @property
    def folder(self) -> Path:
        return self.storage / "sweeps" / self.name

    def arguments(self) -> list[str]:
        """The command line after the program's name."""
        settings = {"name": self.name, "storage": self.storage, **self.settings}
        axes = settings.pop("axis", AXES)
        return sweep_arguments(self.shards, *axes, **settings)


RATE = "optimizer.peak_learning_rate"
GRID = [
    {"batch_size": batch, RATE: rate, "epochs": epochs}
    for batch, rate, epochs in product((16, 32), (5e-5, 3e-5, 2e-5), (2, 3, 4))
]


def made_up_trial(point, seed, *, noise=0.004):
    """A finished trial of MRPC: faster learning and more epochs are better, seeds matter."""
    draw = random.Random(repr((sorted(point.items()), seed)))
    batch, rate = point.get("batch_size", 32), point.get(RATE, 3e-5)
    epochs = point.get("epochs", 3)
    height = 0.895 - 0.012 * math.log(rate / 4.2e-5) ** 2 - 0.0004 * (batch - 16)
    curve = []
    for epoch in range(1, epochs + 1):
        progress = 1 - math.exp(-1.3 * epoch - 0.4)
        score = 0.81 + (height - 0.81) * progress + draw.gauss(0, noise)
        dev_loss = 0.36 + 0.25 * math.exp(-1.2 * epoch) + 0.03 * max(0, epoch - 2)
        train_loss = 0.62 * math.exp(-0.16 * epoch * (rate / 1e-5) ** 0.7) + draw.gauss(0, 0.005)
        curve.append(EpochFigures(epoch, score, dev_loss + draw.gauss(0, 0.01), train_loss))
    best = max(curve, key=lambda each: each.score)
    seconds = 95.0 * epochs * (1.15 if batch == 16 else 1.0) + draw.uniform(0, 9)
    return TrialOutcome(
        name=f"mrpc-{draw.getrandbits(32):08x}",
        point=point,
        seed=seed,
        score=best.score,
        best_epoch=best.epoch,
        figures={
            "dev/loss": best.dev_loss,
            "dev/accuracy": best.score - 0.035,
            "dev/f1": best.score,
            "dev/matthews": best.score - 0.22,
        },
        curve=tuple(curve),
        seconds=seconds,
        device="cpu",
        device_hours=seconds / 3600,
        num_tokens=194_000 * epochs,
    )


def without_score(trial, failure=None, *, epochs=0):
    """The same trial as it is before its end, or where it came to none."""
    return TrialOutcome(
        trial.name, trial.point, trial.seed, failure=failure, curve=trial.curve[:epochs]
    )


def made_up_outcome(trials, axes=None, **changes):
    """The sweep of these trials."""
    settings = parse_finetuning(["--task", "mrpc", "--data", "d", "--model", "m"]).portable()
    outcome = SweepOutcome(
        name="mrpc-sweep-1f2e3d4c",
        task="mrpc",
        criterion="f1",
        model="gt-minilm",
        data="glue/MRPC",
        num_train=3668,
        num_dev=408,
        axes=tuple(axes or trials[0].point),
        trials=tuple(trials),
        settings=settings,
        wall_seconds=5_400.0,
        at_once=2,
    )
    return replace(outcome, **changes)


def paper_grid():
    """18 points with two seeds; one trial failed, one is missing."""
    trials = [made_up_trial(point, seed) for point in GRID for seed in (0, 1)]
    trials[5] = without_score(trials[5], "out of memory: lower --max_tokens from 4096", epochs=1)
    trials[-1] = without_score(trials[-1], epochs=2)
    return made_up_outcome(trials)


def single_seed():
    """The paper's grid, one seed."""
    return made_up_outcome([made_up_trial(point, 0) for point in GRID])


def one_axis():
    """Three learning rates that differ clearly, five seeds."""
    points = [{RATE: rate} for rate in (1e-6, 1e-5, 4e-5)]
    return made_up_outcome([made_up_trial(point, seed) for point in points for seed in range(5)])


def random_search(number=30):
    """Learning rate over logarithms, dropout, batch size; one trial fell apart."""
    draw = random.Random(4)
    trials = []
    for _ in range(number):
        point = {
            RATE: 10 ** draw.uniform(-5.5, -3.5),
            "dropout.hidden_dropout_prob": draw.uniform(0, 0.3),
            "batch_size": draw.choice([8, 16, 32, 64]),
        }
        trials.append(made_up_trial(point, 0))
    trials[3] = replace(trials[3], score=0.31, figures={"dev/f1": 0.31})
    return made_up_outcome(trials)


def everything_failed():
    """No trial has a score."""
    trials = [made_up_trial(point, 0) for point in GRID[:4]]
    return made_up_outcome([without_score(trial, "no <b>memory</b> | left") for trial in trials])


def not_begun():
    """No trial has had its turn."""
    trials = [made_up_trial(point, seed) for point in GRID for seed in (0, 1)]
    return made_up_outcome([without_score(trial) for trial in trials], wall_seconds=0.0)


def with_odd_names():
    """Names that a page must not take for its own, and paths of a machine."""
    trials = [
        replace(made_up_trial({"strategy": name, "epochs": epochs}, 0), name=f"<i>{name}</i>")
        for name in ("<script>alert(1)</script>", 'a"b|c', "weighted_sum_last_four")
        for epochs in (2, 3)
    ]
    return made_up_outcome(
        trials, name="<img src=x>", model="/srv/models/<u>m</u>", data="/data/some/where/MRPC"
    )


OUTCOMES = {
    each.__name__: each
    for each in (
        *(paper_grid, single_seed, one_axis, random_search, everything_failed, not_begun),
        with_odd_names,
    )
}
