"""Metrics of runs for Prometheus: their progress goes in, Ray exports it at each node's port.

Set in the driver, which is there while workers are lost and waited for, and costs them nothing. Ray
puts `ray_` before the names; infra/monitoring takes it away again.
"""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ray.util.metrics import Counter, Gauge

from bert_core.training.loop import NonFiniteLossError
from workflows.messages import RunProgress

TAGS = ("run", "kind")
"""The run's name, and what it is: `pretraining` or `finetuning`."""

REFRESH_SECONDS = 5.0
"""How often all gauges are set again: Ray forgets one that was not set for two reports (20 s)."""

_OF_PROGRESS = {
    "bertline_training_step": ("step", "Steps that are finished"),
    "bertline_training_planned_steps": ("total_steps", "Steps that the run has in all"),
    "bertline_training_loss": ("train/loss", "Training loss of the last step"),
    "bertline_training_heldout_loss": (
        "heldout/masked_token_loss",
        "Loss of predicted tokens on held-out rows, when they were measured last",
    ),
    "bertline_training_learning_rate": ("train/learning_rate", "Learning rate of the last step"),
    "bertline_training_gradient_norm": ("train/gradient_norm", "Gradient norm of the last step"),
    "bertline_training_tokens_per_second": (
        "tokens_per_second",
        "Tokens without padding, all workers, over the last steps",
    ),
    "bertline_training_padding_ratio": ("padding_share", "Share of places that are padding"),
    "bertline_training_flops_utilization_ratio": (
        "mfu",
        "Share of what the devices can compute that the model needs (MFU)",
    ),
    "bertline_training_memory_bytes": ("memory_bytes", "Memory in use by rank 0's device"),
    "bertline_training_remaining_seconds": ("eta_seconds", "Time left at the present speed"),
}
"""Gauges by name: the figure of `RunProgress.figures` that each takes, and its description."""

RUNNING = "bertline_training_running"
WAITING = "bertline_training_waiting"
PROGRESS = "bertline_training_progress_timestamp_seconds"
CHECKPOINT = "bertline_training_checkpoint_timestamp_seconds"
_OWN = {
    RUNNING: "1 while the run trains or waits for workers, 0 when it has ended",
    WAITING: "1 while workers are missing",
    PROGRESS: "When a step was finished last, or the run was begun",
    CHECKPOINT: "When a checkpoint was written last, or the run was begun",
}
NON_FINITE = "bertline_training_non_finite_losses"
"""A counter, to Prometheus `…_total`; it stays with Ray's node when the run has ended."""


def metric_names() -> tuple[str, ...]:
    """The names that Prometheus has, without Ray's prefix."""
    return (*_OF_PROGRESS, *_OWN, f"{NON_FINITE}_total")


class TrainingMetrics:
    """The metrics of one run; called with its progress, and left when it ends.

    `clock` gives Unix seconds. Raises nothing where Ray exports no metrics.
    """

    def __init__(self, run: str, kind: str, clock: Callable[[], float] = time.time) -> None:
        self._tags = {"run": run, "kind": kind}
        self._clock = clock
        descriptions = {name: text for name, (_, text) in _OF_PROGRESS.items()} | _OWN
        self._gauges = {name: Gauge(name, text, TAGS) for name, text in descriptions.items()}
        self._non_finite = Counter(NON_FINITE, "Times that a loss was not finite", TAGS)
        self._seen = RunProgress()
        self._shown: dict[str, float] = {}
        self._refreshed = clock()

    def __enter__(self) -> Self:
        """The run has begun; its clocks start, so that one that never makes a step is seen too."""
        self._set(RUNNING, 1)
        self._set(WAITING, 0)
        self._set(PROGRESS, self._clock())
        self._set(CHECKPOINT, self._clock())
        return self

    def __call__(self, progress: RunProgress) -> None:
        """Takes in the progress; the same again only keeps the gauges alive."""
        if self._clock() - self._refreshed >= REFRESH_SECONDS:
            self._refreshed = self._clock()
            for name, value in self._shown.items():
                self._set(name, value)
        before, self._seen = self._seen, progress
        if before == progress:
            return
        self._set(WAITING, bool(progress.waiting))
        figures, earlier = progress.figures(), before.figures()
        for name, (figure, _) in _OF_PROGRESS.items():
            if figure in figures and figures[figure] != earlier.get(figure):
                self._set(name, figures[figure])
        if progress.step not in (None, before.step):
            self._set(PROGRESS, self._clock())
        if progress.checkpoint not in (None, before.checkpoint):
            self._set(CHECKPOINT, self._clock())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """The run has ended, by an error or not; one that is not finite is counted."""
        if isinstance(error, NonFiniteLossError):
            self._non_finite.inc(1, self._tags)
        self._set(RUNNING, 0)
        self._set(WAITING, 0)

    def _set(self, name: str, value: float) -> None:
        self._shown[name] = float(value)
        self._gauges[name].set(self._shown[name], self._tags)
