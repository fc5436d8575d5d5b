"""A sweep in its driver: settings with axes go in; its trials come out, planned or finished."""

import json
import shutil
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from bert_core.disk import write_atomically
from bert_core.errors import UserError
from bert_core.evaluation.sweep import PointScores, ranked
from bert_core.strict_files import read_json
from workflows.finetune import opened_job, read_inputs
from workflows.finetuning.data import TaskData, refuse_settings
from workflows.finetuning.job import FinetuningJob
from workflows.finetuning.settings import DATA_FIELDS, DIVISION_FIELDS, TaskRunSettings
from workflows.model_location import EncoderFolder, model_name
from workflows.runs.folder import RunFolder, open_run
from workflows.runs.journal import read_records
from workflows.runs.storage import Storage
from workflows.runs.tracker import JOURNAL_NAME, DatasetInput, TrackedRun
from workflows.settings import settings_hash
from workflows.sweeps.folds import keep_predictions
from workflows.sweeps.outcome import EpochFigures, Point, SweepOutcome, TrialOutcome
from workflows.sweeps.planned import PlannedRun, PlannedRuns, TrialToTrain, unfinished
from workflows.sweeps.settings import (
    SWEEP_FIELDS,
    Axis,
    TuneSettings,
    drawn_points,
    grid,
    read_axis,
    trial_settings,
)

RESULT = "trial.json"
STEP_LOSS, DEV_LOSS, DEV_EPOCH = "train/loss", "dev/loss", "dev/epoch"


@dataclass
class PlannedTrial(PlannedRun[FinetuningJob]):
    """A trial: a point with a seed, perhaps a fold, and its fine-tuning run.

    `trial.json` in the run folder says what a finished trial came to, and stays when its weights
    are removed.
    """

    point: Point
    seed: int
    fold: int | None = None

    @property
    def criterion(self) -> str:
        """The metric that decides, as evaluations call it."""
        return f"dev/{self.job.data.task.criterion}"

    @property
    def is_finished(self) -> bool:
        """Whether its outcome is written; its weights may have been removed since."""
        return (self.job.folder.path / RESULT).is_file()

    @cached_property
    def cost(self) -> float:
        """Tokens that it reads in all its epochs."""
        return self.job.settings.epochs * int(self.job.data.train.rows.lengths.sum())

    @property
    def outcome(self) -> TrialOutcome:
        """The outcome so far."""
        if self.is_finished:
            # Of what this sweep varies: another sweep, with other axes, may have trained the run.
            found = TrialOutcome.read(self.job.folder.path / RESULT)
            return replace(found, point=self.point)
        return self._outcome(failure=self.failure)

    def _outcome(self, **found: Any) -> TrialOutcome:  # noqa: ANN401 - fields of TrialOutcome
        return TrialOutcome(self.name, self.point, self.seed, fold=self.fold, **found)

    def finish(self, *, stopped_early: bool = False) -> None:
        """Writes the outcome, from the last checkpoint or, if ended early, from the journal.

        Then its time is what it reported last: no checkpoint need be of that step.
        """
        from workflows.training.job import Usage

        curve = self.curve()
        if stopped_early:
            best = max(curve, key=lambda each: each.score)
            cluster, seconds = self.job.settings.cluster, self.status.progress.used_seconds
            cores = 1 if cluster.use_gpu else cluster.threads_per_worker or 1
            outcome: dict[str, Any] = {
                "score": best.score,
                "best_epoch": best.epoch,
                "seconds": seconds,
                "device": "cuda" if cluster.use_gpu else "cpu",
                "device_hours": seconds * cores / 3600,
                "num_tokens": int(self.cost * curve[-1].epoch / self.job.settings.epochs),
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
            if self.fold is not None:
                keep_predictions(self.job.folder, checkpoint)
        self._outcome(curve=curve, **outcome).write(self.job.folder.path / RESULT)

    def forget(self) -> None:
        """Removes its outcome: a trial whose weights are gone is left to train again."""
        (self.job.folder.path / RESULT).unlink()

    def curve(self) -> tuple[EpochFigures, ...]:
        """The figures of each evaluation, from the journal; by default there is one an epoch."""
        losses: dict[int, list[float]] = defaultdict(list)
        curve: list[EpochFigures] = []
        for record in read_records(self.job.folder.path / JOURNAL_NAME):
            if STEP_LOSS in record.metrics:
                losses[len(curve) + 1].append(record.metrics[STEP_LOSS])
            if self.criterion in record.metrics:
                train_loss = statistics.fmean(losses[len(curve) + 1])
                score, loss = record.metrics[self.criterion], record.metrics[DEV_LOSS]
                epoch = record.metrics[DEV_EPOCH]
                curve.append(EpochFigures(epoch, score, loss, train_loss))
        return tuple(curve)

    def drop_weights(self) -> None:
        """Removes checkpoints and weights of a trial that can no longer be the best."""
        from workflows.finetuning.worker import BEST_OUTPUTS, BEST_WEIGHTS, FOLD_OUTPUTS

        shutil.rmtree(self.job.folder.checkpoints, ignore_errors=True)
        # Outputs of a fold are kept beside its results.
        for name in (BEST_WEIGHTS, BEST_OUTPUTS, FOLD_OUTPUTS):
            (self.job.folder.path / name).unlink(missing_ok=True)

    def to_train(self) -> TrialToTrain:
        """What the cluster gets of it: the data are read once and shared.

        Trials of other options may have the same rows: the task is each one's own.
        """
        data = self.job.data
        shared = {"task_data": (data.sha256, data)}
        return TrialToTrain(self.job, self.criterion, shared, {"task": data.task})


POINTS = "points.json"
"""In the sweep's folder: the points that were proposed."""


class Sweep(PlannedRuns[TuneSettings]):
    """A sweep and its trials so far, each locked for this process while the sweep is open."""

    def __init__(
        self,
        settings: TuneSettings,
        storage: Storage,
        folder: RunFolder,
        inputs: tuple[EncoderFolder, TaskData],
        opened: ExitStack,
    ) -> None:
        super().__init__(settings, storage, folder)
        self.axes = read_axes(settings)
        self.trials: list[PlannedTrial] = []
        self.data = inputs[1]
        """Data of the sweep's settings; where options of the task are axes, trials have others."""
        self._opened = opened
        self._points: dict[str, Point] = {}
        first = {"fold": None if settings.folds is None else 0}
        self._inputs = {_what_is_read(settings.model_copy(update=first)): inputs}

    def tracked_run(self) -> TrackedRun:
        """The sweep's run at MLflow."""
        data = _name_of_file(self.settings.data)
        return self._tracked(DatasetInput(self.settings.task, self.data.sha256, data), {})

    @property
    def held(self) -> dict[str, TaskData]:
        """All data that trials read, by their hashes."""
        return {data.sha256: data for _, data in self._inputs.values()}

    def plan(self, point: Point) -> list[PlannedTrial]:
        """Adds the trials of a point, for each seed and each fold.

        Raises `UserError` for a wrong value.
        """
        settings = self.settings
        folds = [None] if settings.folds is None else range(settings.folds)
        seeds = range(settings.seed, settings.seed + settings.seeds)
        planned = [self._planned(point, seed, fold) for seed in seeds for fold in folds]
        self.trials += planned
        return planned

    def _planned(self, point: Point, seed: int, fold: int | None) -> PlannedTrial:
        own = trial_settings(self.settings, point, seed, fold)
        read = _what_is_read(own)
        if read not in self._inputs:
            encoder, data = read_inputs(own, self.storage)
            # Encoders with one tokenizer read the same: it is held once.
            held = self.held.get(data.sha256, data)
            splits = {name: getattr(held, name) for name in ("train", "dev", "unlabelled")}
            self._inputs[read] = encoder, replace(data, **splits)
        encoder, data = self._inputs[read]
        refuse_settings(own, encoder, data.task)
        self._refuse_the_same_run(own, encoder, data, point)
        inputs = encoder, data
        trial = planned_trial(own, self.storage, inputs, self._opened, point=point, fold=fold)
        if trial.is_finished and trial.outcome.stopped_early and not self.settings.stop_early:
            trial.forget()  # another sweep ended it: here it is trained to its end
        return trial

    def _refuse_the_same_run(
        self, own: TaskRunSettings, encoder: EncoderFolder, data: TaskData, point: Point
    ) -> None:
        teacher = data.teacher and data.teacher.sha256
        read = {"read": [encoder.sha256, data.sha256, teacher]}
        other = self._points.setdefault(settings_hash(own.recipe() | read), point)
        if other != point:
            what = "two points of a sweep are the same run"
            raise UserError(what, f"--axis, {other} and {point}", "leave one of the values out")

    def left(self) -> list[PlannedTrial]:
        """The trials to train, the longest first."""
        return unfinished(self.trials)

    def scores(self) -> list[PointScores]:
        """The points with the scores of their finished trials."""
        by_point: dict[str, tuple[Point, list[float]]] = {}
        for trial in self.trials:
            _, found = by_point.setdefault(json.dumps(trial.point), (trial.point, []))
            score = trial.outcome.score
            found += [] if score is None else [score]
        return [PointScores(point, tuple(found)) for point, found in by_point.values()]

    def best(self) -> PlannedTrial | None:
        """The best trial of the point with the best mean; None before any has finished."""
        order = ranked(self.scores())
        return self._best_of(order[0].point) if order else None

    def _best_of(self, point: Point) -> PlannedTrial | None:
        finished = [trial for trial in self.trials if trial.point == point and trial.is_finished]
        return max(finished, key=lambda each: each.outcome.score or 0.0, default=None)

    def folds_of_the_best(self) -> list[PlannedTrial]:
        """The trials of the point with the best mean: each fold once, for each seed.

        [] before all have finished, and of a sweep without folds.
        """
        best = self.best()
        if best is None or best.fold is None:
            return []
        found = [trial for trial in self.trials if trial.point == best.point]
        return found if all(trial.is_finished for trial in found) else []

    def drop_losers(self) -> None:
        """Removes the weights of finished trials that cannot be the best any more.

        Of each point its best trial may be; of the points that are done, those of the best point.
        Of folds no trial is: none has learned from all examples.
        """
        complete = [score for score in self.scores() if len(score.scores) == self.settings.seeds]
        losing = [each.point for each in ranked(complete)[1:]]
        for trial in self.trials:
            if not trial.is_finished:
                continue
            loses = trial.point in losing or trial is not self._best_of(trial.point)
            if loses or trial.fold is not None:
                trial.drop_weights()

    def outcome(self, at_once: int) -> SweepOutcome:
        """The sweep as far as it has come."""
        settings, data = self.settings, self.data
        portable = settings.portable()
        shared = {name: value for name, value in portable.items() if name not in SWEEP_FIELDS}
        return SweepOutcome(
            name=self.folder.name,
            task=settings.task,
            criterion=data.task.criterion,
            model=_name_of_encoder(settings.model),
            data=_name_of_file(settings.data),
            num_train=len(data.train.examples),
            num_dev=len(data.dev.examples),
            axes=tuple(axis.field for axis in self.axes),
            trials=tuple(trial.outcome for trial in self.trials),
            settings=shared,
            files=_files(settings),
            wall_seconds=self.seconds(),
            at_once=at_once,
        )


def planned_trial(
    settings: TaskRunSettings,
    storage: Storage,
    inputs: tuple[EncoderFolder, TaskData],
    opened: ExitStack,
    *,
    point: Point,
    fold: int | None = None,
) -> PlannedTrial:
    """The trial of these settings, locked for this process until `opened` is closed."""
    job = opened.enter_context(opened_job(settings, storage, "", inputs))
    trial = PlannedTrial(job, point, settings.seed, fold)
    if job.remote is not None and not trial.is_finished and not settings.fresh:
        job.remote.catch_up(job.folder)
    if not trial.is_finished and job.folder.is_trained():
        trial.finish()
    return trial


def _name_of_encoder(model: str) -> str:
    """The encoder as a report calls it: an address or a run as it is, a folder by its name."""
    return model if model.startswith("models:/") or "/" not in model else model_name(Path(model))


def _name_of_file(path: str) -> str:
    return path if "://" in path else Path(path).name


def _files(settings: TuneSettings) -> dict[str, tuple[str, ...]]:
    """What trials read besides data and encoder, by its option, as a report calls it."""
    found: dict[str, tuple[str, ...]] = {}
    if settings.exclude:
        found["exclude"] = (_name_of_file(settings.exclude),)
    if teacher := getattr(settings, "teacher", None):
        found["teacher"] = (_name_of_encoder(teacher),)
    if unlabelled := getattr(settings, "unlabelled", ()):
        found["unlabelled"] = tuple(map(_name_of_file, unlabelled))
    return found


def _what_is_read(settings: TaskRunSettings) -> str:
    """What decides what `read_inputs` gives."""
    options = settings.options.model_dump(mode="json")
    teacher = getattr(settings, "teacher", None)
    return json.dumps([settings.model, settings.data, options, settings.fold, teacher])


def read_axes(settings: TuneSettings) -> list[Axis]:
    """The axes of a sweep, each checked against the settings of its trials."""
    names = [each.partition("=")[0] for each in settings.axis]
    for name in names:
        if names.count(name) > 1:
            raise UserError("an axis given twice", f"--axis {name}", "give all its values at once")
        if {name, name.partition(".")[0]} & _FIXED:
            remedy = "say it once, for all trials"
            raise UserError("no axis of a sweep", f"--axis {name}", remedy)
    return [read_axis(each, type(settings)) for each in settings.axis]


_FIXED = SWEEP_FIELDS | {"profile", "name", "storage", "fresh", "seed", "task", "approach"}
_FIXED |= {
    *DATA_FIELDS[1:],
    *("unlabelled", "compare", "max_tokens"),
    *DIVISION_FIELDS,
    "cluster",
    "tracking",
    "checkpoint",
    "decisions",  # are tuned once the best epoch is known, by whose score a trial is ranked
    "options.metric",
    "evaluation.metric",
}


@contextmanager
def opened_sweep(settings: TuneSettings, storage: Storage, kind: str = "sweeps") -> Iterator[Sweep]:
    """Opens the sweep of these settings, locked for this process, with the trials that are known.

    It lies in the storage's folder `kind`. Raises `UserError` for what the user can fix.
    """
    refuse_contradictions(settings, averages_seeds=kind == "audits")
    with ExitStack() as opened:
        # With folds the examples are those of all of them; the first stands for its data.
        first = {"fold": None if settings.folds is None else 0}
        inputs = read_inputs(settings.model_copy(update=first), storage)
        encoder, data = inputs
        recipe = settings.for_encoder(encoder.config).recipe() | settings.of_sweep()
        recipe |= {"data": data.sha256, "encoder": encoder.sha256}
        if data.teacher is not None:
            recipe |= {"teacher": data.teacher.sha256}
        for own in ("seed", "seeds", "points", "at_once", "gpus_per_trial"):
            recipe.pop(own, None)
        name = settings.name or f"{settings.task}-{settings_hash(recipe)}"
        opening = open_run(storage.folder, name, recipe, fresh=settings.fresh, kind=kind)
        sweep = Sweep(settings, storage, opened.enter_context(opening), inputs, opened)
        for point in known_points(sweep):
            sweep.plan(point)
        write_atomically(sweep.folder.settings, _settings_text(settings))
        yield sweep


def known_points(sweep: Sweep) -> Sequence[Point]:
    """All points of a grid or a draw; of a search by proposals those that were proposed so far."""
    settings = sweep.settings
    if settings.search == "grid":
        return list(grid(sweep.axes))
    if settings.search == "random":
        return drawn_points(sweep.axes, settings.points or 0, settings.seed)
    path = sweep.folder.path / POINTS
    return read_json(path, "give --fresh to start over") if path.exists() else []


def keep_points(sweep: Sweep) -> None:
    """Stores which points were proposed."""
    points = [trial.point for trial in sweep.trials]
    write_atomically(sweep.folder.path / POINTS, json.dumps(points))


def refuse_contradictions(settings: TuneSettings, *, averages_seeds: bool = False) -> None:
    """Raises `UserError` for settings of a sweep that do not go together."""
    for name in ("train", "dev", "test"):
        if getattr(settings, name) is not None:
            remedy = "make a folder of the files, and give it as --data"
            raise UserError("files of splits are for single runs", f"--{name}", remedy)
    settings.source("train")
    epochs_vary = any(each.partition("=")[0] == "epochs" for each in settings.axis)
    if settings.stop_early and epochs_vary:
        raise UserError(
            "early stopping compares trials after equal epochs, and epochs is an axis",
            "--stop_early",
            "leave it out, or give axes without epochs",
        )
    if settings.stop_early and settings.evaluation.metric is not None:
        what = "early stopping compares trials by the task's metric, and another selects the best"
        raise UserError(what, "--stop_early", "leave it out, or --evaluation.metric")
    if settings.search == "grid" and settings.points is not None:
        raise UserError("a grid has all its points", "--points", "add --search random or optuna")
    if settings.search != "grid" and settings.points is None:
        raise UserError("how many points?", f"--search {settings.search}", "add --points 10")
    for name, count in (("seeds", settings.seeds), ("folds", settings.folds or 1)):
        if settings.search == "optuna" and count > 1:
            raise UserError(
                "Optuna proposes from single trials",
                f"--{name} {count}",
                f"leave it out, and try the best with more {name} in a grid",
            )
    if settings.folds is not None:
        refuse_with_folds(settings, averages_seeds=averages_seeds)


def refuse_with_folds(settings: TuneSettings, *, averages_seeds: bool) -> None:
    """Raises `UserError` for what says nothing where every fold is dev in turn."""
    if settings.seeds > 1 and not averages_seeds:
        what, remedy = "the folds are the trials of a setting", "leave it out, or raise --folds"
        raise UserError(what, f"--seeds {settings.seeds}", remedy)
    given = {
        "--fold": settings.fold is not None,
        "--tracking.register_as": settings.tracking.asked_name is not None,
        "--stop_early": settings.stop_early,
        **{f"--decisions.{name}": True for name in settings.decisions.changed},
    }
    for name in (name for name, is_given in given.items() if is_given):
        remedy = "leave it out; best.yaml trains the best setting on all examples afterwards"
        raise UserError("every fold is dev in turn, and none is trained on all", name, remedy)


def _settings_text(settings: TuneSettings) -> str:
    head = "# the settings of a sweep of workflows/tune.py\n"
    return head + yaml.safe_dump(settings.portable(), sort_keys=False)
