"""What a demo comes to: fine-tuning runs of two encoders go in; a table, a picture, a report out.

Each figure has its 95 % bootstrap interval, over the dev examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_core.evaluation.comparison import compare
from bert_core.evaluation.intervals import Interval, bootstrap_intervals
from bert_core.evaluation.outcomes import documents
from workflows.finetuning.job import FinetuningJob
from workflows.finetuning.report import best_predictions
from workflows.reporting.figures import BLUE, GREY, INK, new_figure, save_picture, set_title, tidy
from workflows.runs.folder import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TABLE, REPORT, PICTURE = "table.txt", "report.md", "comparison.png"


@dataclass(frozen=True)
class Compared:
    """A task's metric for both encoders, and what the one is above the other."""

    task: str
    metric: str
    num_train: int
    num_dev: int
    epochs: int
    untrained: Interval
    pretrained: Interval
    difference: Interval


def compared(untrained: FinetuningJob, pretrained: FinetuningJob) -> Compared:
    """Measures what the best epochs of two finished runs predicted for the same dev examples."""
    data, task = pretrained.data, pretrained.data.task
    examples, groups = data.dev.examples, documents(data.dev.examples)
    first, second = (
        best_predictions(job.folder.last_checkpoint()) for job in (untrained, pretrained)
    )
    measured = [
        bootstrap_intervals(task, each, examples, groups=groups)[task.criterion]
        for each in (first, second)
    ]
    comparison = compare(task, first, second, examples, groups=groups)
    return Compared(
        task=pretrained.settings.task,
        metric=task.criterion,
        num_train=len(data.train.examples),
        num_dev=len(examples),
        epochs=pretrained.settings.epochs,
        untrained=measured[0],
        pretrained=measured[1],
        difference=comparison.metrics[task.criterion].difference,
    )


def write_report(results: Sequence[Compared], folder: Path) -> None:
    """Writes picture and report, and last the table, which says that the rest is there."""
    plot_comparison(results, folder / PICTURE)
    write_atomically(folder / REPORT, markdown_report(results))
    places = f"\npicture  {folder / PICTURE}\nreport   {folder / REPORT}\n"
    write_atomically(folder / TABLE, text_table(results) + places)


def text_table(results: Sequence[Compared]) -> str:
    """The table for a terminal, and a line on what it says."""
    rows = [cells(each) for each in results]
    titles = ("task", "metric", "untrained", "pre-trained", "difference (95 % interval)")
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    lines = []
    for row in (titles, *rows):
        words = [f"{text:{width}}" for text, width in zip(row[:2], widths[:2], strict=True)]
        words += [f"{text:>{width}}" for text, width in zip(row[2:], widths[2:], strict=True)]
        lines.append("  ".join(words).rstrip())
    return "\n".join([*lines, verdict(results)]) + "\n"


def cells(result: Compared) -> tuple[str, ...]:
    """A row of the table."""
    difference = result.difference
    return (
        result.task,
        result.metric,
        f"{result.untrained.value:.3f}",
        f"{result.pretrained.value:.3f}",
        f"{difference.value:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})",
    )


def verdict(results: Sequence[Compared]) -> str:
    """Where pre-training has shown, where it has not."""
    better = [each.task for each in results if each.difference.low > 0]
    worse = [each.task for each in results if each.difference.high < 0]
    same = [each.task for each in results if each.task not in (*better, *worse)]
    parts = [
        f"{', '.join(names)}: {what}"
        for names, what in (
            (better, "better for the pre-training"),
            (worse, "worse for the pre-training"),
            (same, "these examples do not tell the two apart"),
        )
        if names
    ]
    return "; ".join(parts)


def markdown_report(results: Sequence[Compared]) -> str:
    """The whole report, to read."""
    rows = ["| " + " | ".join([*cells(each), counts(each)]) + " |" for each in results]
    titles = "| task | metric | untrained | pre-trained | difference (95 % interval) | learned |"
    sections = [
        "# What pre-training is worth on three tasks",
        "Tasks made of the documentation on this machine. The encoder that was pre-trained stands "
        "beside weights that have learned nothing: the same head, the same examples in the same "
        "order, the same settings.",
        "\n".join([titles, "|---|---|--:|--:|--:|---|", *rows]),
        verdict(results) + ".",
        f"![Both encoders on each task]({PICTURE})",
        "The figures are those of the best epoch on the dev examples, which also chose it, for "
        "both encoders alike. The intervals are the bootstrap's over dev examples, that of the "
        "difference paired; questions about one text are drawn together. What another seed would "
        "give is not in them.",
    ]
    return "\n\n".join(sections) + "\n"


def counts(result: Compared) -> str:
    """What was learned from and measured on."""
    return f"{result.num_train:,} examples, {result.epochs} epochs; {result.num_dev:,} dev examples"


def plot_comparison(results: Sequence[Compared], path: Path) -> None:
    """Draws both encoders on each task, with their intervals."""
    figure = new_figure(8, 1.6 + 0.9 * len(results))
    axes = figure.add_subplot()
    set_title(axes, "Fine-tuned on three tasks, with and without pre-training")
    for kind, color, shift in (("pretrained", BLUE, -0.14), ("untrained", GREY, 0.14)):
        draw_intervals(axes, [getattr(each, kind) for each in results], color, shift)
    names = [f"{each.task}\n{each.metric}" for each in results]
    axes.set_yticks(range(len(results)), names)
    axes.set_ylim(len(results) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.set_xlabel("on the dev examples, with 95 % bootstrap intervals", color=INK)
    tidy(axes)
    axes.grid(visible=False, axis="y")
    axes.legend(frameon=False, labelcolor=INK, loc="lower right")
    save_picture(figure, path)


def draw_intervals(axes: "Axes", found: Sequence[Interval], color: str, shift: float) -> None:
    """Draws a dot for each figure, a line for its interval, and writes the figure beside it."""
    label = "pre-trained" if shift < 0 else "untrained"
    places = [number + shift for number in range(len(found))]
    axes.hlines(places, [e.low for e in found], [e.high for e in found], color=color, linewidth=2.5)
    dots = {"color": color, "markersize": 8, "clip_on": False, "label": label}
    axes.plot([each.value for each in found], places, "o", **dots)
    for each, place in zip(found, places, strict=True):
        axes.annotate(
            f"{each.value:.3f}",
            (max(each.high, each.value), place),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            color=INK,
        )
