"""What Devlin et al. 2018 report for a task: its name and our figures go in, a table comes out.

Figures are in points (0..100), metrics are called as the tasks here call them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from bert_core.evaluation.glue_table import COLUMNS, PAPER_ROWS, Row
from bert_core.evaluation.paper_table import PaperRow, PaperTable
from bert_core.evaluation.table7 import FINETUNING, PAPER_DEV, PAPER_TEST

BASE, LARGE = "BERT base", "BERT large"

_TITLES = {"f1": "F1", "matthews": "Matthews", "pearson": "Pearson", "spearman": "Spearman"}


@dataclass(frozen=True)
class Published:
    """Figures of one encoder in one table of the paper, by metric, on the dev or the test set."""

    encoder: str
    table: int
    figures: Mapping[str, float]
    split: str = "dev"

    @property
    def name(self) -> str:
        """Whose figures they are, on what, from where."""
        return f"{self.encoder}, {self.split} set (table {self.table})"


def _accuracy(encoder: str, table: int, points: float) -> Published:
    return Published(encoder, table, {"accuracy": points})


def _f1(encoder: str, exact_match: float, f1: float, *, table: int) -> Published:
    return Published(encoder, table, {"exact_match": exact_match, "f1": f1})


_DEV: dict[str, tuple[Published, ...]] = {
    "mnli": (_accuracy(BASE, 5, 84.4), _accuracy(LARGE, 6, 86.6)),
    "qnli": (_accuracy(BASE, 5, 88.4),),
    "mrpc": (_accuracy(BASE, 5, 86.7), _accuracy(LARGE, 6, 87.8)),
    "sst2": (_accuracy(BASE, 5, 92.7), _accuracy(BASE, 6, 92.9), _accuracy(LARGE, 6, 93.7)),
    "squad": (_f1(BASE, 80.8, 88.5, table=2), _f1(LARGE, 84.1, 90.9, table=2)),
    "squad_v2": (_f1(LARGE, 78.7, 81.9, table=3),),
    "swag": (_accuracy(BASE, 4, 81.6), _accuracy(LARGE, 4, 86.6)),
    "conll2003": (
        Published(BASE, 7, {"f1": PAPER_DEV[FINETUNING]}),
        Published(LARGE, 7, {"f1": 96.6}),
    ),
}


def published(task: str) -> list[Published]:
    """What the paper has for a task, dev before test; empty where it has nothing."""
    found = list(_DEV.get(task, ()))
    if task in COLUMNS:
        found += [_of_glue_server(row, task) for row in PAPER_ROWS]
    if task == "conll2003":
        found.append(Published(BASE, 7, {"f1": PAPER_TEST[FINETUNING]}, "test"))
    return found


def _of_glue_server(row: Row, task: str) -> Published:
    figure = row.figures[task]
    assert isinstance(figure, float)  # the paper's have no intervals
    return Published(row.name, 1, {COLUMNS[task].metric: figure}, row.measured_on)


def beside_published(
    task: str, figures: Mapping[str, Sequence[float]], *, criterion: str, num_dev: int
) -> PaperTable | None:
    """Our dev figures beside the paper's; None for a task that the paper does not have.

    `figures` are those of each seed by metric, in 0..1; `criterion` is the one that decided.
    """
    found = published(task)
    if not found:
        return None
    metrics = list(dict.fromkeys(name for each in found for name in each.figures))
    rows = tuple(
        PaperRow(
            each.name,
            {
                metric_title(name): tuple(100 * value for value in figures.get(name, ()))
                for name in each.figures
            },
            {metric_title(name): points for name, points in each.figures.items()},
        )
        for each in found
    )
    columns = tuple(map(metric_title, metrics))
    notes = (*_notes(found, criterion), *_of_few_examples(figures.get("accuracy", ()), num_dev))
    return PaperTable("Beside the paper", columns, rows, notes)


def metric_title(name: str) -> str:
    """A metric as people write it."""
    return _TITLES.get(name, name.replace("_", " "))


def _notes(found: Sequence[Published], criterion: str) -> list[str]:
    notes = [
        "In points. Ours are of the dev set, mean ± standard deviation over the seeds of the best"
        " setting; this dev set also chose setting and epoch, which flatters them a little.",
        "The paper's encoders are 12 layers of 768 and 24 of 1024, pre-trained on 3.3 billion"
        " words: a smaller encoder is not expected to reach them.",
    ]
    splits = {each.split for each in found}
    if "dev" not in splits:
        notes.append(
            "The paper has no dev figure for this task: these are of the test set, scored by the"
            " GLUE server, and not the same examples."
        )
    elif "test" in splits:
        notes.append("Figures of the test set are of other examples: they are no like for like.")
    on_dev = {name for each in found if each.split == "dev" for name in each.figures}
    if on_dev and criterion not in on_dev:
        notes.append(
            f"On dev the paper has {' and '.join(map(metric_title, sorted(on_dev)))}, so that is"
            f" what compares; here {metric_title(criterion)} chose setting and epoch."
        )
    if any(each.table == 6 for each in found):
        notes.append("Table 6 has averages of five restarts, as the paper says.")
    return notes


def _of_few_examples(accuracy: Sequence[float], num_dev: int) -> list[str]:
    """How far an accuracy may be off by the choice of examples alone."""
    if not accuracy or not num_dev:
        return []
    mean = fmean(accuracy)
    reach = 196 * (mean * (1 - mean) / num_dev) ** 0.5
    return [
        f"On {num_dev:,} dev examples an accuracy of {100 * mean:.1f} has by itself a 95 %"
        f" interval of ±{reach:.1f} points."
    ]
