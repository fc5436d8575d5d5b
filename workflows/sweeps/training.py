"""The training of a sweep: trials go in, Ray Tune gives each a place and a time, news come out.

Tune decides what runs where and what is tried again; what a trial has reached lies in its run's
folder, so nothing of Tune's own files is needed to go on.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import ray
from ray import tune
from ray.tune.search import Searcher

from bert_core.errors import UserError
from workflows.clusters.settings import ClusterSettings
from workflows.clusters.tasks import beside_the_driver, connect, refuse_folder_out_of_reach
from workflows.clusters.workers import POLL_SECONDS
from workflows.command import InThread, stop_on_signal
from workflows.sweeps.trial import EPOCH, SCORE, Board, run_trial
from workflows.training.job import TrainingJob

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler

TRIES = 2
"""How often a trial is begun before it counts as failed."""

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
    """What each trial has: torch threads, each a CPU, and GPUs or a share of one."""

    threads: int
    gpus: float

    @classmethod
    def of(cls, cluster: ClusterSettings, gpus_per_trial: float) -> Self:
        """That of the settings: one thread where they say none, GPUs where they are used."""
        return cls(cluster.threads_per_worker or 1, gpus_per_trial if cluster.use_gpu else 0.0)

    @property
    def resources(self) -> dict[str, float]:
        """By Tune's names."""
        return {"cpu": self.threads} | ({"gpu": self.gpus} if self.gpus else {})


@dataclass(frozen=True)
class TrialToTrain:
    """A job, the metric that decides, and which of the shared objects its run gets, by name."""

    job: TrainingJob
    criterion: str
    shared: Mapping[str, str] = field(default_factory=dict)


Next = Callable[[], TrialToTrain | None]
"""Gives the next trial to begin, None when there is none left."""


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
    nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
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
    shared: Mapping[str, Any],
    *,
    place: TrialPlace,
    at_once: int,
    folder: Path,
    scheduler: "TrialScheduler | None" = None,
) -> Iterator[dict[str, dict[str, Any]]]:
    """Trains trials on the cluster that was joined; yields the news of all by name, now and then.

    `folder` holds Tune's own files meanwhile. A trial that fails is begun once more. On SIGINT or
    SIGTERM the running ones save and return, and no others begin; on a second one the sweep is
    abandoned (`KeyboardInterrupt`).
    """
    os.environ.update(_TUNE_ENVIRONMENT)
    board = beside_the_driver(Board)
    order = _Order(next_trial, place.threads)
    shutil.rmtree(folder, ignore_errors=True)
    trainable = tune.with_parameters(run_trial, shared=dict(shared), board=board)
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
            yield ray.get(board.news.remote())
    results = fitting.result()
    yield _with_deaths(ray.get(board.news.remote()), results)
    shutil.rmtree(folder, ignore_errors=True)


def early_stopping(max_epochs: int) -> "TrialScheduler":
    """ASHA over epochs: a trial that is behind after its first one, then after the third, ends."""
    from ray.tune.schedulers import ASHAScheduler

    # Beyond the last epoch, so that a trial which reaches its end is not ended.
    return ASHAScheduler(time_attr=EPOCH, max_t=max_epochs + 1, grace_period=1, reduction_factor=3)


class _Order(Searcher):
    """Hands Tune the trials in our order: each config is a whole run, made in this process."""

    def __init__(self, next_trial: Next, threads: int) -> None:
        super().__init__(metric=SCORE, mode="max")
        self._next, self._threads = next_trial, threads
        self.is_stopped = False

    def __getstate__(self) -> dict[str, Any]:
        """Tune writes a copy down to go on from; nothing goes on from it."""
        return {}

    def suggest(self, trial_id: str) -> Any:  # noqa: ANN401, ARG002 - a config, or FINISHED
        """The next trial's config."""
        trial = None if self.is_stopped else self._next()
        if trial is None:
            return Searcher.FINISHED
        return {
            "name": trial.job.folder.name,
            "job": trial.job.run(),
            "shared": dict(trial.shared),
            "criterion": trial.criterion,
            "threads": self._threads,
        }

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Nothing: what became of it is on the board."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing is kept of Tune's."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing is kept of Tune's."""


def _with_deaths(
    news: dict[str, dict[str, Any]], results: "tune.ResultGrid"
) -> dict[str, dict[str, Any]]:
    """The news, where processes that died without a word have failed too."""
    told = {name: dict(each) for name, each in news.items()}
    for result in results:
        name = (result.config or {}).get("name")
        if result.error is None or name is None:
            continue
        each = told.setdefault(name, {})
        if each.get("state") in (None, "running"):
            reason = " ".join(str(result.error).split())[:300]
            each |= {"state": "failed", "failure": f"its process died: {reason}"}
    return told
