"""A sweep's findings in words and cells: what the page and the Markdown report both say."""

import math

from workflows.sweeps.findings import SweepFindings, points_text, scores_text
from workflows.sweeps.pictures import num_outside

CURVES_WORDS = (
    "A line for each trial, a dot at its best epoch; the trials of the best setting are red, "
    "unfinished ones dotted."
)
"""What learning curves show."""
_MUCH_CHEAPER = 0.8  # of the best point's time
_MOST_SEEDS = 100  # that are worth proposing


def counts(findings: SweepFindings) -> str:
    """How many points and trials there are, and how far they have come."""
    outcome, seeds = findings.outcome, len(findings.seeds)
    points = len(findings.points) + len(findings.unscored)
    parts = [f"{len(findings.finished):,} finished"]
    stopped = sum(each.stopped_early for each in findings.finished)
    parts += [f"{stopped:,} of them stopped early"] if stopped else []
    parts += [f"{len(findings.failed):,} failed"] if findings.failed else []
    parts += [f"{len(findings.missing):,} missing"] if findings.missing else []
    return (
        f"{number_of(points, 'setting')}, {number_of(seeds, 'seed')}, "
        f"{number_of(len(outcome.trials), 'trial')}: {', '.join(parts)}"
    )


def described(findings: SweepFindings) -> str:
    """What was trained on what."""
    outcome = findings.outcome
    return (
        f"Task {outcome.task}, encoder {outcome.model}, data {outcome.data}: "
        f"{outcome.num_train:,} training examples, {outcome.num_dev:,} dev examples."
    )


def headline(findings: SweepFindings) -> str:
    """The best setting and what it reached; that there is none, where no trial has finished."""
    best = findings.best
    if best is None:
        return "No trial has a score, so there is no best setting."
    seeds = number_of(len(best.scores.scores), "seed")
    score = f"{findings.metric} {scores_text(best.scores.scores)} on dev, {seeds}"
    return f"{findings.point_text(best.point)}: {score}"


def verdict(findings: SweepFindings) -> list[str]:
    """Whether the best setting can be told from the others, in sentences."""
    if len(findings.points) < 2:
        return ["There is no other setting with a score to compare it with."] * len(findings.points)
    best, second, *_ = findings.points
    runner_up = (
        f"the runner-up ({findings.point_text(second.point)}) is "
        f"{points_text(second.behind)} points behind"
    )
    if findings.noise is None:
        why = (
            "One seed of each setting does not say how far a seed alone moves a score"
            if all(len(each.scores.scores) == 1 for each in findings.points)
            else "These seeds do not say how far a seed alone moves a score"
        )
        return [
            f"{why}, so it is open whether this setting is better or was lucky: {runner_up}. "
            "More seeds (--seeds 3) answer that."
        ]
    said = [_told_apart(findings, runner_up)]
    level = [each for each in findings.points[1:] if each.is_level]
    cheapest = min(level, key=lambda each: each.seconds, default=best)
    if cheapest.seconds < _MUCH_CHEAPER * best.seconds:
        share = cheapest.seconds / best.seconds
        said.append(
            f"The cheapest of those takes {share:.0%} of its time: "
            f"{findings.point_text(cheapest.point)}, {points_text(cheapest.behind)} points behind."
        )
    seeds = _seeds_needed(findings)
    if seeds is not None:
        said.append(
            f"Should their means stay as they are, about {seeds} seeds of each would tell the "
            "first two apart."
        )
    return said


def _told_apart(findings: SweepFindings, runner_up: str) -> str:
    others = len(findings.points) - 1
    level = sum(bool(each.is_level) for each in findings.points[1:])
    if not level:
        whom = {1: "the other setting", 2: "both others"}.get(others, f"all {others} others")
        margin = points_text(findings.points[1].margin or 0.0)
        return (
            f"It can be told from {whom} with 95 % confidence: {runner_up}, more than the "
            f"{margin} that seeds may explain."
        )
    whom = "the other setting" if others == 1 else f"{level} of the {others} others"
    return f"These seeds cannot tell it from {whom} (marked as level): {runner_up}."


def _seeds_needed(findings: SweepFindings) -> int | None:
    """Of each of the first two settings to tell them apart; None where no such number helps."""
    second = findings.points[1]
    if not second.is_level or not second.margin or not second.behind:
        return None
    seeds = len(second.scores.scores) * (second.margin / second.behind) ** 2
    return math.ceil(seeds) if seeds <= _MOST_SEEDS else None


def method(findings: SweepFindings) -> list[str]:
    """How the points are compared, and what is wrong with their figures."""
    said = [
        "In points (0 to 100). A trial's score is that of its best epoch on the dev set that also "
        "ranks the settings: all are flattered a little, more epochs and better settings more.",
    ]
    if findings.noise is not None:
        said.append(
            "Level: those that may be the best, with 95 % confidence for all of them together (Hsu "
            "1984, multiple comparisons with the best). A seed alone moves a score by "
            f"{points_text(findings.noise.deviation)} points (standard deviation, pooled over the "
            f"better half of the settings, {findings.noise.freedom} degrees of freedom; taken to "
            "be the same for all)."
        )
    if any(each.stopped_early for each in findings.finished):
        said.append(
            "Trials that were stopped early, being behind, count with the best score they had (†)."
        )
    return said


def importance_words(findings: SweepFindings) -> list[str]:
    """What the bars of importance are."""
    said = [
        "The share of the variance between settings' means that one axis explains alone (main "
        "effects of an analysis of variance). The mark is what an axis without effect would "
        "explain by chance: a bar that ends near it says nothing.",
    ]
    binned = [
        findings.axis_titles[axis] for axis, each in findings.importances.items() if each.is_binned
    ]
    if binned:
        said.append(
            f"{', '.join(binned)}: neighbouring values taken together, groups of as many settings "
            "each. The settings were not laid out as a grid, so the shares may overlap."
        )
    elif findings.unscored:
        said.append("Settings without a score leave holes in the grid: the shares may overlap.")
    if findings.num_fallen:
        said.append(
            f"Left out here: {number_of(findings.num_fallen, 'setting')} far below the others, "
            "which would outweigh all that there is between them."
        )
    if findings.noise_share is not None:
        said.append(
            f"The noise of seeds alone accounts for {findings.noise_share:.0%} of that variance."
        )
    return said


def lines_words(findings: SweepFindings) -> str:
    """What parallel coordinates show."""
    said = "A line for each setting, the bluer the better; red is the best."
    return said + _outside(findings)


def dots_words(findings: SweepFindings) -> str:
    """What the picture of an axis shows."""
    said = (
        "A dot for each trial; the bar is the mean of a value's settings, or of neighbouring ones."
    )
    return said + _outside(findings)


def _outside(findings: SweepFindings) -> str:
    """How many scores lie beyond the pictures."""
    number = num_outside(findings)
    lie = "lies" if number == 1 else "lie"
    return (
        f" {number_of(number, 'trial')} far below the others {lie} at the edge." if number else ""
    )


def paper_words(findings: SweepFindings) -> str:
    """That the paper has no figures to compare with, where that is so."""
    if findings.best is None or findings.beside_paper is not None:
        return ""
    return f"Devlin et al. 2018 have no figure for the task {findings.outcome.task}."


def number_of(count: int, what: str) -> str:
    """So many of something, in the singular or the plural."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
