"""A training seen from its driver: set up, trained by workers, tracked, written out, registered.

What pre-training and fine-tuning share; what differs is in the abstract methods of `TrainingJob`.
"""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import yaml

from bert_core.errors import UserError
from workflows.remote_run import RemoteRun
from workflows.run_folder import RunFolder, write_atomically
from workflows.run_settings import RunSettings
from workflows.storage import Storage
from workflows.tracker import (
    ARTIFACTS_NAME,
    DatasetInput,
    TrackedRun,
    Tracker,
    code_tags,
    default_tracking_uri,
)

if TYPE_CHECKING:
    from bert_core.training.checkpoint import CheckpointInfo

# Imports within functions load torch, Ray and MLflow, which takes seconds: what is wrong with
# settings, storage or data is answered before.


@dataclass(frozen=True)
class JobResults:
    """What a finished run ended with: the lines of its summary, its card, its figures."""

    lines: list[str]
    card: str
    figures: dict[str, float]


class TrainingJob(ABC):
    """One run: its settings and its place, and what its kind of training does."""

    settings_comment: str
    """The first line of settings.yaml: how to repeat the run with it."""

    def __init__(
        self,
        settings: RunSettings,
        storage: Storage,
        folder: RunFolder,
        remote: RemoteRun | None,
    ) -> None:
        self.run_settings = settings
        self.storage = storage
        self.folder = folder
        self.remote = remote

    @property
    def tracking_uri(self) -> str:
        """Where MLflow is."""
        return self.run_settings.tracking.uri or default_tracking_uri(self.storage.folder)

    def last_checkpoint(self) -> "CheckpointInfo":
        """What the newest whole checkpoint says; raises `UserError` where there is none."""
        from bert_core.training.checkpoint import newest_checkpoint, read_checkpoint

        path, _ = newest_checkpoint(self.folder.checkpoints)
        if path is None:
            raise UserError("no whole checkpoint", str(self.folder.checkpoints), "give --fresh")
        return read_checkpoint(path)

    @abstractmethod
    def checkpoint_bytes(self) -> int:
        """About how large one checkpoint is."""

    @abstractmethod
    def worker(self) -> tuple[Callable[[dict[str, Any]], Any], dict[str, Any]]:
        """The training function of a worker, and its `config`."""

    @abstractmethod
    def described(self) -> tuple[dict[str, str], dict[str, str], DatasetInput]:
        """Parameters, tags and the data, for MLflow: no path of this machine."""

    @abstractmethod
    def write_results(self) -> JobResults:
        """Writes pictures, card and model folder from the last checkpoint and the journal."""


def train_and_register(job: TrainingJob) -> bool:
    """What is left of the run, with the tracker beside it; False when it was told to stop."""
    from workflows.registration import register

    settings, folder, remote = job.run_settings, job.folder, job.remote
    refuse_a_full_disk(job)
    if remote is not None and not settings.fresh:
        remote.catch_up(folder)
    unfinished = not folder.is_trained()
    if unfinished:
        from workflows.cluster_capacity import join_cluster_with_room

        join_cluster_with_room(settings.cluster)
    write_settings(settings, folder, job.settings_comment)
    run = tracked_run(job)
    if remote is not None:
        remote.begin(folder, fresh=settings.fresh)
    tracker = Tracker(folder.path, run)
    status, patience_seconds = "FAILED", 5.0
    stopped_at = results = None
    try:
        if unfinished:
            stopped_at = train_on_workers(job)
        if stopped_at is None:
            results = job.write_results()
            status, patience_seconds = "FINISHED", 120.0
        else:
            status = "KILLED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        tracking = tracker.finish(status, patience_seconds)
    if results is None:
        print(f"stopped after step {stopped_at:,}; the same command goes on from there")
        return False
    register(job, results, tracking)
    if remote is not None:
        remote.push_results(folder)
    return True


def train_on_workers(job: TrainingJob) -> int | None:
    """Trains to the last step; returns the step at which it was told to stop, or None."""
    from workflows.cluster import run_on_workers
    from workflows.live_line import LiveLine
    from workflows.system_metrics import note_throughput

    folder, remote, settings = job.folder, job.remote, job.run_settings
    train_worker, config = job.worker()
    with closing(LiveLine()) as line:

        def show(news: dict[str, Any]) -> None:
            line(news)
            note_throughput(folder.path, news)
            if remote is not None:
                remote.follow(folder, news.get("checkpoint"))

        outcome = run_on_workers(
            train_worker, config, settings=settings.cluster, folder=folder.ray, show=show
        )
    if remote is not None:
        remote.settle(folder, outcome["step"], settings.checkpoint.keep)
    return outcome["step"] if outcome["stopped"] else None


def refuse_a_full_disk(job: TrainingJob) -> None:
    """Raises `UserError` where the checkpoints of the run will not fit."""
    # One more while the newest is written, and the exported model.
    count = job.run_settings.checkpoint.keep + 2
    needed = count * job.checkpoint_bytes()
    free = shutil.disk_usage(job.folder.path).free
    if free < needed:
        raise UserError(
            f"{count} checkpoints need {needed / 2**30:.1f} GiB",
            f"{job.folder.path} has {free / 2**30:.1f} GiB free",
            "free some, lower --checkpoint.keep, or choose another --storage",
        )


def write_settings(settings: RunSettings, folder: RunFolder, comment: str) -> None:
    """Writes the resolved settings, to repeat the run with, into the run folder and for MLflow."""
    text = f"# {comment}\n" + yaml.safe_dump(settings.portable(), sort_keys=False)
    artifacts = folder.path / ARTIFACTS_NAME
    artifacts.mkdir(exist_ok=True)
    write_atomically(folder.settings, text)
    write_atomically(artifacts / folder.settings.name, text)


def tracked_run(job: TrainingJob) -> TrackedRun:
    """What MLflow is told of the run besides its metrics."""
    folder, settings = job.folder, job.run_settings
    if not folder.run_key.exists():
        write_atomically(folder.run_key, uuid4().hex)
    params, tags, dataset = job.described()
    return TrackedRun(
        tracking_uri=job.tracking_uri,
        experiment=settings.tracking.experiment,
        run_name=folder.name,
        run_key=folder.run_key.read_text(),
        params=params | flattened(settings.portable()),
        tags=code_tags(Path(__file__).parent) | tags,
        dataset=dataset,
    )


def flattened(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as `section.field: value`."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = str(value)
    return flat
