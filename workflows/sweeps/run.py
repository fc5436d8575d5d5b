"""A sweep on its way: what is missing of its trials is trained, tracked, shown and written down."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from workflows.run_folder import write_atomically
from workflows.sweeps.planned_trial import PlannedTrial
from workflows.sweeps.search import Proposals
from workflows.sweeps.sweep import Sweep, keep_points
from workflows.sweeps.table import (
    BEHIND,
    FAILED,
    RUNNING,
    STOPPED,
    TRAINED,
    SweepTable,
    TableRow,
    trial_row,
)
from workflows.sweeps.tracker import SweepTracker
from workflows.sweeps.training import TrialPlace, TrialToTrain, early_stopping, train_trials
from workflows.tracking.journal import Journal, last_step
from workflows.tracking.system_metrics import note_throughput
from workflows.tracking.tracker import (
    ARTIFACTS_NAME,
    JOURNAL_NAME,
    DatasetInput,
    TrackedRun,
    code_tags,
)
from workflows.training.job import TrainingJob, begin, flattened, refuse_a_full_disk, tracked_run

MOST_REPEATS = 50
"""How often Optuna may propose what was tried already before there is nothing new."""


class SweepRun:
    """One start of a sweep's training; `row` says how a trial is shown meanwhile.

    `keeps_winner`: in the end the best trial has its weights, if it must be trained again for that.
    """

    def __init__(
        self,
        sweep: Sweep,
        tracker: SweepTracker,
        place: TrialPlace,
        at_once: int,
        *,
        row: Callable[[PlannedTrial], TableRow] = trial_row,
        keeps_winner: bool = True,
    ) -> None:
        self.sweep, self.tracker, self._row = sweep, tracker, row
        self._keeps_winner = keeps_winner
        self._place, self._at_once = place, at_once
        self._left = sweep.left()
        self._next = self._planned if sweep.settings.search != "optuna" else self._proposed
        self._proposals: Proposals | None = None
        self._settled: set[str] = set()

    def train(self) -> bool:
        """Trains all that is left; False when it was told to stop before the end."""
        self._track_finished()
        if self.sweep.settings.search == "optuna":
            self._begin_proposals()
        with counted_time(self.sweep), SweepTable(self.sweep.trials, row=self._row) as table:
            complete = self._train_left(table)
            best = self.sweep.best() if self._keeps_winner else None
            if complete and best is not None and not best.job.folder.is_trained():
                # More seeds have changed who is best, and its weights went when it was not.
                self._left, self._next = [best], self._planned
                self._settled.discard(best.name)
                complete = self._train_left(table)
        return complete

    def _track_finished(self) -> None:
        """Has at MLflow, below this sweep, what an earlier start or another sweep has finished."""
        for trial in self.sweep.trials:
            if trial.is_finished:
                self._settled.add(trial.name)
                self.tracker.begin(trial.job.folder.path, tracked_run(trial.job))
                self.tracker.end(trial.job.folder.path, "FINISHED")

    def _train_left(self, table: SweepTable) -> bool:
        sweep, settings = self.sweep, self.sweep.settings
        scheduler = early_stopping(settings.epochs) if settings.stop_early else None
        if not self._left and settings.search != "optuna":
            return True
        # Those that run, and as many that may still win; of others nothing is kept.
        if together := [each.job for each in self._left[: 2 * self._at_once]]:
            refuse_a_full_disk(together)
        for news in train_trials(
            self._next,
            sweep.shared,
            place=self._place,
            at_once=self._at_once,
            folder=sweep.folder.path / "tune",
            scheduler=scheduler,
        ):
            for trial in list(sweep.trials):
                trial.news = news.get(trial.name, {})
                if trial.name not in self._settled:
                    self._settle(trial)
            note_throughput(sweep.folder.path, total_speed(sweep.trials))
            table.show()
        return end_unfinished(sweep.trials, self.tracker)

    def _settle(self, trial: PlannedTrial) -> None:
        """Writes down what a trial has come to, once it has."""
        state, job = trial.news.get("state"), trial.job
        if state not in (TRAINED, BEHIND):
            if job.remote is not None:
                job.remote.follow(job.folder, trial.news.get("checkpoint"))
            return
        self._settled.add(trial.name)
        if job.remote is not None and state == TRAINED:
            job.remote.settle(job.folder, trial.news["step"], job.settings.checkpoint.keep)
        trial.finish(stopped_early=state == BEHIND)
        trial.failure = None
        self.tracker.end(job.folder.path, "FINISHED")
        self._note(trial)
        self.sweep.drop_losers()

    def _note(self, trial: PlannedTrial) -> None:
        """Writes a finished trial into the journal of the sweep."""
        score, best = trial.outcome.score, self.sweep.best()
        if score is None or best is None:
            return
        path = self.sweep.folder.path / JOURNAL_NAME
        journal = Journal(path)
        figures = {"trial_score": score, "best_score": best.outcome.score or score}
        journal.append(max(last_step(path), 0) + 1, figures)
        journal.close()

    def _planned(self) -> TrialToTrain | None:
        """The longest trial that is left."""
        return self._begin(self._left.pop(0)) if self._left else None

    def _begin_proposals(self) -> None:
        sweep = self.sweep
        self._proposals = Proposals(sweep.axes, sweep.settings.seed, len(sweep.trials))
        self._known: set[str] = set()

    def _proposed(self) -> TrialToTrain | None:
        """A trial that was proposed before this start, or a new proposal."""
        if self._left:
            return self._begin(self._left.pop(0))
        sweep, proposals = self.sweep, self._proposals
        assert proposals is not None
        for _ in range(MOST_REPEATS):
            if len(sweep.trials) >= (sweep.settings.points or 0):
                return None
            finished = [each for each in sweep.trials if each.is_finished]
            news = [each for each in finished if each.name not in self._known]
            self._known |= {each.name for each in news}
            proposals.learn((each.point, each.outcome.score or 0.0) for each in news)
            point = proposals.propose()
            if all(each.point != point for each in sweep.trials):
                trials = sweep.plan(point)
                keep_points(sweep)
                return self._begin(trials[0])
        return None

    def _begin(self, trial: PlannedTrial) -> TrialToTrain:
        """Writes down what the trial is, and follows it from here on."""
        self.tracker.begin(trial.job.folder.path, begin(trial.job))
        return trial.to_train()


class Told(Protocol):
    """What has news: a trial, or another run that trains like one."""

    news: dict[str, Any]


class Planned(Told, Protocol):
    """What is to come to an end; `failure` is why it did not."""

    failure: str | None

    @property
    def is_finished(self) -> bool:
        """Whether it has."""
        ...

    @property
    def job(self) -> TrainingJob:
        """Its run."""
        ...


class Timed(Protocol):
    """What counts the time that it takes."""

    def add_seconds(self, seconds: float) -> None:
        """Counts the time of a start."""
        ...


def end_unfinished(planned: Sequence[Planned], tracker: SweepTracker) -> bool:
    """Ends what is left at MLflow; whether all have come to their end or failed."""
    complete = True
    for each in planned:
        if each.is_finished:
            continue
        state = each.news.get("state")
        if state == FAILED:
            each.failure = each.news.get("failure") or "no reason was given"
            tracker.end(each.job.folder.path, "FAILED")
        else:
            complete = False
            if state == STOPPED:
                tracker.end(each.job.folder.path, "KILLED")
    return complete


def total_speed(trials: Sequence[Told]) -> dict[str, float]:
    """The tokens per second of all trials that run now."""
    running = [each.news for each in trials if each.news.get("state") == RUNNING]
    speeds = [each["tokens_per_second"] for each in running if "tokens_per_second" in each]
    return {"tokens_per_second": sum(speeds)} if speeds else {}


@contextmanager
def counted_time(sweep: Timed) -> Iterator[None]:
    """Adds the time inside to the sweep's."""
    begin_time = time.monotonic()
    try:
        yield
    finally:
        sweep.add_seconds(time.monotonic() - begin_time)


def tracked_sweep(sweep: Sweep) -> TrackedRun:
    """What MLflow is told of a sweep besides its trials."""
    folder, settings = sweep.folder, sweep.settings
    if not folder.run_key.exists():
        write_atomically(folder.run_key, uuid4().hex)
    (folder.path / ARTIFACTS_NAME).mkdir(exist_ok=True)
    data = sweep.data
    return TrackedRun(
        tracking_uri=sweep.tracking_uri,
        experiment=settings.tracking.experiment,
        run_name=folder.name,
        run_key=folder.run_key.read_text(),
        params=flattened(settings.portable()),
        tags=code_tags(Path(__file__).parent) | {"data.sha256": data.sha256},
        dataset=DatasetInput(settings.task, data.sha256, Path(settings.data).name),
    )
