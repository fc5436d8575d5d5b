"""Sweeps for tests: the made-up task of `finetuning_runs`, trials trained here without Ray."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from finetuning_runs import write_encoder, write_task
from pretraining_runs import REPOSITORY, Channel, Run, StoppingWorker

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
    job = trial.job.worker_job()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        parts = job.open_parts(worker, job.run_folder, task_data=trial.job.data)
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
