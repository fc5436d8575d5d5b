"""A trial of a sweep in the process that Tune gives it: one training run, whole, by one worker.

It is the run that the same settings make elsewhere, in the same folder, and goes on from its last
checkpoint. What it has reached is told to Tune after each evaluation, which may end it there.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import ray
import torch
from ray import tune

from bert_core.errors import UserError
from workflows.cluster import POLL_SECONDS, Worker
from workflows.messages import RunProgress
from workflows.training.worker_main import WorkerJob, train_job

SCORE, EPOCH = "score", "epoch"
"""What Tune is told: the criterion, the higher the better, and after how many epochs."""


class Board:
    """A process between driver and trials: the last news of each trial, and a wish to stop.

    `state` among the news is `running`, `trained`, `behind` (ended early), `stopped` or `failed`.
    """

    def __init__(self) -> None:
        self._news: dict[str, dict[str, Any]] = {}
        self._stop = False

    def note(self, name: str, news: dict[str, Any]) -> None:
        """Takes in what a trial has to say."""
        self._news[name] = self._news.get(name, {}) | news

    def news(self) -> dict[str, dict[str, Any]]:
        """What all have said last, by their names."""
        return self._news

    def request_stop(self) -> None:
        """Asks all trials to save and return."""
        self._stop = True

    def stop_requested(self) -> bool:
        """Whether the driver was told to stop."""
        return self._stop


class TrialWorker(Worker):
    """The one worker of a trial; its news go to the board, its figures to Tune."""

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
        figures = progress.figures()
        if progress.checkpoint is not None:
            figures["checkpoint"] = progress.checkpoint
        self._channel.note.remote(self._name, figures)

    def report(self, figures: dict[str, float]) -> None:
        """Tells Tune; raises `SystemExit` where the scheduler ends the trial."""
        if self._criterion in figures:
            tune.report({SCORE: figures[self._criterion], EPOCH: figures.get("dev/epoch", 0.0)})

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Meanwhile hears of a wish to stop."""
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


def run_trial(config: dict[str, Any], shared: dict[str, Any], board: Any) -> None:  # noqa: ANN401
    """Trains what is left of a trial.

    `config` holds `name`, the `job` (a `WorkerJob`), of what is `shared` by
    trials that which is its own, by names, the `criterion` and the `threads`.
    """
    if ray.get(board.stop_requested.remote()):
        return
    name = config["name"]
    torch.set_num_threads(config["threads"])
    torch.set_flush_denormal(True)  # products over denormals are several times slower
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    worker = TrialWorker(name, device, board, config["criterion"])
    board.note.remote(name, {"state": "running", "failure": None})
    try:
        with worker.listening():
            stopped = _train(config, shared, worker)
    except SystemExit:
        ray.get(board.note.remote(name, {"state": "behind"}))
        raise
    except Exception as error:
        failure = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        ray.get(board.note.remote(name, {"state": "failed", "failure": " ".join(failure.split())}))
        raise
    finally:
        gc.collect()  # model and optimizer do not wait beside those of the next trial
    ray.get(board.note.remote(name, {"state": "stopped" if stopped else "trained"}))


def _train(config: dict[str, Any], shared: dict[str, Any], worker: TrialWorker) -> bool:
    """Whether the run was told to stop before its end."""
    job: WorkerJob = config["job"]
    inputs = {key: shared[name] for key, name in config["shared"].items()}
    job = replace(job, open_parts=partial(job.open_parts, **inputs))
    return train_job(job, worker).stopped
