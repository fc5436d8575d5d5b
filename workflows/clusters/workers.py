"""Runs a training function on Ray Train workers; the only importer of `ray.train`.

A module-level function and a plain dict go in. The function goes through jobs, known here by their
numbers from 0: what rank 0 says of each, and what becomes of it, comes out while the others go on.
Ctrl-C and SIGTERM are passed on as a request to stop.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.train import FailureConfig, Result, RunConfig, ScalingConfig, WorkerGroupError
from ray.train.collective import broadcast_from_rank_zero
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from ray.train.v2.jax import JaxTrainer

from bert_core.errors import UserError
from workflows.clusters.capacity import Waiting
from workflows.clusters.channel import Channel, WorkerStatus
from workflows.clusters.regrouping import NodeWatch, within_room
from workflows.clusters.settings import ClusterSettings
from workflows.clusters.tasks import beside_the_driver
from workflows.command import InThread, stop_on_signal
from workflows.messages import Outcome, RunProgress
from workflows.progress import duration

POLL_SECONDS = 0.3
"""How often the driver looks for progress and a worker for a request to stop."""
_SHARE_SECONDS = 1.0
NEVER_SECONDS = 1e9
"""How often Ray resizes a group: it would not let workers save, as `regrouping` does."""


@dataclass
class Worker:
    """What a training function knows of the cluster: its rank, its device, a word to the driver.

    `through_xla` says that its TPU computes by XLA; `device` is then the CPU, where torch is.
    """

    rank: int
    world_size: int
    device: torch.device
    _channel: Any
    _stop: threading.Event = field(default_factory=threading.Event)
    through_xla: bool = False

    def begin_job(self, number: int) -> None:
        """Announces the job that the progress is of from here on."""
        if self.rank == 0:
            self._channel.begin_job.remote(number)

    def publish(self, progress: RunProgress) -> None:
        """Sends the progress to the driver; never waits."""
        self._channel.publish.remote(progress)

    def publish_share(self, activity: str) -> Callable[[float], None]:
        """A function that publishes which share of an activity is done, once a second at most."""
        begin = published = time.monotonic()

        def publish(share: float) -> None:
            nonlocal published
            now = time.monotonic()
            if now - published > _SHARE_SECONDS:
                published = now
                left = duration((now - begin) * (1 - share) / share)
                self.publish(RunProgress(activity=f"{activity}, {share:.0%}, {left} left"))

        return publish

    def report(self, figures: dict[str, float]) -> None:
        """What an evaluation found, its checkpoint saved; a sweep may end the trial here."""

    def end_job(self, outcome: Outcome) -> None:
        """Sends the outcome of the job."""
        if self.rank == 0:
            self._channel.end_job.remote(outcome)

    def stop_requested(self) -> bool:
        """Whether the driver was told to stop (rank 0 hears it; the loop tells the others)."""
        return self._stop.is_set()


@contextmanager
def workers_at(
    train_worker: Callable[[dict[str, Any]], Any],
    config: dict[str, Any],
    *,
    settings: ClusterSettings,
    folder: Path,
) -> Iterator["WorkersAtJobs"]:
    """Calls `train_worker(config)` on every worker, which returns the outcomes of config["jobs"].

    The driver has joined a cluster with room for them (`join_cluster_with_room`).
    `folder` holds Ray's own files. Lost workers are replaced up to `max_failures` times; those that
    should begin again elsewhere (`regrouping`) are asked to stop, and others go on. A `UserError`
    in a worker ends the jobs at once. On SIGINT or SIGTERM the workers are asked to stop and to
    return; on a second one, or where none is at work, the jobs are abandoned
    (`KeyboardInterrupt`). Leaves when the workers have gone.
    """
    channel = beside_the_driver(Channel)
    payload = {
        "train_worker": train_worker,
        "config": config,
        "channel": channel,
        "num_threads": settings.threads_per_worker or _share_of_cores(settings),
        "through_xla": settings.tpu is not None,
    }
    watch = NodeWatch(settings, lambda: _answer(channel.status).group, channel.leave.remote)
    fit = InThread(lambda: _fit_in_groups(payload, settings, folder))
    workers = WorkersAtJobs(channel, fit, settings, lambda: watch.reason)
    with stop_on_signal(workers.request_stop), watch:
        yield workers
        workers.wait()


def _fit_in_groups(payload: dict[str, Any], settings: ClusterSettings, folder: Path) -> Result:
    """Trains with one group of workers after the other; returns what Ray says of the last."""
    channel, num_jobs = payload["channel"], len(payload["config"]["jobs"])
    while True:
        result = _trainer(payload, within_room(settings), folder).fit()
        outcomes = result.return_value or []
        finished = len(outcomes) == num_jobs and not outcomes[-1].stopped
        if finished or not ray.get(channel.begin_again.remote()):
            return result


def _trainer(
    payload: dict[str, Any], settings: ClusterSettings, folder: Path
) -> TorchTrainer | JaxTrainer:
    """Ray's trainer: torch's on CPU and GPU; on TPU JAX's, a worker on each host of a slice."""
    # Our own checkpoints say where to go on; a fresh name keeps Ray from a resume of its own.
    run_config = RunConfig(
        name=f"attempt-{uuid4().hex[:8]}",
        storage_path=str(folder),
        failure_config=FailureConfig(max_failures=settings.max_failures),
    )
    resources = {"CPU": settings.cpus_per_worker}
    if settings.tpu is not None:
        kind = settings.tpu_slice
        return JaxTrainer(
            _enter_worker,
            train_loop_config=payload,
            scaling_config=ScalingConfig(
                num_workers=settings.num_workers,
                use_tpu=True,
                topology=kind.topology,
                accelerator_type=kind.accelerator_type,
                elastic_resize_monitor_interval_s=NEVER_SECONDS,
                resources_per_worker=resources | {"TPU": kind.chips_per_host},
            ),
            run_config=run_config,
        )
    return TorchTrainer(
        _enter_worker,
        train_loop_config=payload,
        torch_config=TorchConfig(backend="nccl" if settings.use_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=settings.num_workers,
            use_gpu=settings.use_gpu,
            elastic_resize_monitor_interval_s=NEVER_SECONDS,
            resources_per_worker=resources | ({"GPU": 1} if settings.use_gpu else {}),
        ),
        run_config=run_config,
    )


class WorkersAtJobs:
    """Workers that go through jobs one after the other, seen from their driver."""

    def __init__(
        self,
        channel: Any,  # noqa: ANN401
        fit: InThread,
        settings: ClusterSettings,
        reason_to_leave: Callable[[], str] = str,
    ) -> None:
        self._channel = channel
        self._fit = fit
        self._settings = settings
        self._reason_to_leave = reason_to_leave
        self._waiting = Waiting(settings)

    def progress(self, job: int) -> Iterator[RunProgress]:
        """Yields rank 0's progress in a job now and then, until the next begins or workers end.

        `waiting` says what the driver waits for while workers are missing or about to move.
        """
        over = False
        while not over:
            running = self._fit.running(POLL_SECONDS)
            status: WorkerStatus = _answer(self._channel.status)
            over = not running or any(number > job for number in status.progress)
            waiting = (self._waiting.text(status) or self._reason_to_leave()) if running else ""
            yield replace(status.progress.get(job, RunProgress()), waiting=waiting)

    def outcome(self, job: int) -> Outcome | None:
        """The outcome of a job that has ended; None when all were stopped before it.

        Raises what ended it, a `UserError` where it is a user's to mend.
        """
        status: WorkerStatus = _answer(self._channel.status)
        if job in status.outcomes:
            return status.outcomes[job]
        failure: UserError | None = _answer(self._channel.failure)
        if failure is not None:
            raise failure
        try:
            outcomes: list[Outcome] = self._fit.result().return_value
        except WorkerGroupError as error:
            if _lost_workers(error):
                raise UserError(
                    f"workers were lost more than {self._settings.max_failures} times",
                    "killed, out of memory, or their machine went away (see `ray summary actors`)",
                    "the same command goes on; --cluster.max_failures says how often by itself",
                ) from error
            raise
        return outcomes[job] if job < len(outcomes) else None

    def request_stop(self) -> None:
        """Asks the workers to stop; raises `KeyboardInterrupt` where none is at work."""
        if not (self._waiting.at_work and self._fit.running(0)):
            raise KeyboardInterrupt
        self._channel.request_stop.remote()

    def wait(self) -> None:
        """Returns when the workers have gone."""
        while self._fit.running(POLL_SECONDS):
            pass


def _answer(method: Any) -> Any:  # noqa: ANN401
    """What an actor's method returns; raises `UserError` where the actor is gone."""
    try:
        return ray.get(method.remote())
    except (RayActorError, OutOfMemoryError) as error:
        raise UserError(
            "lost the coordinator actor of the workers",
            "killed, out of memory, or its machine went away",
            "the same command goes on",
        ) from error


@contextmanager
def current_worker(config: dict[str, Any]) -> Iterator[Worker]:
    """The worker this process is, inside `train_worker`, with a thread that listens for a stop."""
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    through_xla = config["through_xla"]
    device = torch.device("cpu") if through_xla else get_device()
    worker = Worker(rank, world_size, device, config["channel"], through_xla=through_xla)
    ended = threading.Event()

    def listen() -> None:
        while not ended.wait(POLL_SECONDS):
            if ray.get(config["channel"].stop_requested.remote()):
                worker._stop.set()
                return

    if rank == 0:
        config["channel"].begin.remote(ray.get_runtime_context().get_placement_group_id())
        threading.Thread(target=listen, daemon=True, name="stop-listener").start()
    try:
        with _host_group(worker):
            yield worker
    finally:
        ended.set()
    if rank == 0:
        config["channel"].end.remote()


@contextmanager
def _host_group(worker: Worker) -> Iterator[None]:
    """Torch's process group among the hosts of a TPU, as there is one on CPU and GPU already.

    XLA exchanges gradients; what else workers agree on, such as a checkpoint, goes over this.
    """
    if not worker.through_xla or worker.world_size == 1:
        yield
        return
    here = free_address() if worker.rank == 0 else None
    address = broadcast_from_rank_zero(here)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{address}", rank=worker.rank, world_size=worker.world_size
    )
    yield
    dist.destroy_process_group()


def free_address() -> str:
    """This node's address with a port that was free just now, `host:port`."""
    host = ray.util.get_node_ip_address()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind(("", 0))
        port = listener.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _enter_worker(payload: dict[str, Any]) -> Any:  # noqa: ANN401
    """Prepares a worker process and calls the training function in it.

    A mistake of the user's is told to the driver before the worker falls, and the workers that
    Ray starts in its place find it told and return: it is not retried.
    """
    channel = payload["channel"]
    if ray.get(channel.failure.remote()) is not None:
        return None
    torch.set_num_threads(payload["num_threads"])
    torch.set_flush_denormal(True)  # products over denormals are several times slower
    try:
        known = {"channel": channel, "through_xla": payload["through_xla"]}
        return payload["train_worker"](payload["config"] | known)
    except UserError as error:
        ray.get(channel.fail.remote(error))
        raise


def _lost_workers(error: WorkerGroupError) -> bool:
    """Whether workers died, rather than raised something; the class is private to Ray.

    Those that are left may raise what it is to lose the other end of an exchange.
    """
    names = {type(failure).__name__ for failure in error.worker_failures.values()}
    return "WorkerHealthCheckFailedError" in names


def _share_of_cores(settings: ClusterSettings) -> int:
    """Torch threads of a worker: the same however many there are, as last bits depend on it.

    A host of a TPU has one worker alone.
    """
    beside = settings.fewest_workers if settings.tpu is None else 1
    return max(1, (os.cpu_count() or 1) // beside)
