"""The driver of training runs: set up, train by workers, track, export, register.

Pre-training and fine-tuning differ in their `TrainingJob`. Several jobs share one group of workers,
whose start costs more than a small training.
"""

import math
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar
from uuid import uuid4

import yaml

from bert_core.disk import write_atomically
from bert_core.errors import UserError
from bert_core.lineage import Lineage
from serving.registry import lineage_of_tags
from workflows.progress import LiveLine
from workflows.runs.folder import RunFolder
from workflows.runs.storage import RemoteRun, Storage
from workflows.runs.tracker import (
    ARTIFACTS_NAME,
    SPECIFICATION_NAME,
    STATE_NAME,
    DatasetInput,
    TrackedRun,
    Tracker,
    TrackingSummary,
    code_tags,
    note_throughput,
    read_json,
)
from workflows.training.run_settings import RunSettings

if TYPE_CHECKING:
    from bert_core.training.checkpoint import CheckpointInfo
    from workflows.clusters.workers import WorkersAtJobs
    from workflows.training.run import WorkerJob

# Imports within functions load torch, Ray and MLflow, which takes seconds: what is wrong with
# settings, storage or data is answered before.


@dataclass(frozen=True)
class JobResults:
    """What a finished run ended with: the lines of its summary, its card, its figures."""

    lines: list[str]
    card: str
    figures: dict[str, float]


class TrainingJob(Protocol):
    """One run: its settings, its folder, and what its kind of training does."""

    kind: ClassVar[str]
    """The kind of training, for metrics."""
    settings_comment: ClassVar[str]
    """The first line of settings.yaml: how to repeat the run with it."""
    title: str
    """The name of the run on the screen, where it is one of several."""

    @property
    def settings(self) -> RunSettings:
        """The resolved settings."""
        ...

    @property
    def storage(self) -> Storage:
        """The storage that the run folder lies in."""
        ...

    @property
    def folder(self) -> RunFolder:
        """The run folder, or the driver's working copy of it."""
        ...

    @property
    def remote(self) -> RemoteRun | None:
        """The run at the storage's address, if it has one."""
        ...

    def checkpoint_bytes(self) -> int:
        """The approximate size of one checkpoint."""
        ...

    def worker_job(self) -> "WorkerJob":
        """The run as workers get it."""
        ...

    def described(self) -> tuple[dict[str, str], dict[str, str], DatasetInput]:
        """Parameters, tags and the data, for MLflow: no path of this machine."""
        ...

    def data_description(self) -> dict[str, Any]:
        """The data for whoever looks back, no path of this machine."""
        ...


JobT = TypeVar("JobT", bound=TrainingJob)


def tracking_uri(job: TrainingJob) -> str:
    """The MLflow tracking URI of a run."""
    return job.settings.tracking.uri_of(job.storage.folder)


def train_and_register(jobs: Sequence[JobT], write_results: Callable[[JobT], JobResults]) -> bool:
    """Finishes the runs one after the other, each with its own tracker; False when told to stop.

    One group of workers trains all, with the cluster settings of the first. `write_results` writes
    figures, card and model folder from the last checkpoint and the journal, and a run is registered
    while the next one trains.
    """
    refuse_a_full_disk(jobs)
    refuse_unregistrable_jobs(jobs)
    for job in jobs:
        if job.remote is not None and not job.settings.fresh:
            job.remote.catch_up(job.folder)
    untrained = [job for job in jobs if not job.folder.is_trained()]
    if untrained:
        from workflows.clusters.capacity import join_cluster_with_room

        join_cluster_with_room(untrained[0].settings.cluster)
        refuse_storage_out_of_reach(untrained[0])
    tracked = [begin(job, trains=job in untrained) for job in jobs]
    with training(untrained) as follow:
        return all(
            complete(job, run, follow, write_results)
            for job, run in zip(jobs, tracked, strict=True)
        )


def refuse_storage_out_of_reach(job: TrainingJob) -> None:
    """Raises `UserError` where a node of the cluster cannot reach the run's folder."""
    if job.remote is None:
        from workflows.clusters.tasks import refuse_folder_out_of_reach

        cluster = job.settings.cluster
        needs = {"CPU": cluster.cpus_per_worker, "GPU": int(cluster.use_gpu)}
        needs["TPU"] = int(cluster.tpu is not None)
        refuse_folder_out_of_reach(job.folder.path, needs)


def begin(job: TrainingJob, *, trains: bool = True) -> TrackedRun:
    """Writes down what the run is and is made of, where it lies and for MLflow.

    A run that `trains` no more keeps the code that it was trained by.
    """
    from workflows.reproduction.run_origin import write_origin

    write_settings(job.settings, job.folder, job.settings_comment)
    write_origin(job.folder, job.data_description(), trains=trains)
    tracked = tracked_run(job)
    if job.remote is not None:
        job.remote.begin(job.folder, fresh=job.settings.fresh)
    return tracked


@contextmanager
def training(jobs: Sequence[TrainingJob]) -> Iterator[Callable[[TrainingJob], str]]:
    """Lets one group of workers train the jobs; gives what follows one of them to its end.

    That returns in words where the job was stopped, nothing when it is trained.
    """
    if not jobs:
        yield lambda job: ""  # noqa: ARG005 - it is trained
        return
    from workflows.clusters.workers import workers_at
    from workflows.training.run import worker_main

    config = {"jobs": [job.worker_job() for job in jobs]}
    cluster, folder = jobs[0].settings.cluster, jobs[0].folder.ray
    with workers_at(worker_main, config, settings=cluster, folder=folder) as workers:
        yield lambda job: follow(job, workers, jobs.index(job)) if job in jobs else ""


def follow(job: TrainingJob, workers: "WorkersAtJobs", number: int) -> str:
    """Shows a job's training until its end; says where it was stopped, if it was."""
    from workflows.training.metrics import TrainingMetrics

    with TrainingMetrics(job.folder.name, job.kind) as metrics:
        with closing(LiveLine(job.title)) as line:
            for progress in workers.progress(number):
                line(progress)
                metrics(progress)
                note_throughput(job.folder.path, progress.figures())
                if job.remote is not None:
                    job.remote.follow(job.folder, progress.checkpoint)
        outcome = workers.outcome(number)
    if outcome is None:
        return "stopped before it began"
    if job.remote is not None:
        job.remote.settle(job.folder, outcome.step, job.settings.checkpoint.keep)
    return f"stopped after step {outcome.step:,}" if outcome.stopped else ""


def complete(
    job: JobT,
    run: TrackedRun,
    follow: Callable[[TrainingJob], str],
    write_results: Callable[[JobT], JobResults],
) -> bool:
    """Brings one run from its training to its registration; False when it was stopped."""
    from workflows.reproduction.run_origin import write_outcome

    tracker = Tracker(job.folder.path, run)
    status, patience_seconds = "FAILED", 5.0
    stopped, results = "", None
    try:
        stopped = follow(job)
        if stopped:
            status = "KILLED"
        else:
            results = write_results(job)
            write_outcome(job.folder, job.folder.last_checkpoint())
            status, patience_seconds = "FINISHED", 120.0
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        tracking = tracker.finish(status, patience_seconds)
    if results is None:
        print(f"{stopped}; the same command goes on from there")
        return False
    register(job, tracking, results)
    if job.remote is not None:
        job.remote.push_results(job.folder)
    return True


def refuse_unregistrable_jobs(jobs: Sequence[TrainingJob]) -> None:
    """Raises `UserError` where a run that is yet to begin could not be registered as asked.

    One that has begun goes on: MLflow may be back by its end.
    """
    asked = [(job, job.settings.tracking.asked_name) for job in jobs if not job.folder.begun]
    for job, name in asked:
        if name is not None:
            from workflows.versions.registration import refuse_unregistrable

            refuse_unregistrable(name, job.folder.name, tracking_uri(job))


def refuse_a_full_disk(jobs: Sequence[TrainingJob]) -> None:
    """Raises `UserError` where the checkpoints of the runs will not fit."""
    # One more while the newest is written, and the exported model.
    counts = [job.settings.checkpoint.keep + 2 for job in jobs]
    needed = sum(count * job.checkpoint_bytes() for job, count in zip(jobs, counts, strict=True))
    folder = jobs[0].folder.path
    free = shutil.disk_usage(folder).free
    if free < needed:
        can_keep_fewer = any(job.settings.checkpoint.keep > 1 for job in jobs)
        lower = "lower --checkpoint.keep, " if can_keep_fewer else ""
        raise UserError(
            f"{sum(counts)} checkpoints need {needed / 2**30:.1f} GiB",
            f"{folder} has {free / 2**30:.1f} GiB free",
            f"free some, {lower}or choose another --storage",
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
    from workflows.reproduction.run_origin import origin_tags

    folder, settings = job.folder, job.settings
    if not folder.run_key.exists():
        write_atomically(folder.run_key, uuid4().hex)
    params, tags, dataset = job.described()
    return TrackedRun(
        tracking_uri=tracking_uri(job),
        experiment=settings.tracking.experiment,
        run_name=folder.name,
        run_key=folder.run_key.read_text(),
        params=params | flattened(settings.portable()),
        tags=code_tags(Path(__file__).parent) | origin_tags(folder) | tags,
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


WATTS = {"cpu": 10, "cuda": 700, "tpu": 1000}
"""Assumptions of the energy estimate: a server core with memory, an H100 under load, a TPU host
with four v4 chips under load.
"""
MEASURED = ("heldout/", "dev/")
"""Prefixes of figures that are measured on data that was not trained on."""
_COUNTED = {"cpu": "core", "cuda": "GPU", "tpu": "TPU host"}


@dataclass(frozen=True)
class Usage:
    """The device hours of a run: of CPU cores, GPUs, or TPU hosts."""

    device: str
    device_hours: float

    @classmethod
    def of(cls, checkpoint: "CheckpointInfo") -> "Usage":
        """Returns the usage up to a checkpoint, earlier starts included."""
        device = checkpoint.extra["device"]
        cores = checkpoint.num_threads if device == "cpu" else 1
        return cls(device, checkpoint.extra["used_seconds"] * cores / 3600)

    def __str__(self) -> str:
        """Hours and estimated energy, with the assumption."""
        kind, watts = _COUNTED[self.device], WATTS[self.device]
        kilowatt_hours = self.device_hours * watts / 1000
        return (
            f"{self.device_hours:.2f} {kind}-hours, about {kilowatt_hours:.3g} kWh "
            f"(assuming {watts} W per {kind})"
        )


def register(job: TrainingJob, tracking: TrackingSummary, results: JobResults) -> None:
    """Registers the model folder as a version, if that is set; prints and stores the summary.

    Of a job with a title, as runs of a group have one, only the folder is printed. If MLflow does
    not answer, the summary says so and is not stored: the same command tries again.
    """
    folder, name, uri = job.folder, job.settings.tracking.register_as, tracking_uri(job)
    version, problem = None, tracking.error
    if name and tracking.run_id and not problem:
        from workflows.versions.registration import register_model_folder

        try:
            version = register_model_folder(
                folder.model,
                name=name,
                run_id=tracking.run_id,
                tracking_uri=uri,
                card=results.card,
                tags=lineage_tags(folder) | {"run": folder.name},
                metrics=results.figures,
            )
        except UserError as error:
            problem = str(error)
    lines = list(results.lines)
    if job.remote is not None:
        lines.append(f"address      {job.remote.address}")
    if version is not None:
        lines.append(f"registered   models:/{name}/{version}")
    if problem or tracking.unsent_records:
        lines.append(f"MLflow       {tracking.unsent_records:,} records not sent: {problem}")
        again = "sends them and registers the model" if name else "sends them"
        lines.append(f"             the same command {again}")
    else:
        lines.append(f"MLflow       {open_command(uri)}")
    text = "\n".join(lines)
    if not problem and not tracking.unsent_records:
        folder.finish(text + "\n", job.settings.asked())
        if job.title:
            text = f"{job.title}  finished: {folder.path}"
    print(text, flush=True)


def lineage_of(
    folder: RunFolder, described: Mapping[str, str], figures: Mapping[str, float]
) -> Lineage:
    """Returns the lineage that the run's model folder is written with.

    `described` are the run's own tags. Of the figures those are kept that are measured on data that
    was not trained on. `run_id` is None if MLflow has not answered yet.
    """
    measured = {
        name: value
        for name, value in figures.items()
        if name.startswith(MEASURED) and math.isfinite(value)
    }
    return lineage_of_tags({**described, **lineage_tags(folder)}).model_copy(
        update={
            "run": folder.name,
            "run_id": read_json(folder.path / STATE_NAME).get("run_id"),
            "metrics": measured,
        }
    )


def open_command(tracking_uri: str) -> str:
    """Returns the command, or the address, that shows the run in MLflow."""
    if tracking_uri.startswith("http"):
        return tracking_uri
    beside_python = Path(sys.executable).with_name("mlflow")
    program = str(beside_python) if beside_python.exists() else "mlflow"
    return shlex.join([program, "ui", "--backend-store-uri", tracking_uri])


def lineage_tags(folder: RunFolder) -> dict[str, str]:
    """Returns the tags of the run, which its versions carry too."""
    return read_json(folder.path / SPECIFICATION_NAME).get("tags", {})
