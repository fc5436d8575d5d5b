"""A trial of a sweep seen from its driver: a point with a seed, its run, and what became of it.

The run folder holds everything; `trial.json` in it says what a finished trial came to, and stays
when its weights have gone.
"""

import shutil
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from workflows.finetuning.job import FinetuningJob
from workflows.sweeps.outcome import EpochFigures, Point, TrialOutcome
from workflows.tracking.journal import read_records
from workflows.tracking.tracker import JOURNAL_NAME

if TYPE_CHECKING:
    from workflows.sweeps.training import TrialToTrain

RESULT = "trial.json"
STEP_LOSS, DEV_LOSS, DEV_EPOCH = "train/loss", "dev/loss", "dev/epoch"


@dataclass
class PlannedTrial:
    """A point with a seed, and the run that it is; `failure` is why its last try has failed."""

    point: Point
    seed: int
    job: FinetuningJob
    failure: str | None = None
    news: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The run's name."""
        return self.job.folder.name

    @property
    def criterion(self) -> str:
        """The metric that decides, as evaluations call it."""
        return f"dev/{self.job.data.task.criterion}"

    @property
    def is_finished(self) -> bool:
        """Whether it has come to its end; its weights may have gone since."""
        return (self.job.folder.path / RESULT).is_file()

    @cached_property
    def cost(self) -> int:
        """Tokens that it reads in all its epochs."""
        return self.job.settings.epochs * int(self.job.data.train.rows.lengths.sum())

    @property
    def outcome(self) -> TrialOutcome:
        """What became of it so far."""
        if self.is_finished:
            return TrialOutcome.read(self.job.folder.path / RESULT)
        return TrialOutcome(self.name, self.point, self.seed, failure=self.failure)

    def finish(self, *, stopped_early: bool = False) -> None:
        """Writes down what it came to: from its last checkpoint, or the journal if ended early."""
        from workflows.versions.finished_run import Usage

        curve = self.curve()
        if stopped_early:
            best = max(curve, key=lambda each: each.score)
            seconds = self._journal_seconds()
            outcome: dict[str, Any] = {
                "score": best.score,
                "best_epoch": best.epoch,
                "seconds": seconds,
                "device": "cuda" if self.job.settings.cluster.use_gpu else "cpu",
                "device_hours": seconds / 3600,
                "num_tokens": self.cost * len(curve) // self.job.settings.epochs,
                "stopped_early": True,
            }
        else:
            checkpoint = self.job.folder.last_checkpoint()
            found, usage = checkpoint.extra["notes"]["best"], Usage.of(checkpoint)
            outcome = {
                "score": found["score"],
                "best_epoch": found["epoch"],
                "figures": found["figures"],
                "seconds": checkpoint.extra["used_seconds"],
                "device": usage.device,
                "device_hours": usage.device_hours,
                "num_tokens": checkpoint.num_tokens_seen,
            }
        result = TrialOutcome(self.name, self.point, self.seed, curve=curve, **outcome)
        result.write(self.job.folder.path / RESULT)

    def curve(self) -> tuple[EpochFigures, ...]:
        """What each epoch came to, from the journal."""
        losses: dict[int, list[float]] = defaultdict(list)
        curve: list[EpochFigures] = []
        for record in read_records(self.job.folder.path / JOURNAL_NAME):
            if STEP_LOSS in record.metrics:
                losses[len(curve) + 1].append(record.metrics[STEP_LOSS])
            if self.criterion in record.metrics:
                epoch = len(curve) + 1
                score, loss = record.metrics[self.criterion], record.metrics[DEV_LOSS]
                curve.append(EpochFigures(epoch, score, loss, statistics.fmean(losses[epoch])))
        return tuple(curve)

    def _journal_seconds(self) -> float:
        times = [record.time for record in read_records(self.job.folder.path / JOURNAL_NAME)]
        return times[-1] - times[0]

    def drop_weights(self) -> None:
        """Removes checkpoints and weights: the trial cannot be the best any more."""
        from workflows.finetuning.worker import BEST_WEIGHTS

        shutil.rmtree(self.job.folder.checkpoints, ignore_errors=True)
        (self.job.folder.path / BEST_WEIGHTS).unlink(missing_ok=True)

    def to_train(self) -> "TrialToTrain":
        """What the cluster gets of it: the data are read once and shared."""
        from workflows.sweeps.training import TrialToTrain

        return TrialToTrain(self.job, self.criterion, {"task_data": self.job.data.sha256})
