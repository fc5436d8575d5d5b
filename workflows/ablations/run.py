"""An ablation on its way: what is missing is pre-trained, then fine-tuned, tracked and shown."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from uuid import uuid4

from workflows.ablations.ablation import Ablation
from workflows.ablations.outcome import VARIANT
from workflows.ablations.planned_variant import PlannedVariant, variant_row
from workflows.ablations.settings import LearnedTask
from workflows.run_folder import write_atomically
from workflows.sweeps.planned_trial import PlannedTrial
from workflows.sweeps.run import SweepRun, counted_time, end_unfinished, total_speed
from workflows.sweeps.sweep import opened_sweep
from workflows.sweeps.table import TRAINED, SweepTable, TableRow, trial_row
from workflows.sweeps.tracker import SweepTracker
from workflows.sweeps.training import TrialPlace, TrialToTrain, train_trials
from workflows.tracking.journal import Journal, last_step
from workflows.tracking.system_metrics import note_throughput
from workflows.tracking.tracker import (
    ARTIFACTS_NAME,
    JOURNAL_NAME,
    DatasetInput,
    TrackedRun,
    code_tags,
)
from workflows.training.job import begin, flattened, refuse_a_full_disk, tracked_run


class AblationRun:
    """One start of an ablation's training; `look` is called whenever there is more to report."""

    def __init__(
        self,
        ablation: Ablation,
        tracker: SweepTracker,
        place: TrialPlace,
        at_once: int,
        look: Callable[[], object],
    ) -> None:
        self.ablation, self.tracker = ablation, tracker
        self._place, self._at_once, self._look = place, at_once, look
        self._left = ablation.left()
        self._settled: set[str] = set()

    def train(self) -> bool:
        """Trains all that is left; False when it was told to stop before the end."""
        with counted_time(self.ablation):
            self._track_finished()
            complete = self._pretrain()
        self._look()
        if not any(each.is_finished for each in self.ablation.variants):
            return complete
        for learned in self.ablation.tasks if complete else ():
            with counted_time(self.ablation):
                complete = self._learn(learned)
            self._look()
            if not complete:
                break
        return complete

    def _track_finished(self) -> None:
        """Has at MLflow, below this ablation, what earlier starts or other ablations have trained.

        Runs of workflows/pretrain.py, which have a summary, stay where they are.
        """
        for each in self.ablation.variants:
            if each.is_finished:
                self._settled.add(each.name)
                if not each.job.folder.summary.exists():
                    self.tracker.begin(each.job.folder.path, tracked_run(each.job))
                    self.tracker.end(each.job.folder.path, "FINISHED")

    def _pretrain(self) -> bool:
        ablation = self.ablation
        if not self._left:
            return True
        refuse_a_full_disk([each.job for each in self._left])
        rows = SweepTable(ablation.variants, row=variant_row, called="pre-trainings")
        with rows as table:
            for news in train_trials(
                self._next_variant,
                {},
                place=self._place,
                at_once=min(self._at_once, len(self._left)),
                folder=ablation.folder.path / "tune",
            ):
                for each in ablation.variants:
                    each.news = news.get(each.name, {})
                    if each.name not in self._settled:
                        self._settle(each)
                note_throughput(ablation.folder.path, total_speed(ablation.variants))
                table.show()
        return end_unfinished(self.ablation.variants, self.tracker)

    def _next_variant(self) -> TrialToTrain | None:
        """Writes down what the next pre-training is, and follows it from here on."""
        if not self._left:
            return None
        planned = self._left.pop(0)
        self.tracker.begin(planned.job.folder.path, begin(planned.job))
        return planned.to_train()

    def _settle(self, planned: PlannedVariant) -> None:
        """Writes the model folder of a variant, once it is trained."""
        state, job = planned.news.get("state"), planned.job
        if state != TRAINED:
            if job.remote is not None:
                job.remote.follow(job.folder, planned.news.get("checkpoint"))
            return
        self._settled.add(planned.name)
        if job.remote is not None:
            job.remote.settle(job.folder, planned.news["step"], job.settings.checkpoint.keep)
        planned.finish()
        planned.failure = None
        self.tracker.end(job.folder.path, "FINISHED")
        if job.remote is not None:
            job.remote.push_results(job.folder)

    def _learn(self, learned: LearnedTask) -> bool:
        """Fine-tunes each encoder on a task: a sweep whose only axis is the encoder."""
        ablation = self.ablation
        with opened_sweep(ablation.sweep_settings(learned), ablation.storage) as sweep:
            left = len(sweep.left())
            print(
                f"task     {learned.key}: {len(sweep.trials)} fine-tunings, {left} left", flush=True
            )
            run = SweepRun(
                sweep,
                self.tracker,
                self._place,
                self._at_once,
                row=self._trial_row,
                keeps_winner=False,
            )
            complete = run.train()
            ablation.note_sweep(learned, sweep.outcome(self._at_once))
        return complete

    def _trial_row(self, trial: PlannedTrial) -> TableRow:
        """A fine-tuning as a row of the live table: by the variant, not by its run's name."""
        variant = next(v for v in self.ablation.variants if v.name == trial.point["model"])
        row, title = trial_row(trial), variant.variant.title
        cells = {"variant": title, **{k: v for k, v in row.cells.items() if k != "model"}}
        return replace(row, title=f"{title}, seed {trial.seed}", cells=cells)


def tracked_ablation(ablation: Ablation) -> TrackedRun:
    """What MLflow is told of an ablation besides its runs."""
    folder, settings, shards = ablation.folder, ablation.settings, ablation.shards
    if not folder.run_key.exists():
        write_atomically(folder.run_key, uuid4().hex)
    (folder.path / ARTIFACTS_NAME).mkdir(exist_ok=True)
    tasks = {"tasks": ", ".join(each.key for each in ablation.tasks)}
    source = ", ".join(settings.text) if settings.shards is None else shards.folder.name
    return TrackedRun(
        tracking_uri=ablation.tracking_uri,
        experiment=settings.tracking.experiment,
        run_name=folder.name,
        run_key=folder.run_key.read_text(),
        params=flattened(settings.portable()) | tasks,
        tags=code_tags(Path(__file__).parent) | {"data.sha256": shards.data_hash},
        dataset=DatasetInput("pre-training text", shards.data_hash, source),
    )


def mean_figures(ablation: Ablation) -> dict[str, float]:
    """The mean of each variant on each task, by name, in 0..1."""
    figures: dict[str, list[float]] = {}
    for key, sweep in ablation.sweeps.items():
        for trial in sweep.trials:
            if trial.score is not None:
                figures.setdefault(f"{key}/{trial.point[VARIANT]}", []).append(trial.score)
    return {name: fmean(scores) for name, scores in figures.items()}


def note_figures(ablation: Ablation, figures: dict[str, float]) -> None:
    """Writes figures into the ablation's journal, for MLflow, where they are new."""
    path = ablation.folder.path / JOURNAL_NAME
    journal = Journal(path)
    before: dict[str, float] = {}
    for record in journal.records():
        before |= record.metrics
    new = {name: value for name, value in figures.items() if before.get(name) != value}
    if new:
        journal.append(max(last_step(path), 0) + 1, new)
    journal.close()
