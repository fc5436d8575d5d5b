"""Training with Ray Tune: trials go in, Tune schedules them, their states come out.

Tune decides what runs where and retries failures. All results are in the run folders, so resuming
needs none of Tune's own files. `run_trial` runs in the worker.
"""

import gc
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import ray
import torch
from ray import tune
from ray.tune.search import Searcher

from bert_core.errors import UserError
from workflows.clusters.settings import ClusterSettings
from workflows.clusters.tasks import beside_the_driver, connect, refuse_folder_out_of_reach
from workflows.clusters.workers import POLL_SECONDS, Worker
from workflows.command import InThread, stop_on_signal
from workflows.messages import RunProgress
from workflows.sweeps.planned import (
    BEHIND,
    FAILED,
    RUNNING,
    STOPPED,
    TRAINED,
    TrialStatus,
    TrialToTrain,
)
from workflows.training.run import WorkerJob, train_job

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler


SCORE, EPOCH = "score", "epoch"
"""What trials report to Tune: the criterion (higher is better) and the epoch."""
TRIES = 2
"""How often a trial is started before it counts as failed."""

_TUNE_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the journal is ours
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial that is asked to stop says none
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}


@dataclass(frozen=True)
class TrialPlace:
    """Resources of each trial: torch threads, each a CPU, and GPUs or a share of one."""

    threads: int
    gpus: float

    @classmethod
    def of(cls, cluster: ClusterSettings, gpus_per_trial: float) -> Self:
        """Those of the settings: one thread by default, GPUs where they are used."""
        return cls(cluster.threads_per_worker or 1, gpus_per_trial if cluster.use_gpu else 0.0)

    @property
    def resources(self) -> dict[str, float]:
        """By Tune's names."""
        return {"cpu": self.threads} | ({"gpu": self.gpus} if self.gpus else {})


Next = Callable[[], TrialToTrain | None]
"""Gives the next trial to start, None when there is none left."""


def join_cluster_for(
    place: TrialPlace, at_once: int | None = None, *, shared: Path | None = None
) -> int:
    """Joins a cluster, or starts one here; how many trials are to run at once.

    As many as there is room for now, at most `at_once`; on a cluster that was joined exactly so
    many, as it may grow. Raises `UserError` where no machine has room for a trial and none may
    come, and where one that has cannot reach the folder `shared`, which trials write below.
    """
    connect()
    wanted = {"CPU": float(place.threads)} | ({"GPU": place.gpus} if place.gpus else {})
    if shared is not None:
        refuse_folder_out_of_reach(shared, wanted)
    if at_once is not None and os.environ.get("RAY_ADDRESS"):
        return at_once
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    rooms = [min(node.get(kind, 0.0) // each for kind, each in wanted.items()) for node in nodes]
    if sum(rooms):
        return min(int(sum(rooms)), at_once or int(sum(rooms)))
    most = {kind: max(node.get(kind, 0.0) for node in nodes) for kind in wanted}
    kind = next((each for each in reversed(wanted) if wanted[each] > most[each]), "CPU")
    option = "--gpus_per_trial" if kind == "GPU" else "--cluster.threads_per_worker"
    raise UserError(
        f"a trial needs {wanted[kind]:g} {kind}",
        f"Ray sees {most[kind]:g} on a machine",
        f"lower {option}, join a larger cluster with RAY_ADDRESS; of one that grows say --at_once",
    )


def train_trials(
    next_trial: Next,
    *,
    place: TrialPlace,
    at_once: int,
    folder: Path,
    scheduler: "TrialScheduler | None" = None,
) -> Iterator[dict[str, TrialStatus]]:
    """Trains trials on the cluster that was joined; yields all states by name, now and then.

    `folder` holds Tune's own files meanwhile. A trial that fails is begun once more. On SIGINT or
    SIGTERM the running ones save and return, and no others begin; on a second one the sweep is
    abandoned (`KeyboardInterrupt`).
    """
    os.environ.update(_TUNE_ENVIRONMENT)
    board = beside_the_driver(Board)
    order = _Order(next_trial, place.threads, Sharing(board))
    shutil.rmtree(folder, ignore_errors=True)
    trainable = tune.with_parameters(run_trial, board=board)
    tuner = tune.Tuner(
        tune.with_resources(trainable, place.resources),
        tune_config=tune.TuneConfig(
            metric=SCORE,
            mode="max",
            num_samples=-1,
            search_alg=order,
            scheduler=scheduler,
            max_concurrent_trials=at_once,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name=folder.name,
            storage_path=str(folder.parent),
            failure_config=tune.FailureConfig(max_failures=TRIES - 1),
            verbose=0,
        ),
    )

    def request_stop() -> None:
        order.is_stopped = True
        board.request_stop.remote()

    fitting = InThread(tuner.fit)
    with stop_on_signal(request_stop):
        while fitting.running(POLL_SECONDS):
            yield ray.get(board.statuses.remote())
    results = fitting.result()
    yield _with_deaths(ray.get(board.statuses.remote()), results)
    shutil.rmtree(folder, ignore_errors=True)


def early_stopping(max_epochs: int) -> "TrialScheduler":
    """ASHA over epochs: a trial that is behind after its first one, then after the third, ends."""
    from ray.tune.schedulers import ASHAScheduler

    class UpToTheLastEpoch(ASHAScheduler):
        """A trial that reaches its end is not ended, though its last epoch be the third."""

        def on_trial_result(
            self,
            tune_controller: Any,  # noqa: ANN401 - Ray's own
            trial: Any,  # noqa: ANN401 - Ray's own
            result: dict[str, Any],
        ) -> str:
            if result[EPOCH] >= max_epochs:
                return self.CONTINUE
            return super().on_trial_result(tune_controller, trial, result)

    return UpToTheLastEpoch(
        time_attr=EPOCH, max_t=max_epochs + 1, grace_period=1, reduction_factor=3
    )


class Sharing:
    """Sends what trials share to the cluster, each once: it lives as long as this."""

    def __init__(self, board: Any) -> None:  # noqa: ANN401 - an actor
        self._board = board
        self._sent: dict[str, ray.ObjectRef] = {}

    def send(self, name: str, value: Any) -> None:  # noqa: ANN401 - of any kind
        """Sends an object, unless one of this name was sent."""
        if name not in self._sent:
            self._sent[name] = ray.put(value)
            ray.get(self._board.share.remote(name, [self._sent[name]]))


class _Order(Searcher):
    """Gives Tune the trials in our order: each config is a whole run, made in this process."""

    def __init__(self, next_trial: Next, threads: int, sharing: Sharing) -> None:
        super().__init__(metric=SCORE, mode="max")
        self._next, self._threads, self._sharing = next_trial, threads, sharing
        self.is_stopped = False

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune stores a copy for resuming, which is not used."""
        return {}

    def suggest(self, trial_id: str) -> Any:  # noqa: ANN401, ARG002 - a config, or FINISHED
        """The next trial's config."""
        trial = None if self.is_stopped else self._next()
        if trial is None:
            return Searcher.FINISHED
        for name, value in trial.shared.values():
            self._sharing.send(name, value)
        return {
            "name": trial.job.folder.name,
            "job": trial.job.worker_job(),
            "shared": {argument: name for argument, (name, _) in trial.shared.items()},
            "own": dict(trial.own),
            "criterion": trial.criterion,
            "threads": self._threads,
        }

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Nothing: the board has the outcome."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing: Tune's state is not kept."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: Tune's state is not kept."""


def _with_deaths(
    statuses: dict[str, TrialStatus], results: "tune.ResultGrid"
) -> dict[str, TrialStatus]:
    """The states, with processes that died without a message marked as failed."""
    known = dict(statuses)
    for result in results:
        name = (result.config or {}).get("name")
        if result.error is None or name is None:
            continue
        status = known.get(name, TrialStatus())
        if status.state in ("", RUNNING):
            reason = " ".join(str(result.error).split())[:300]
            known[name] = replace(status, state=FAILED, failure=f"its process died: {reason}")
    return known


class Board:
    """An actor between driver and trials: states, what trials share, and a stop request."""

    def __init__(self) -> None:
        self._statuses: dict[str, TrialStatus] = {}
        self._shared: dict[str, list[Any]] = {}
        self._stop = False

    def note(self, name: str, **changes: Any) -> None:  # noqa: ANN401 - fields of TrialStatus
        """Changes fields of a trial's status."""
        self._statuses[name] = replace(self._statuses.get(name, TrialStatus()), **changes)

    def statuses(self) -> dict[str, TrialStatus]:
        """The status of each trial that has begun, by name."""
        return self._statuses

    def share(self, name: str, reference: list[Any]) -> None:
        """Keeps where an object is, in a list: Ray would give the object itself."""
        self._shared[name] = reference

    def shared(self, name: str) -> list[Any]:
        """Where the object of this name is."""
        return self._shared[name]

    def request_stop(self) -> None:
        """Asks all trials to save and return."""
        self._stop = True

    def stop_requested(self) -> bool:
        """Whether the driver was told to stop."""
        return self._stop


class TrialWorker(Worker):
    """The only worker of a trial; it sends its progress to the board and figures to Tune."""

    def __init__(
        self,
        name: str,
        device: torch.device,
        board: Any,  # noqa: ANN401 - an actor
        criterion: str,
    ) -> None:
        super().__init__(rank=0, world_size=1, device=device, _channel=board)
        self._name, self._criterion = name, criterion

    def publish(self, progress: RunProgress) -> None:
        """Sends the progress to the driver; never waits."""
        self._channel.note.remote(self._name, progress=progress)

    def report(self, figures: dict[str, float]) -> None:
        """Tells Tune; raises `SystemExit` where the scheduler ends the trial."""
        if self._criterion in figures:
            tune.report({SCORE: figures[self._criterion], EPOCH: figures.get("dev/epoch", 0.0)})

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listens for a stop request during the block."""
        ended = threading.Event()

        def listen() -> None:
            while not ended.wait(POLL_SECONDS):
                if ray.get(self._channel.stop_requested.remote()):
                    self._stop.set()
                    return

        threading.Thread(target=listen, daemon=True, name="stop-listener").start()
        try:
            yield
        finally:
            ended.set()


def run_trial(config: dict[str, Any], board: Any) -> None:  # noqa: ANN401 - an actor
    """Trains what is left of a trial.

    `config` holds `name`, the `job` (a `WorkerJob`), arguments of the job that are `shared`, by
    their names, or its `own`, the `criterion` and the `threads`.
    """
    if ray.get(board.stop_requested.remote()):
        return
    name = config["name"]
    torch.set_num_threads(config["threads"])
    torch.set_flush_denormal(True)  # products over denormals are several times slower
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    worker = TrialWorker(name, device, board, config["criterion"])
    board.note.remote(name, state=RUNNING, failure=None)
    try:
        with worker.listening():
            named = config["shared"].items()
            shared = {each: ray.get(ray.get(board.shared.remote(name))[0]) for each, name in named}
            stopped = _train(config["job"], shared | config["own"], worker)
    except SystemExit:
        ray.get(board.note.remote(name, state=BEHIND))
        raise
    except Exception as error:
        failure = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        ray.get(board.note.remote(name, state=FAILED, failure=" ".join(failure.split())))
        raise
    finally:
        gc.collect()  # frees model and optimizer before the next trial allocates its own
    ray.get(board.note.remote(name, state=STOPPED if stopped else TRAINED))


def _train(job: WorkerJob, arguments: dict[str, Any], worker: TrialWorker) -> bool:
    """Trains; returns whether the run was told to stop before its end."""
    job = replace(job, open_parts=partial(job.open_parts, **arguments))
    return train_job(job, worker).stopped
