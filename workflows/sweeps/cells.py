"""A sweep's findings in cells: the tables that the page and the Markdown report both show."""

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean

from workflows.paper.paper_table import DASH
from workflows.progress import duration
from workflows.sweeps.findings import PointFound, SweepFindings, points_text, scores_text
from workflows.sweeps.outcome import TrialOutcome
from workflows.sweeps.words import number_of
from workflows.vector_charts import value_text
from workflows.versions.finished_run import Usage

MOST_SEED_COLUMNS = 6


@dataclass(frozen=True)
class Cell:
    """What stands in a table, and what to sort it by."""

    text: str
    order: float | None = None

    @property
    def is_number(self) -> bool:
        """Whether it stands at the right."""
        return self.order is not None


def point_table(findings: SweepFindings) -> tuple[list[str], list[tuple[PointFound, list[Cell]]]]:
    """Heads, and for each point its cells: the best first, those without a score last."""
    seeds = findings.seeds if len(findings.seeds) <= MOST_SEED_COLUMNS else []
    by_seed = [f"seed {seed}" for seed in seeds] or ["each seed's"]
    compared = ["level"] if findings.noise is not None else []
    heads = ["rank", findings.metric, *compared, *findings.axis_titles.values(), "seeds", *by_seed]
    rows = []
    for each in (*findings.points, *findings.unscored):
        values = [each.point[axis] for axis in findings.outcome.axes]
        cells = [
            *_score_cells(each, is_compared=bool(compared)),
            *(Cell(value_text(value), _order(value)) for value in values),
            Cell(f"{len(each.scored)}", len(each.scored)),
            *_seed_cells(each, seeds),
            Cell(", ".join(str(trial.best_epoch) for trial in each.scored) or DASH),
            Cell(duration(each.seconds), each.seconds) if each.scored else Cell(DASH),
        ]
        rows.append((each, cells))
    return [*heads, "best epochs", "time of a trial"], rows


def _score_cells(point: PointFound, *, is_compared: bool) -> list[Cell]:
    scores = point.scores
    cells = [Cell(""), Cell(DASH)]
    if point.scored:
        cells = [Cell(str(point.rank), point.rank), Cell(scores_text(scores.scores), scores.mean)]
    level = {None: "", True: "yes", False: "no"}[point.is_level]
    return [*cells, Cell(level)] if is_compared else cells


def _seed_cells(point: PointFound, seeds: list[int]) -> list[Cell]:
    if not seeds:
        return [Cell(", ".join(_trial_text(each) for each in point.trials))]
    by_seed = {each.seed: each for each in point.trials}
    found = [by_seed.get(seed) for seed in seeds]
    return [
        Cell(DASH) if each is None else Cell(_trial_text(each), each.score or -math.inf)
        for each in found
    ]


def _trial_text(trial: TrialOutcome) -> str:
    if trial.score is None:
        return "missing" if trial.failure is None else "failed"
    return points_text(trial.score) + "†" * trial.stopped_early


def _order(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def costs(findings: SweepFindings) -> list[tuple[str, str]]:
    """What the sweep has used, each with a name."""
    outcome, finished = findings.outcome, findings.finished
    hours: dict[str, float] = defaultdict(float)
    for each in outcome.trials:
        hours[each.device] += each.device_hours
    used = "; ".join(str(Usage(device, some)) for device, some in sorted(hours.items()) if some)
    rows = [("all trials", used or "nothing yet")]
    if finished:
        seconds = fmean(each.seconds for each in finished)
        low, high = min(e.seconds for e in finished), max(e.seconds for e in finished)
        mean = fmean(each.device_hours for each in finished)
        kind = "core" if finished[0].device == "cpu" else "GPU"
        between = f"{duration(low)} to {duration(high)}"
        rows.append(
            ("a trial", f"{duration(seconds)} on average, {between}; {mean:.3g} {kind}-hours")
        )
    lost = sum(each.device_hours for each in findings.failed)
    if lost:
        rows.append(("of it failed", f"{lost:.2f} hours of the devices"))
    tokens = sum(each.num_tokens for each in outcome.trials)
    total = sum(each.seconds for each in outcome.trials)
    rows.append(("tokens", f"{tokens:,}, every epoch counted"))
    at_once = (
        f"up to {outcome.at_once} trials at once" if outcome.at_once > 1 else "one trial at a time"
    )
    wall = f"{duration(outcome.wall_seconds)}, {at_once}; the trials took {duration(total)} in all"
    rows.append(("wall time", wall))
    return rows


def troubles(findings: SweepFindings) -> list[tuple[str, str, str]]:
    """For each trial without a score its run, its setting, and why."""
    return [
        (
            each.name,
            f"{findings.point_text(each.point)}, seed {each.seed}",
            each.failure or _missing(each),
        )
        for each in (*findings.failed, *findings.missing)
    ]


def _missing(trial: TrialOutcome) -> str:
    epochs = len(trial.curve)
    return f"not finished: {number_of(epochs, 'epoch')} done" if epochs else "has not begun"
