"""The demo's report: fine-tuning runs of an encoder before and after its training, by task.

Every figure has a 95 % bootstrap interval over the dev examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_core.disk import write_atomically
from bert_core.evaluation.intervals import Interval, bootstrap_intervals, compare
from bert_core.evaluation.outcomes import resampling_units
from workflows.finetuning.job import FinetuningJob
from workflows.finetuning.results import best_predictions
from workflows.reporting.figures import (
    BLUE,
    GREY,
    INK,
    Figure,
    new_figure,
    saved_figure,
    set_title,
    tidy,
)
from workflows.reporting.render import (
    Cell,
    Figures,
    Page,
    Row,
    Section,
    Table,
    aligned_lines,
    write_page,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

TABLE, REPORT, PICTURE = "table.txt", "report.md", "comparison.png"


@dataclass(frozen=True)
class Training:
    """What lies between the two encoders: its name, and what they are called before and after it.

    `run_kinds` call them in the names of runs. `about` says what the first one is.
    """

    name: str
    before: str
    after: str
    run_kinds: tuple[str, str]
    about: str

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads of the table."""
        return ("task", "metric", self.before, self.after, "difference (95 % interval)")


PRETRAINING = Training(
    "pre-training",
    "untrained",
    "pre-trained",
    ("untrained", "pretrained"),
    "the untrained one starts from random weights",
)
ADAPTATION = Training(
    "adaptation",
    "start model",
    "adapted",
    ("start", "adapted"),
    "the start model is the encoder before its pre-training went on with the documentation",
)


@dataclass(frozen=True)
class Compared:
    """A task's metric for the encoder before and after training, and after less before."""

    task: str
    metric: str
    num_train: int
    num_dev: int
    epochs: int
    before: Interval
    after: Interval
    difference: Interval


def compared(before: FinetuningJob, after: FinetuningJob) -> Compared:
    """Measures what the best epochs of two finished runs predicted for the same dev examples."""
    data, task = after.data, after.data.task
    examples, groups = data.dev.examples, resampling_units(data.dev.examples)
    first, second = (best_predictions(job.folder.last_checkpoint()) for job in (before, after))
    measured = [
        bootstrap_intervals(task, each, examples, groups=groups)[task.criterion]
        for each in (first, second)
    ]
    comparison = compare(task, first, second, examples, groups=groups)
    return Compared(
        task=after.settings.task,
        metric=task.criterion,
        num_train=len(data.train.examples),
        num_dev=len(examples),
        epochs=after.settings.epochs,
        before=measured[0],
        after=measured[1],
        difference=comparison.metrics[task.criterion].difference,
    )


def write_report(results: Sequence[Compared], folder: Path, training: Training) -> None:
    """Writes figure and report, and last the table, whose presence says that the rest is there."""
    figure = saved_figure(
        lambda title: comparison_drawing(results, title, training),
        folder / PICTURE,
        title=f"Three tasks, before and after {training.name}",
        caption="Both encoders on each task, with 95 % bootstrap intervals over the dev examples.",
    )
    write_page(report_page(results, figure, training), folder)
    places = f"\npicture  {folder / PICTURE}\nreport   {folder / REPORT}\n"
    write_atomically(folder / TABLE, text_table(results, training) + places)


def text_table(results: Sequence[Compared], training: Training) -> str:
    """The table for a terminal, and the verdict."""
    rows = [training.heads, *map(cells, results)]
    lines = aligned_lines(rows, numeric=(False, False, True, True, True))
    return "\n".join([*lines, verdict(results, training)]) + "\n"


def cells(result: Compared) -> tuple[str, ...]:
    """The texts of a row of the table."""
    return (
        result.task,
        result.metric,
        f"{result.before.value:.3f}",
        f"{result.after.value:.3f}",
        result.difference.text("+.3f"),
    )


def verdict(results: Sequence[Compared], training: Training) -> str:
    """Where the training has shown, where it has not."""
    better = [result.task for result in results if result.difference.low > 0]
    worse = [result.task for result in results if result.difference.high < 0]
    same = [result.task for result in results if result.task not in (*better, *worse)]
    parts = [
        f"{', '.join(names)}: {what}"
        for names, what in (
            (better, f"better for the {training.name}"),
            (worse, f"worse for the {training.name}"),
            (same, "these examples do not tell the two apart"),
        )
        if names
    ]
    return "; ".join(parts)


def report_page(results: Sequence[Compared], figure: Figure, training: Training) -> Page:
    """The report as a page."""
    rows = []
    for result in results:
        task, metric, *figures = cells(result)
        values = result.before.value, result.after.value, result.difference.value
        numbers = [Cell(text, value) for text, value in zip(figures, values, strict=True)]
        counts = (
            f"{result.num_train:,} examples, {result.epochs} epochs; "
            f"{result.num_dev:,} dev examples"
        )
        rows.append(Row([task, metric, *numbers, counts]))
    about = (
        "The tasks are made of the documentation on this machine. Both encoders have the same head,"
        f" examples, order and settings; {training.about}."
    )
    limits = (
        "Figures are those of the best epoch on the dev examples, which also chose it, for both"
        " encoders. Differences are paired, and questions about one text are drawn together. The"
        " variation between seeds is not included."
    )
    table = Table("Metrics with 95 % intervals", [*training.heads, "data"], rows)
    return Page(
        f"What {training.name} is worth on three tasks",
        verdict(results, training),
        sections=[Section("Comparison", [about, table, Figures([figure]), limits])],
    )


def comparison_drawing(results: Sequence[Compared], title: str, training: Training) -> "Drawing":
    """Draws both encoders on each task, with their intervals."""
    figure = new_figure(6.0, 1.4 + 0.8 * len(results))
    axes = figure.add_subplot()
    set_title(axes, title)
    before, after = ([getattr(result, kind) for result in results] for kind in ("before", "after"))
    draw_intervals(axes, after, training.after, BLUE, -0.14)
    draw_intervals(axes, before, training.before, GREY, 0.14)
    names = [f"{result.task}\n{result.metric}" for result in results]
    axes.set_yticks(range(len(results)), names)
    axes.set_ylim(len(results) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.set_xlabel("metric on the dev examples", color=INK)
    tidy(axes)
    axes.grid(visible=False, axis="y")
    axes.legend(frameon=False, labelcolor=INK, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def draw_intervals(
    axes: "Axes", found: Sequence[Interval], label: str, color: str, shift: float
) -> None:
    """Draws a dot for each figure, a line for its interval, and writes the figure beside it."""
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
