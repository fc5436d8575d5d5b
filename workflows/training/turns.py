"""What a worker does from its start to its end: it goes through the runs of several jobs in turn.

Jobs go in, each what opens its run and a `config`; each is trained as if alone.
"""

import gc
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bert_core.errors import UserError
from bert_core.training.checkpoint_names import checkpoint_step
from bert_core.training.ranks import number_of_rank_zero
from workflows.clusters.workers import Worker, current_worker
from workflows.remote_run import RemoteRun
from workflows.run_folder import RunFolder, is_of_last_step, sole_writer
from workflows.storage import working_copy
from workflows.training.run import TrainingRun, agreed_checkpoint

OpenRun = Callable[[dict[str, Any], Worker, Path, RemoteRun | None], TrainingRun]
"""`open_run(config, worker, folder, remote)`: reads the data and builds the fresh state of a run
that lies in `folder`. Raises `UserError` for what a user can mend.
"""


def train_worker(config: dict[str, Any]) -> list[dict[str, Any]]:
    """What a worker of Ray's does: see `train_in_turn`, for the jobs that `config` holds."""
    with current_worker(config) as worker:
        return train_in_turn(config["jobs"], worker)


def train_in_turn(
    jobs: Sequence[tuple[OpenRun, dict[str, Any]]], worker: Worker
) -> list[dict[str, Any]]:
    """Trains jobs one after the other, each as if alone, until one is told to stop.

    The `config` of a job holds its `settings`, its `run_folder` and whatever its `OpenRun` needs.
    Each goes on from its newest whole checkpoint; those that a worker before this one has trained
    are passed over. Returns for each job that was begun the last step, and whether it was told to
    stop.
    """
    outcomes: list[dict[str, Any]] = []
    for number, (open_run, config) in enumerate(jobs):
        if number_of_rank_zero(int(worker.stop_requested()), worker.device):
            break
        worker.begin_job(number)
        folder, remote = place_of_run(config["settings"]["storage"], Path(config["run_folder"]))
        if (
            remote is None and not folder.is_dir()
        ):  # a machine that came after the driver had looked from all
            raise UserError(
                "a node that has joined cannot reach the storage",
                f"{folder} at {socket.gethostname()}",
                "give --storage in a folder that all nodes share, or an address",
            )
        path, _ = agreed_checkpoint(worker, RunFolder(folder), remote)
        if path is not None and is_of_last_step(path):
            outcome = {"step": checkpoint_step(path), "stopped": False}
        else:
            outcome = train_alone(open_run(config, worker, folder, remote))
        outcomes.append(outcome)
        worker.end_job(outcome)
        if outcome["stopped"]:
            break
        gc.collect()  # model, optimizer and rows of a job do not wait beside those of the next
    return outcomes


def place_of_run(storage: str, run_folder: Path) -> tuple[Path, RemoteRun | None]:
    """Where a worker of this machine works: the run folder, or a copy of what is at the URI."""
    if "://" not in storage:
        return run_folder, None
    remote = RemoteRun(storage, run_folder.name)
    folder = working_copy(storage) / "runs" / run_folder.name
    remote.adopt(RunFolder(folder))
    return folder, remote


def train_alone(run: TrainingRun) -> dict[str, Any]:
    """`run.train()`, after every worker of an earlier start is gone.

    Raises `UserError` with the run's remedy when the device's memory does not suffice.
    """
    try:
        if run.worker.rank:
            return run.train()
        with sole_writer(run.folder):
            return run.train()
    except torch.OutOfMemoryError as error:
        raise UserError(
            "the device is out of memory", str(run.worker.device), run.out_of_memory_remedy
        ) from error
