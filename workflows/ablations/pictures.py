"""Pictures of an ablation: its findings go in; vector pictures for a page or files come out.

The variant that all others are compared with is red. Scores are in points (0..100).
"""

from collections.abc import Sequence
from statistics import fmean, stdev

from workflows.ablations.findings import AblationFindings, TaskFound
from workflows.ablations.outcome import VariantOutcome
from workflows.ablations.words import is_next_token
from workflows.paper.paper_table import metric_title, score_text
from workflows.vector_charts import (
    NUM_SHADES,
    Numbers,
    Picture,
    dot,
    path_line,
    shortened,
    stroke,
    text,
)

_WIDTH, _ROW, _TOP = 360, 46, 30
_LEFT, _RIGHT = 14, 346  # the scores of a panel
_PLOT = (50, 350, 34, 220)  # left, right, top and bottom of a plot of curves
_LINE = 20  # from one line of a legend to the next


def score_picture(findings: AblationFindings, task: TaskFound) -> Picture:
    """A row for each variant: a dot for each seed, the mean, a band of one deviation each way.

    In each row a mark stands at the reference's mean.
    """
    variants = [each for each in findings.outcome.variants if each.name in task.scores]
    every = [score for each in variants for score in task.scores[each.name]]
    scale = _padded(every, _LEFT, _RIGHT)
    bottom = _TOP + _ROW * len(variants)
    body = [
        text(
            2,
            16,
            shortened(f"{task.title}, {metric_title(task.metric)} on dev", _WIDTH),
            kind="title",
        )
    ]
    for x, said in scale.ticks():
        body += [stroke(x, _TOP, x, bottom, "grid"), text(x, bottom + 20, said, anchor="middle")]
    reference = task.scores.get(findings.reference.name)
    for index, variant in enumerate(variants):
        top, scores = _TOP + _ROW * index + 14, task.scores[variant.name]
        mean, kind = fmean(scores), "best" if variant.is_reference else "s3"
        body.append(text(_LEFT, top, shortened(variant.title, 190)))
        body.append(text(_RIGHT, top, score_text(scores), anchor="end", kind="quiet"))
        if len(scores) > 1:
            body.append(_band(scale, mean, stdev(scores), top + 10))
        if reference:
            x = scale.at(fmean(reference))
            body.append(stroke(x, top + 5, x, top + 27, "chance"))
        body.append(stroke(scale.at(mean), top + 6, scale.at(mean), top + 26, "mean"))
        body += [
            dot(scale.at(score), top + 16, kind, f"{variant.title}: {score:.2f}")
            for score in scores
        ]
    return Picture(_WIDTH, bottom + 28, "\n".join(body), f"{task.title} by variant")


def _band(scale: Numbers, mean: float, deviation: float, y: float) -> str:
    left, right = scale.at(mean - deviation), scale.at(mean + deviation)
    size = f'width="{right - left:.1f}" height="12"'
    return f'<rect x="{left:.1f}" y="{y:.1f}" {size} class="bar" opacity=".3"/>'


def curve_pictures(findings: AblationFindings) -> list[Picture]:
    """Losses on held-out documents by step: a panel for masked tokens, one for next tokens."""
    groups = {
        "Masked-token loss": [each for each in findings.pretrained if not is_next_token(each)],
        "Next-token loss": [each for each in findings.pretrained if is_next_token(each)],
    }
    return [_curves(f"{title}, held out", some) for title, some in groups.items() if some]


def _curves(title: str, variants: Sequence[VariantOutcome]) -> Picture:
    """A line for each variant, its name and last loss below; the bluer, the later in the study."""
    left, right, top, bottom = _PLOT
    losses = [loss for each in variants for _, loss in each.curve]
    last = max(step for each in variants for step, _ in each.curve)
    heights, steps = _padded(losses, bottom, top), Numbers(0, last, left, right, most_ticks=4)
    body = [text(2, 16, title, kind="title")]
    for y, said in heights.ticks():
        body += [stroke(left, y, right, y, "grid"), text(left - 8, y + 4, said, anchor="end")]
    for x, said in steps.ticks():
        anchor = "end" if x > right - 10 else "middle"
        body.append(text(x, bottom + 20, said, anchor=anchor))
    body.append('<g class="lines">')
    for index, variant in enumerate(variants):
        places = [(steps.at(step), heights.at(loss)) for step, loss in variant.curve]
        kind = "best" if variant.is_reference else f"s{_shade(index, len(variants))}"
        said = f"{variant.title}, {variant.curve[-1][1]:.3f}"
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        y = bottom + 46 + _LINE * index
        body += [
            path_line(path, kind, said),
            dot(*places[-1], kind, said, radius=3.5),
            path_line(f"M{left} {y - 4}L{left + 22} {y - 4}", kind, said),
            text(left + 30, y, shortened(variant.title, 230)),
            text(right, y, f"{variant.curve[-1][1]:.3f}", anchor="end", kind="quiet"),
        ]
    body.append("</g>")
    height = bottom + 46 + _LINE * len(variants)
    return Picture(_WIDTH, height, "\n".join(body), f"{title} by step, a line for each variant")


def _shade(index: int, number: int) -> int:
    """The later, the darker; never the faintest."""
    return NUM_SHADES - 1 if number < 2 else 1 + round(index * (NUM_SHADES - 2) / (number - 1))


def _padded(values: Sequence[float], start: float, end: float) -> Numbers:
    """A scale of all values with some room at both ends."""
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.5
    return Numbers(low - room, high + room, start, end)
