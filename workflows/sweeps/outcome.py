"""The outcome of a sweep as plain data, on disk as JSON; reports are made from it."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from bert_core.disk import write_atomically
from bert_core.errors import UserError
from bert_core.strict_files import read_json_object

Point = dict[str, Any]
"""A value for each axis, by the field's dotted name."""


@dataclass(frozen=True)
class EpochFigures:
    """Figures of a trial after an epoch, or a part; `train_loss` is the mean of the steps since."""

    epoch: float
    score: float
    dev_loss: float
    train_loss: float


@dataclass(frozen=True)
class TrialOutcome:
    """The outcome of one trial, a point with a seed, or with a fold that is its dev set.

    `name` is its run's. `score` is the task's criterion on dev at the best epoch, and `figures` are
    all metrics there (`dev/f1`); None and empty for an unfinished trial. `seconds` are those of
    its training, every start counted, and `device_hours` core-hours or, on `cuda`, GPU-hours.
    `failure` says in one line why there is no score; None for a trial that has finished or not
    started. `stopped_early`: the scheduler ended it before its last epoch because it was behind.
    """

    name: str
    point: Point
    seed: int
    score: float | None = None
    best_epoch: float | None = None
    figures: dict[str, float] = field(default_factory=dict)
    curve: tuple[EpochFigures, ...] = ()
    seconds: float = 0.0
    device: str = "cpu"
    device_hours: float = 0.0
    num_tokens: int = 0
    failure: str | None = None
    stopped_early: bool = False
    fold: int | None = None

    @property
    def repeat(self) -> int:
        """The number that tells the trials of a point apart: its fold, or else its seed."""
        return self.seed if self.fold is None else self.fold

    @property
    def repeats(self) -> str:
        """What that is the number of: `seed` or `fold`."""
        return "seed" if self.fold is None else "fold"

    @property
    def named(self) -> str:
        """Both: `seed 3`."""
        return f"{self.repeats} {self.repeat}"

    def write(self, path: Path) -> None:
        """Writes it as JSON, whole or not at all."""
        write_atomically(path, json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> Self:
        """What `write` wrote."""
        remedy = "delete it: the trial is then run anew"
        content = read_json_object(path, remedy, allow_nan=True)
        try:
            curve = tuple(EpochFigures(**each) for each in content.pop("curve"))
            return cls(**content, curve=curve)
        except (KeyError, TypeError) as error:
            raise UserError("damaged outcome of a trial", str(path), remedy) from error


@dataclass(frozen=True)
class SweepOutcome:
    """A sweep, finished or as far as it has come.

    `criterion` is the metric that decides (higher is better), `axes` the dotted names of the fields
    that vary, `settings` what all trials share, as a settings file has it, and `files` what else
    they read, by its option. `wall_seconds` is the time of the sweep, every start counted, in which
    `at_once` trials ran side by side.
    """

    name: str
    task: str
    criterion: str
    model: str
    data: str
    num_train: int
    num_dev: int
    axes: tuple[str, ...]
    trials: tuple[TrialOutcome, ...]
    settings: dict[str, Any]
    files: dict[str, tuple[str, ...]] = field(default_factory=dict)
    wall_seconds: float = 0.0
    at_once: int = 1

    @property
    def repeats(self) -> str:
        """What the trials of a point differ in: `seed` or `fold`."""
        return next((trial.repeats for trial in self.trials), "seed")
