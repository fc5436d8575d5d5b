"""One start of a sweep: trains what is missing, tracks it, writes the report, registers the winner.

`started` and `Driver` do the part that an ablation shares: runs side by side, each tracked.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bert_core.errors import UserError
from bert_core.tasks.metrics import readable_metric
from workflows.finetuning.results import write_results
from workflows.runs.folder import WRITER_LOCK_NAME
from workflows.runs.journal import Journal, last_step
from workflows.runs.sweep_tracker import SweepTracker
from workflows.runs.tracker import (
    ARTIFACTS_NAME,
    JOURNAL_NAME,
    TrackingSummary,
    note_throughput,
)
from workflows.sweeps.folds import out_of_fold
from workflows.sweeps.live_table import SweepTable, TableRow, titled, trial_row
from workflows.sweeps.planned import (
    BEHIND,
    FAILED,
    RUNNING,
    STOPPED,
    TRAINED,
    PlannedRun,
    PlannedRuns,
    TrialStatus,
    TrialToTrain,
)
from workflows.sweeps.report import summary_lines, write_sweep_report
from workflows.sweeps.settings import Proposals
from workflows.sweeps.sweep import PlannedTrial, Sweep, keep_points
from workflows.sweeps.training import TrialPlace, early_stopping, join_cluster_for, train_trials
from workflows.training.job import (
    JobResults,
    begin,
    lineage_tags,
    open_command,
    refuse_a_full_disk,
    tracked_run,
    tracking_uri,
)
from workflows.versions.registration import register_model_folder

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler

MOST_REPEATS = 50
"""Optuna may propose a known point so often; then the space counts as exhausted."""
ALIASES = ("challenger", "latest-trained")
"""Aliases of the registered winner; `promote` compares the challenger with the champion."""


class Driver:
    """One start of planned runs: trains them side by side and tracks each.

    `status` and `patience_seconds` are how tracking ends; `tracking` is its summary, afterwards.
    """

    def __init__(
        self, plan: PlannedRuns[Any], tracker: SweepTracker, place: TrialPlace, at_once: int
    ) -> None:
        self.plan, self.tracker, self.at_once = plan, tracker, at_once
        self.status, self.patience_seconds = "FAILED", 5.0
        self.tracking: TrackingSummary
        self._place = place
        self._settled: set[str] = set()

    def for_runs_of(self, plan: PlannedRuns[Any]) -> "Driver":
        """One that trains and counts the runs of another plan, tracked below this one's."""
        return Driver(plan, self.tracker, self._place, self.at_once)

    def end(self, status: str) -> None:
        """All runs are trained: tracking may take its time for the rest."""
        self.status, self.patience_seconds = status, 120.0

    def settled(self, run: PlannedRun[Any], *, tracked: bool = True) -> None:
        """Takes in a run that an earlier start or another sweep finished."""
        self._settled.add(run.name)
        if tracked:
            self.track_again(run)

    def track_again(self, run: PlannedRun[Any]) -> None:
        """Sends what is new of a finished run."""
        self.tracker.begin(run.job.folder.path, tracked_run(run.job))
        self.tracker.end(run.job.folder.path, "FINISHED")

    def train(
        self,
        planned: Sequence[PlannedRun[Any]],
        next_run: Callable[[], PlannedRun[Any] | None],
        table: SweepTable,
        *,
        at_once: int | None = None,
        scheduler: "TrialScheduler | None" = None,
        on_end: Callable[[PlannedRun[Any]], None] = lambda run: None,  # noqa: ARG005
    ) -> bool:
        """Trains the runs that `next_run` gives; False when told to stop before the end.

        `planned` may grow meanwhile. `on_end` gets each run once its results are written.
        """
        for statuses in train_trials(
            lambda: self._begin(next_run()),
            place=self._place,
            at_once=at_once or self.at_once,
            folder=self.plan.folder.path / "tune",
            scheduler=scheduler,
        ):
            for run in list(planned):
                run.status = statuses.get(run.name, TrialStatus())
                if run.name not in self._settled:
                    self._settle(run, on_end)
            note_throughput(self.plan.folder.path, total_speed(planned))
            table.show()
        return self._end_unfinished(planned)

    def train_again(self, run: PlannedRun[Any]) -> None:
        """Has a settled run be settled once more."""
        self._settled.discard(run.name)

    def _begin(self, run: PlannedRun[Any] | None) -> TrialToTrain | None:
        if run is None:
            return None
        self.tracker.begin(run.job.folder.path, begin(run.job))
        return run.to_train()

    def _settle(self, run: PlannedRun[Any], on_end: Callable[[PlannedRun[Any]], None]) -> None:
        """Follows a run that trains; writes the results of one that has ended."""
        state, job = run.status.state, run.job
        if state not in (TRAINED, BEHIND):
            if job.remote is not None:
                job.remote.follow(job.folder, run.status.progress.checkpoint)
            return
        self._settled.add(run.name)
        if job.remote is not None and state == TRAINED:
            step = run.status.progress.step
            assert step is not None  # a trained run has reported its last step
            job.remote.settle(job.folder, step, job.settings.checkpoint.keep)
        run.finish(stopped_early=state == BEHIND)
        run.failure = None
        self.tracker.end(job.folder.path, "FINISHED")
        on_end(run)

    def _end_unfinished(self, planned: Sequence[PlannedRun[Any]]) -> bool:
        """Ends what is left at MLflow; whether all have finished or failed."""
        complete = True
        for run in planned:
            state = run.status.state
            if run.is_finished or (run.failure and not state):  # or it failed before, in this start
                continue
            if state == FAILED:
                run.failure = run.status.failure or "no reason was given"
                self.tracker.end(run.job.folder.path, "FAILED")
            else:
                complete = False
                if state == STOPPED:
                    self.tracker.end(run.job.folder.path, "KILLED")
        return complete


@contextmanager
def started(plan: PlannedRuns[Any]) -> Iterator[Driver]:
    """Joins the cluster and tracks the runs until the end of the block.

    Raises `UserError` where no machine has room for a run.
    """
    settings = plan.settings
    place = TrialPlace.of(settings.cluster, settings.gpus_per_trial)
    shared = plan.folder.path if plan.storage.uri is None else None
    at_once = join_cluster_for(place, settings.at_once, shared=shared)
    (plan.folder.path / WRITER_LOCK_NAME).touch()  # from here on it has begun
    tracker = SweepTracker(plan.folder.path, plan.tracked_run())
    driver = Driver(plan, tracker, place, at_once)
    try:
        yield driver
    except KeyboardInterrupt:
        driver.status = "KILLED"
        raise
    finally:
        driver.tracking = tracker.finish(driver.status, driver.patience_seconds)


def total_speed(planned: Sequence[PlannedRun[Any]]) -> dict[str, float]:
    """Tokens per second of all running runs together."""
    running = [run.status.progress.speed for run in planned if run.status.state == RUNNING]
    speeds = [speed.tokens_per_second for speed in running if speed is not None]
    return {"tokens_per_second": sum(speeds)} if speeds else {}


def append_figures(plan: PlannedRuns[Any], figures: Mapping[str, float]) -> None:
    """Appends figures to the plan's own journal, which MLflow shows above the runs."""
    path = plan.folder.path / JOURNAL_NAME
    journal = Journal(path)
    journal.append(max(last_step(path), 0) + 1, dict(figures))
    journal.close()


def print_summary(
    plan: PlannedRuns[Any], lines: Sequence[str], problem: str | None, again: str, *, keep: bool
) -> None:
    """Prints the last lines; keeps them as summary.txt where nothing is left to do.

    `again` is what the same command does about `problem`.
    """
    if problem:
        lines = [*lines, f"MLflow       {problem}", f"             the same command {again}"]
    else:
        lines = [*lines, f"MLflow       {open_command(plan.tracking_uri)}"]
    text = "\n".join(lines)
    if keep and not problem:
        plan.folder.finish(text + "\n", plan.settings.asked())
    print(text, flush=True)


def unsent(tracking: TrackingSummary, problem: str | None = None) -> str | None:
    """What MLflow lacks, in words; None where it has everything."""
    problem = problem or tracking.error
    if not problem and not tracking.unsent_records:
        return None
    return f"{tracking.unsent_records:,} records not sent: {problem}"


class SweepRun:
    """Trains the trials of a sweep that are left; `row` shows a trial in the live table.

    `keeps_winner`: at the end the best trial has its weights, if it must be trained again for that.
    """

    def __init__(
        self,
        sweep: Sweep,
        driver: Driver,
        *,
        row: Callable[[PlannedTrial], TableRow] = trial_row,
        keeps_winner: bool = True,
    ) -> None:
        self.sweep, self._driver, self._row = sweep, driver, row
        self._keeps_winner = keeps_winner
        self._left = sweep.left()
        self._proposals: Proposals | None = None
        self._known: set[str] = set()

    def train(self) -> bool:
        """Trains all that is left; False when told to stop before the end."""
        sweep = self.sweep
        for trial in sweep.trials:
            if trial.is_finished:
                self._driver.settled(trial)
        if sweep.settings.search == "optuna":
            self._proposals = Proposals(sweep.axes, sweep.settings.seed, len(sweep.trials))
        with sweep.counted_time(), SweepTable(sweep.trials, row=self._row) as table:
            complete = self._train_left(table)
            # More seeds, or another sweep, have changed who is best, and its weights went when it
            # was not. Where it fails, the next one is the best.
            for _ in sweep.trials:
                best = self._winner()
                if not complete or best is None or best.job.folder.is_trained():
                    break
                table.print_line(f"{titled(best)}  the best, without weights: is trained again")
                best.forget()
                self._left, self._proposals = [best], None
                self._driver.train_again(best)
                complete = self._train_left(table)
        return complete

    def _winner(self) -> PlannedTrial | None:
        """The trial that must have its weights at the end."""
        none = not self._keeps_winner or self.sweep.settings.folds is not None
        return None if none else self.sweep.best()

    def _train_left(self, table: SweepTable) -> bool:
        sweep, settings = self.sweep, self.sweep.settings
        if not self._left and self._proposals is None:
            return True
        # Those that run, and as many that may still win; of others nothing is kept.
        if together := [trial.job for trial in self._left[: 2 * self._driver.at_once]]:
            refuse_a_full_disk(together)
        return self._driver.train(
            sweep.trials,
            self._next_trial,
            table,
            scheduler=early_stopping(settings.epochs) if settings.stop_early else None,
            on_end=self._note,
        )

    def _note(self, trial: PlannedRun[Any]) -> None:
        """Notes a finished trial in the sweep's journal, and removes weights that cannot win."""
        assert isinstance(trial, PlannedTrial)
        score, best = trial.outcome.score, self.sweep.best()
        if score is not None and best is not None:
            figures = {"trial_score": score, "best_score": best.outcome.score or score}
            append_figures(self.sweep, figures)
        self.sweep.drop_losers()

    def _next_trial(self) -> PlannedTrial | None:
        """The longest trial that is left, then a new proposal."""
        if self._left:
            return self._left.pop(0)
        return self._proposed(self._proposals) if self._proposals is not None else None

    def _proposed(self, proposals: Proposals) -> PlannedTrial | None:
        sweep = self.sweep
        for _ in range(MOST_REPEATS):
            if len(sweep.trials) >= (sweep.settings.points or 0):
                return None
            finished = [trial for trial in sweep.trials if trial.is_finished]
            news = [trial for trial in finished if trial.name not in self._known]
            self._known |= {trial.name for trial in news}
            proposals.learn((trial.point, trial.outcome.score or 0.0) for trial in news)
            point = proposals.propose()
            if all(trial.point != point for trial in sweep.trials):
                trials = sweep.plan(point)
                keep_points(sweep)
                return trials[0]
        return None


def write_report(sweep: Sweep, at_once: int) -> list[str]:
    """Writes the report of all trials so far; returns the lines of the summary."""
    folder = sweep.folder.path / ARTIFACTS_NAME
    return summary_lines(write_sweep_report(sweep.outcome(at_once), folder), folder)


def export_winner(sweep: Sweep, driver: Driver) -> JobResults | None:
    """Writes the best trial's model folder, card and plots; None where no trial has finished.

    None of folds, too: no trial has learned from all examples.
    """
    best = sweep.best()
    if best is None or best.fold is not None:
        return None
    results = write_results(best.job)
    driver.track_again(best)
    return results


def write_folds(sweep: Sweep) -> list[str]:
    """Writes what is predicted out of fold, of a sweep over folds; returns lines of the summary."""
    trials = sweep.folds_of_the_best()
    if not trials:
        return []
    found = out_of_fold(trials)
    path = found.write(sweep.folder.path / ARTIFACTS_NAME, sweep.folder.name)
    figures = ", ".join(
        f"{readable_metric(name)} {each:.3f}" for name, each in found.metrics.items()
    )
    return [
        f"out of fold  {len(found.examples):,} examples together: {figures}",
        f"             {path}",
    ]


def conclude(sweep: Sweep, driver: Driver, results: JobResults | None, lines: list[str]) -> None:
    """Registers the winner and prints the summary, kept unless something is still to do.

    Raises `UserError` where every trial failed.
    """
    best = sweep.best()
    failed = [trial.failure or "" for trial in sweep.trials if trial.failure]
    if best is None:
        remedy = "fix the cause and repeat the command"
        raise UserError("no trial has finished", min(failed, default="no trials"), remedy)
    if results is None:  # of folds there is no winner
        problem = unsent(driver.tracking)
        print_summary(sweep, lines, problem, "sends them", keep=not failed)
        return
    problem, registered = driver.tracking.error, ""
    if not problem:
        registered, problem = _register(best, results, driver.tracker)
    lines = [*lines, f"model        {best.job.folder.model}"]
    if registered:
        lines.append(f"registered   {registered}, alias {ALIASES[0]}")
    problem = unsent(driver.tracking, problem)
    print_summary(sweep, lines, problem, "sends them and registers the model", keep=not failed)


def _register(
    best: PlannedTrial, results: JobResults, tracker: SweepTracker
) -> tuple[str, str | None]:
    """The winner's address in the registry, or why it is not there."""
    folder, run_id = best.job.folder, tracker.run_id_of(best.job.folder.path)
    name = best.job.settings.tracking.register_as or best.job.settings.task
    if run_id is None:
        return "", "the winner's run is not at MLflow"
    try:
        version = register_model_folder(
            folder.model,
            name=name,
            run_id=run_id,
            tracking_uri=tracking_uri(best.job),
            card=results.card,
            tags=lineage_tags(folder),
            metrics=results.figures,
            aliases=ALIASES,
        )
    except UserError as error:
        return "", str(error)
    return f"models:/{name}/{version}", None
