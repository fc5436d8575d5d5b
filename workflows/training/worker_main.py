"""The main function of a training worker: it trains one run after the other.

A batch's way through a run: `train_job` opens the run, `run.TrainingRun` loops over
`bert_core.training.loop.train`, which calls the run's loss, which calls the model.
"""

import gc
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_core.errors import UserError
from bert_core.training.checkpoint_folder import checkpoint_step
from bert_core.training.ranks import number_of_rank_zero
from workflows.clusters.workers import Worker, current_worker
from workflows.messages import Outcome, RunProgress
from workflows.runs.folder import RunFolder, is_of_last_step
from workflows.runs.remote import RemoteRun
from workflows.runs.storage import working_copy
from workflows.training.run import RunParts, TrainingRun, agreed_checkpoint


@dataclass(frozen=True)
class WorkerJob:
    """A run as its driver hands it to workers."""

    open_parts: Callable[[Worker, Path], RunParts]
    """Reads the data and builds the fresh state of the run in a folder. Raises `UserError`."""
    run_folder: Path
    """On the driver's machine; workers of a remote run have a copy of their own."""
    storage: str


def worker_main(config: dict[str, Any]) -> list[Outcome]:
    """Trains the `jobs` of `config`; Ray Train calls this in every worker."""
    with current_worker(config) as worker:
        return train_jobs(config["jobs"], worker)


def train_jobs(jobs: Sequence[WorkerJob], worker: Worker) -> list[Outcome]:
    """Trains jobs one after the other, each as if alone, until one is asked to stop.

    Returns the outcome of each job that was begun.
    """
    outcomes: list[Outcome] = []
    for number, job in enumerate(jobs):
        if number_of_rank_zero(int(worker.stop_requested()), worker.device):
            break
        worker.begin_job(number)
        outcomes.append(train_job(job, worker))
        worker.end_job(outcomes[-1])
        if outcomes[-1].stopped:
            break
        gc.collect()  # model, optimizer and rows are freed before the next job allocates its own
    return outcomes


def train_job(job: WorkerJob, worker: Worker) -> Outcome:
    """Trains what is left of a run, from its newest whole checkpoint.

    The data of a run that is trained already are not read.
    """
    folder, remote = run_location(job.storage, job.run_folder)
    if remote is None and not folder.is_dir():  # a node that came after the driver's check
        raise UserError(
            "a node that has joined cannot reach the storage",
            f"{folder} at {socket.gethostname()}",
            "give --storage in a folder that all nodes share, or an address",
        )
    path, _ = agreed_checkpoint(worker, RunFolder(folder), remote)
    if path is not None and is_of_last_step(path):
        step = checkpoint_step(path)
        if worker.rank == 0:
            worker.publish(RunProgress(step=step, total_steps=step))
        return Outcome(step, stopped=False)
    return TrainingRun(job.open_parts(worker, folder), worker, folder, remote).train()


def run_location(storage: str, run_folder: Path) -> tuple[Path, RemoteRun | None]:
    """Where a worker of this machine works: the run folder, or a copy of what is at the address."""
    if "://" not in storage:
        return run_folder, None
    remote = RemoteRun(storage, run_folder.name)
    folder = working_copy(storage) / "runs" / run_folder.name
    remote.adopt(RunFolder(folder))
    return folder, remote
