"""What sweeps and ablations share in their driver: planned runs, their clock and their place.

The run folders hold all results, so the same command trains only what is missing.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar
from uuid import uuid4

from bert_core.disk import write_atomically
from workflows.messages import RunProgress
from workflows.runs.folder import RunFolder, read_seconds
from workflows.runs.storage import Storage
from workflows.runs.tracker import (
    ARTIFACTS_NAME,
    DatasetInput,
    TrackedRun,
    code_tags,
)
from workflows.training.job import TrainingJob, flattened
from workflows.training.run_settings import RunSettings

CLOCK = "clock.json"
RUNNING, TRAINED, BEHIND, STOPPED, FAILED = "running", "trained", "behind", "stopped", "failed"
"""States of a run in training; behind: ended early by the scheduler."""


@dataclass(frozen=True)
class TrialStatus:
    """What the worker of a run last reported in this start of the driver."""

    state: str = ""
    """`running`, `trained`, `behind`, `stopped` or `failed`; "" before it starts."""
    failure: str | None = None
    progress: RunProgress = field(default_factory=RunProgress)


@dataclass(frozen=True)
class TrialToTrain:
    """What the cluster gets of a run: its job, and the metric that decides.

    `shared` are arguments of the job that other runs have too, each an object and a name of it;
    `own` are arguments that no other has.
    """

    job: TrainingJob
    criterion: str
    shared: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)


Job = TypeVar("Job", bound=TrainingJob)


@dataclass
class PlannedRun(ABC, Generic[Job]):
    """A run to train; `failure` is why its last try failed."""

    job: Job
    failure: str | None = field(default=None, kw_only=True)
    status: TrialStatus = field(default_factory=TrialStatus, kw_only=True)

    @property
    def name(self) -> str:
        """The run's name."""
        return self.job.folder.name

    @property
    @abstractmethod
    def is_finished(self) -> bool:
        """Whether its results are written; weights may have been removed since."""

    @property
    @abstractmethod
    def criterion(self) -> str:
        """The metric that decides, as evaluations call it."""

    @cached_property
    @abstractmethod
    def cost(self) -> float:
        """Work of the whole run, in a unit that all runs planned together share."""

    @abstractmethod
    def finish(self, *, stopped_early: bool = False) -> None:
        """Writes the results of a trained run."""

    def to_train(self) -> TrialToTrain:
        """What the cluster gets of it."""
        return TrialToTrain(self.job, self.criterion)


Settings = TypeVar("Settings", bound=RunSettings)


class PlannedRuns(ABC, Generic[Settings]):
    """Runs planned together under one name: their settings, storage and folder."""

    def __init__(self, settings: Settings, storage: Storage, folder: RunFolder) -> None:
        self.settings, self.storage, self.folder = settings, storage, folder

    @property
    def tracking_uri(self) -> str:
        """Where MLflow is."""
        return self.settings.tracking.uri_of(self.storage.folder)

    @abstractmethod
    def tracked_run(self) -> TrackedRun:
        """The MLflow run above those of the planned runs."""

    def seconds(self) -> float:
        """Training time of all starts."""
        return read_seconds(self.folder.path / CLOCK)

    def add_seconds(self, seconds: float) -> None:
        """Adds the training time of one start."""
        write_atomically(self.folder.path / CLOCK, json.dumps(self.seconds() + seconds))

    @contextmanager
    def counted_time(self) -> Iterator[None]:
        """Adds the time spent in the block."""
        begin_time = time.monotonic()
        try:
            yield
        finally:
            self.add_seconds(time.monotonic() - begin_time)

    def _tracked(self, data: DatasetInput, params: Mapping[str, str]) -> TrackedRun:
        """The same MLflow run at every start, by the key in the folder."""
        folder = self.folder
        if not folder.run_key.exists():
            write_atomically(folder.run_key, uuid4().hex)
        (folder.path / ARTIFACTS_NAME).mkdir(exist_ok=True)
        return TrackedRun(
            tracking_uri=self.tracking_uri,
            experiment=self.settings.tracking.experiment,
            run_name=folder.name,
            run_key=folder.run_key.read_text(),
            params=flattened(self.settings.portable()) | dict(params),
            tags=code_tags(Path(__file__).parent) | {"data.sha256": data.sha256},
            dataset=data,
        )


Run = TypeVar("Run", bound=PlannedRun[Any])


def unfinished(planned: Sequence[Run]) -> list[Run]:
    """The runs without results, the longest first."""
    return sorted((run for run in planned if not run.is_finished), key=lambda run: -run.cost)
