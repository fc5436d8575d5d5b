"""The result of a sweep, computed from its outcome: ranking, noise of seeds, importance, verdict.

Scores stay in 0..1, as tasks have them; `points_text` and the like write them in points (0..100).
"""

import math
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from bert_core.evaluation.sweep import (
    Importance,
    PointScores,
    SeedNoise,
    importances,
    margins,
    noise_share,
    ranked,
    seed_noise,
    without_fallen,
)
from workflows.paper.published import PaperTable, beside_published, metric_title, score_text
from workflows.progress import duration
from workflows.reporting.figures import value_text
from workflows.runs.tracker import without_machine_paths
from workflows.sweeps.outcome import Point, SweepOutcome, TrialOutcome
from workflows.training.job import Usage

BEST = "best.yaml"
_MUCH_CHEAPER = 0.8  # of the best point's time
_MOST_SEEDS = 100  # that are worth proposing


@dataclass(frozen=True)
class PointFound:
    """A point with its trials; `margin` is how far below the best it may be and still be level."""

    rank: int
    scores: PointScores
    trials: tuple[TrialOutcome, ...]
    behind: float = 0.0
    margin: float | None = None

    @property
    def point(self) -> Point:
        """The values of the axes."""
        return self.scores.point

    @property
    def is_level(self) -> bool | None:
        """Whether these seeds leave it open that it is the best; None where nothing says so."""
        return None if self.margin is None else self.behind <= self.margin

    @property
    def scored(self) -> list[TrialOutcome]:
        """The trials that have a score."""
        return [trial for trial in self.trials if trial.score is not None]

    @property
    def seconds(self) -> float:
        """The mean time of a trial."""
        return fmean(each.seconds for each in self.scored)


@dataclass(frozen=True)
class SweepFindings:
    """A sweep with what follows from it; `points` are those with a score, the best first."""

    outcome: SweepOutcome
    points: tuple[PointFound, ...]
    unscored: tuple[PointFound, ...]
    noise: SeedNoise | None
    noise_share: float | None
    importances: dict[str, Importance]
    beside_paper: PaperTable | None

    @property
    def num_fallen(self) -> int:
        """How many points are so far below the others that importances leave them out."""
        return len(self.points) - len(without_fallen([point.scores for point in self.points]))

    @property
    def has_importances(self) -> bool:
        """Whether there are axes to divide what varies among."""
        return len(self.points) > 1 and len(self.outcome.axes) > 1

    @property
    def best(self) -> PointFound | None:
        """The point with the best mean."""
        return self.points[0] if self.points else None

    @cached_property
    def best_trial(self) -> TrialOutcome | None:
        """Of the best point the trial with the best score."""
        return max(self.best.scored, key=_score) if self.best else None

    @cached_property
    def axis_titles(self) -> dict[str, str]:
        """What the axes are called for short: the last part of the name, where it is the only."""
        lasts = [axis.rpartition(".")[2] for axis in self.outcome.axes]
        return {
            axis: last if lasts.count(last) == 1 else axis
            for axis, last in zip(self.outcome.axes, lasts, strict=True)
        }

    @property
    def metric(self) -> str:
        """The metric that decides, as people write it."""
        return metric_title(self.outcome.criterion)

    @property
    def repeats(self) -> list[int]:
        """All seeds, or folds, that occur."""
        return sorted({trial.repeat for trial in self.outcome.trials})

    @property
    def failed(self) -> list[TrialOutcome]:
        """Trials that came to nothing."""
        return [trial for trial in self.outcome.trials if trial.failure is not None]

    @property
    def missing(self) -> list[TrialOutcome]:
        """Trials that have not finished, and not failed."""
        trials = self.outcome.trials
        return [trial for trial in trials if trial.score is None and trial.failure is None]

    @property
    def finished(self) -> list[TrialOutcome]:
        """Trials with a score."""
        return [trial for trial in self.outcome.trials if trial.score is not None]

    def point_text(self, point: Point) -> str:
        """The values of a point by the axes' short names."""
        values = [f"{title} {value_text(point[axis])}" for axis, title in self.axis_titles.items()]
        return ", ".join(values) or "the settings as they are"

    @property
    def command(self) -> str:
        """What trains the best setting again, typed where best.yaml lies."""
        best = self.best.point if self.best else {}  # where the model is an axis, a file has none
        places = {name: best.get(name, getattr(self.outcome, name)) for name in ("data", "model")}
        options = [text for name, value in places.items() for text in (f"--{name}", str(value))]
        for name, files in self.outcome.files.items():
            options += [f"--{name}", *([str(best[name])] if name in best else files)]
        if self.outcome.repeats == "fold":
            settings = self.outcome.settings
            options += ["--split", str(settings.get("split") or 0.1)]  # what was in no fold, again
            seed = settings.get("split_seed") if settings.get("split") else 0
            options += ["--split_seed", str(seed)] if seed else []
            group_by = settings.get("group_by")
            options += ["--group_by", group_by] if group_by else []
        return shlex.join(["python", "workflows/finetune.py", "--preset", BEST, *options])


def sweep_findings(outcome: SweepOutcome) -> SweepFindings:
    """Works out what a sweep says; nothing in it names a path of this machine."""
    outcome = _cleaned(outcome)
    trials: dict[tuple[str, ...], list[TrialOutcome]] = {}
    for each in outcome.trials:
        trials.setdefault(_key(each.point, outcome.axes), []).append(each)
    found = [
        PointScores(
            {axis: some[0].point[axis] for axis in outcome.axes},
            tuple(each.score for each in some if each.score is not None),
        )
        for some in trials.values()
    ]
    best, steady = ranked(found), without_fallen(found)
    allowed = margins(found) or [None] * len(best)

    def as_found(scores: PointScores, rank: int, margin: float | None) -> PointFound:
        behind = best[0].mean - scores.mean if scores.scores else 0.0
        own = trials[_key(scores.point, outcome.axes)]
        ordered = tuple(sorted(own, key=lambda each: each.repeat))
        return PointFound(rank, scores, ordered, behind, margin)

    points = tuple(
        as_found(scores, rank, margin)
        for rank, (scores, margin) in enumerate(zip(best, allowed, strict=True), start=1)
    )
    rest = tuple(as_found(each, len(found), None) for each in found if not each.scores)
    return SweepFindings(
        outcome=outcome,
        points=points,
        unscored=rest,
        noise=seed_noise(found),
        noise_share=noise_share(steady),
        importances=importances(steady),
        beside_paper=_beside_paper(outcome, points),
    )


def points_text(value: float) -> str:
    """A score in points, two digits."""
    return f"{100 * value:.2f}"


def scores_text(scores: Sequence[float]) -> str:
    """Mean and standard deviation of scores, in points."""
    return score_text([100 * score for score in scores])


def headline(findings: SweepFindings) -> str:
    """The best setting and its score, or that there is none."""
    best = findings.best
    if best is None:
        return "No trial has a score"
    scores = best.scores
    repeats = number_of(len(scores.scores), findings.outcome.repeats)
    score = f"{findings.metric} {scores_text(scores.scores)} on dev, {repeats}"
    if findings.outcome.repeats == "fold" and (reach := scores.reach) is not None:
        low, high = points_text(scores.mean - reach), points_text(scores.mean + reach)
        score += f", 95 % interval of the mean {low} to {high}"
    return f"{findings.point_text(best.point)}: {score}"


def verdict(findings: SweepFindings) -> str:
    """Whether the best setting is distinguishable from the others, in a few words."""
    others = len(findings.points) - 1
    if others < 1:
        return "nothing to compare with" if others == 0 else ""
    if findings.noise is None:
        return "seed noise unknown: run more seeds (--seeds 3)"
    level = sum(bool(point.is_level) for point in findings.points[1:])
    if level:
        return f"not distinguishable from {level} of {number_of(others, 'other')} at 95 %"
    return f"better than all {number_of(others, 'other')} at 95 %"


def comparisons(findings: SweepFindings) -> list[tuple[str, str]]:
    """The settings nearest to the best one, and what would separate them, each with a name."""
    if len(findings.points) < 2:
        return []
    best, second, *_ = findings.points
    repeats = findings.outcome.repeats
    margin = (
        "" if second.margin is None else f" (margin of {repeats}s {points_text(second.margin)})"
    )
    rows = [("runner-up", f"{_behind(findings, second)}{margin}")]
    level = [point for point in findings.points[1:] if point.is_level]
    cheapest = min(level, key=lambda each: each.seconds, default=best)
    if cheapest.seconds < _MUCH_CHEAPER * best.seconds:
        share = f"{cheapest.seconds / best.seconds:.0%} of the time"
        rows.append(("cheapest level setting", f"{_behind(findings, cheapest)}, {share}"))
    if repeats == "seed" and (seeds := _seeds_needed(second)) is not None:
        rows.append(("seeds to separate the first two", f"about {seeds} of each"))
    return rows


def counts(findings: SweepFindings) -> str:
    """How many settings and trials there are, and how far they have come."""
    outcome = findings.outcome
    points = len(findings.points) + len(findings.unscored)
    stopped = sum(each.stopped_early for each in findings.finished)
    parts = [f"{len(findings.finished):,} finished"]
    parts += [f"{stopped:,} stopped early"] if stopped else []
    parts += [f"{len(findings.failed):,} failed"] if findings.failed else []
    parts += [f"{len(findings.missing):,} missing"] if findings.missing else []
    return (
        f"{number_of(points, 'setting')}, {number_of(len(findings.repeats), outcome.repeats)}, "
        f"{number_of(len(outcome.trials), 'trial')}: {', '.join(parts)}"
    )


def costs(findings: SweepFindings) -> list[tuple[str, str]]:
    """What the sweep used, each with a name."""
    outcome, finished = findings.outcome, findings.finished
    rows = [("all trials", used(outcome.trials))]
    if finished:
        seconds = [each.seconds for each in finished]
        hours = fmean(each.device_hours for each in finished)
        kind = "core" if finished[0].device == "cpu" else "GPU"
        span = f"{duration(min(seconds))} to {duration(max(seconds))}"
        rows.append(("per trial", f"{duration(fmean(seconds))} ({span}), {hours:.3g} {kind}-hours"))
    if any(each.device_hours for each in findings.failed):
        rows.append(("failed trials", used(findings.failed)))
    rows.append(("tokens", f"{sum(trial.num_tokens for trial in outcome.trials):,}, all epochs"))
    at_once = f"up to {number_of(outcome.at_once, 'trial')} at once"
    total = duration(sum(trial.seconds for trial in outcome.trials))
    rows.append(("wall time", f"{duration(outcome.wall_seconds)}, {at_once}; trials took {total}"))
    return rows


def used(runs: Iterable[Any]) -> str:
    """Device hours and energy, in words, of runs with `device` and `device_hours`."""
    hours: dict[str, float] = defaultdict(float)
    for run in runs:
        hours[run.device] += run.device_hours
    shown = [str(Usage(device, some)) for device, some in sorted(hours.items()) if some]
    return "; ".join(shown) or "nothing yet"


def number_of(count: int, what: str) -> str:
    """A count with its noun, in the singular or the plural."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _behind(findings: SweepFindings, point: PointFound) -> str:
    return f"{findings.point_text(point.point)}, {points_text(point.behind)} behind"


def _seeds_needed(second: PointFound) -> int | None:
    """Seeds of each of the first two settings that separate them, should their means stay."""
    if not second.is_level or not second.margin or not second.behind:
        return None
    seeds = len(second.scores.scores) * (second.margin / second.behind) ** 2
    return math.ceil(seeds) if seeds <= _MOST_SEEDS else None


def _beside_paper(outcome: SweepOutcome, points: Sequence[PointFound]) -> PaperTable | None:
    if not points:
        return None
    figures: dict[str, list[float]] = {}
    for each in points[0].scored:
        for name, value in (each.figures or {outcome.criterion: _score(each)}).items():
            figures.setdefault(name.removeprefix("dev/"), []).append(value)
    return beside_published(
        outcome.task, figures, criterion=outcome.criterion, num_dev=outcome.num_dev
    )


def _cleaned(outcome: SweepOutcome) -> SweepOutcome:
    """Without machine paths; a score that is no number is a failure."""
    trials = []
    for each in outcome.trials:
        if each.score is not None and not math.isfinite(each.score):
            each = replace(each, score=None, failure=each.failure or "its score is no number")
        if each.failure is not None:
            failure = without_machine_paths(" ".join(each.failure.split()))
            each = replace(each, failure=failure, score=None)
        trials.append(each)
    model, data = (without_machine_paths(each) for each in (outcome.model, outcome.data))
    return replace(outcome, trials=tuple(trials), model=model, data=data)


def _key(point: Point, axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(repr(point[axis]) for axis in axes)


def _score(trial: TrialOutcome) -> float:
    assert trial.score is not None  # the caller has chosen
    return trial.score
