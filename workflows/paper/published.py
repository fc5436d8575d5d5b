"""Figures of Devlin et al. 2018 and tables of ours next to them, for reports and JSON.

Figures are by task and by table, in points (0..100). Metrics have the names that the tasks here
give them. Rows and columns are the paper's: a task with its metrics, an ablation with its tasks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, mean, stdev
from typing import Any

from workflows.reporting.render import Cell, Row, Table

BASE, LARGE = "BERT base", "BERT large"


@dataclass(frozen=True)
class Column:
    """A column of the GLUE table: task, metric, their titles, and the split that is measured."""

    task: str
    metric: str
    metric_title: str
    title: str
    split: str = "dev"


COLUMNS: dict[str, Column] = {
    "mnli": Column("mnli", "accuracy", "accuracy", "MNLI-m", "dev_matched"),
    "mnli_mm": Column("mnli", "accuracy", "accuracy", "MNLI-mm", "dev_mismatched"),
    "qqp": Column("qqp", "f1", "F1", "QQP"),
    "qnli": Column("qnli", "accuracy", "accuracy", "QNLI"),
    "sst2": Column("sst2", "accuracy", "accuracy", "SST-2"),
    "cola": Column("cola", "matthews", "Matthews", "CoLA"),
    "stsb": Column("stsb", "spearman", "Spearman", "STS-B"),
    "mrpc": Column("mrpc", "f1", "F1", "MRPC"),
    "rte": Column("rte", "accuracy", "accuracy", "RTE"),
}
"""As the paper has them, in its order; WNLI is none of them (section 4.1)."""

_ORDER = tuple(COLUMNS)
_BASE = (84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4)
_LARGE = (86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1)

PAPER_AVERAGES = {BASE: 79.6, LARGE: 82.1}
"""As printed: the plain mean of the nine figures, in which both of MNLI's count."""

GLUE_TEST: dict[str, dict[str, float]] = {
    BASE: dict(zip(_ORDER, _BASE, strict=True)),
    LARGE: dict(zip(_ORDER, _LARGE, strict=True)),
}
"""Table 1: figures of the test sets by column, scored by the GLUE server."""


FINETUNING = "finetune"
"""The row of the encoder that is fine-tuned; the other rows are named after their strategy."""

TABLE_7_TITLES = {
    FINETUNING: "Fine-tuning",
    "embeddings": "Embeddings",
    "second_to_last": "Second-to-last hidden",
    "last": "Last hidden",
    "weighted_sum_last_four": "Weighted sum last four hidden",
    "concat_last_four": "Concat last four hidden",
    "weighted_sum_all": "Weighted sum all layers",
}
"""The rows, in the paper's order."""

TABLE_7_DEV = {
    FINETUNING: 96.4,
    "embeddings": 91.0,
    "second_to_last": 95.6,
    "last": 94.9,
    "weighted_sum_last_four": 95.9,
    "concat_last_four": 96.1,
    "weighted_sum_all": 95.5,
}
TABLE_7_TEST = {FINETUNING: 92.4}
"""F1 in points: BERT base, cased."""


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
        Published(BASE, 7, {"f1": TABLE_7_DEV[FINETUNING]}),
        Published(LARGE, 7, {"f1": 96.6}),
    ),
}


def published(task: str) -> list[Published]:
    """What the paper has for a task, dev before test; empty where it has nothing."""
    found = list(_DEV.get(task, ()))
    if task in COLUMNS:
        found += [_of_glue_server(*row, task) for row in GLUE_TEST.items()]
    if task == "conll2003":
        found.append(Published(BASE, 7, {"f1": TABLE_7_TEST[FINETUNING]}, "test"))
    return found


def _of_glue_server(encoder: str, figures: Mapping[str, float], task: str) -> Published:
    return Published(encoder, 1, {COLUMNS[task].metric: figures[task]}, "test")


@dataclass(frozen=True)
class PaperColumn:
    """A column: the paper's name for it; a task here, `task:features` where they are features."""

    title: str
    task: str
    metric: str


@dataclass(frozen=True)
class PaperAblation:
    """A table: its rows by the paper's names, each with a figure for each column.

    `perplexity` is that of masked tokens of held-out text, by row. `finding` is what the paper
    concludes, in a sentence.
    """

    title: str
    finding: str
    columns: tuple[PaperColumn, ...] = ()
    rows: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    perplexity: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


_MNLI = PaperColumn("MNLI-m", "mnli", "accuracy")
_MRPC = PaperColumn("MRPC", "mrpc", "accuracy")
_SST2 = PaperColumn("SST-2", "sst2", "accuracy")

TABLE_5 = PaperAblation(
    "Table 5: the objective of pre-training",
    finding="Without next-sentence prediction QNLI, MNLI and SQuAD are clearly worse (by 3.5, 0.5 "
    "and 0.6 points); left to right is worse on every task, most on MRPC (9.2) and SQuAD (10.7).",
    columns=(
        _MNLI,
        PaperColumn("QNLI", "qnli", "accuracy"),
        _MRPC,
        _SST2,
        PaperColumn("SQuAD", "squad", "f1"),
    ),
    rows={
        "BERT base": (84.4, 88.4, 86.7, 92.7, 88.5),
        "No NSP": (83.9, 84.9, 86.5, 92.6, 87.9),
        "LTR & No NSP": (82.1, 84.3, 77.5, 92.1, 77.8),
        "LTR & No NSP + BiLSTM": (82.1, 84.1, 75.7, 91.6, 84.9),
    },
    notes=("The paper's BiLSTM on top of the left-to-right encoder is not rebuilt here.",),
)

TABLE_6 = PaperAblation(
    "Table 6: the size of the encoder",
    finding="The larger the encoder, the better on every task, also on MRPC with its 3,600 "
    "training examples (79.8 with 3 layers of 768, 87.8 with 24 of 1024).",
    columns=(_MNLI, _MRPC, _SST2),
    rows={
        "3/768/12": (77.9, 79.8, 88.4),
        "6/768/3": (80.6, 82.2, 90.7),
        "6/768/12": (81.9, 84.8, 91.3),
        "12/768/12": (84.4, 86.7, 92.9),
        "12/1024/16": (85.7, 86.9, 93.3),
        "24/1024/16": (86.6, 87.8, 93.7),
    },
    perplexity={
        "3/768/12": 5.84,
        "6/768/3": 5.24,
        "6/768/12": 4.68,
        "12/768/12": 3.99,
        "12/1024/16": 3.54,
        "24/1024/16": 3.23,
    },
    notes=(
        "Layers / width / attention heads. The paper's figures are averages of five restarts of "
        "fine-tuning.",
    ),
)

TABLE_8 = PaperAblation(
    "Table 8: what stands in the place of the predicted tokens",
    finding="Fine-tuning hardly notices the shares (MNLI within 0.8 points), but all [MASK] costs "
    "the feature-based approach 0.9 points on NER, and without any [MASK] MNLI is lowest.",
    columns=(
        PaperColumn("MNLI", "mnli", "accuracy"),
        PaperColumn("NER, fine-tuned", "conll2003", "f1"),
        PaperColumn("NER, features", "conll2003:features", "f1"),
    ),
    rows={
        "80/10/10": (84.2, 95.4, 94.9),
        "100/0/0": (84.3, 94.9, 94.0),
        "80/0/20": (84.1, 95.2, 94.6),
        "80/20/0": (84.4, 95.2, 94.7),
        "0/20/80": (83.7, 94.8, 94.6),
        "0/0/100": (83.6, 94.9, 94.6),
    },
    notes=(
        "Of the predicted tokens so many per cent are replaced by [MASK] / stay the same / are "
        "replaced by a random token. The paper's features are the last four layers of the encoder.",
    ),
)

BLOCKS = PaperAblation(
    "The block of the encoder",
    finding="Devlin et al. have one block; Portes et al. 2023 (MosaicBERT, arXiv 2312.17482) and "
    "Warner et al. 2024 (ModernBERT, arXiv 2412.13663) report more with newer ones.",
)
RECIPE_PARTS = PaperAblation(
    "Parts of the recipe",
    finding="Devlin et al. have one recipe; newer ones mask 30 % (Portes et al. 2023, arXiv "
    "2312.17482), and pack rows and let batches grow (Warner et al. 2024, arXiv 2412.13663).",
)
"""The two of newer encoders, of which the paper has no ablation."""

MASKING_RATE = PaperAblation(
    "The share of tokens that are predicted",
    finding="Devlin et al. predict 15 % throughout and have no figures for other shares; Wettig et "
    "al. 2023 (arXiv 2202.08005) find 40 % better than 15 % for encoders of BERT large's size, and "
    "the best share the higher the larger the encoder.",
)
"""The masking rate, of which the paper has no ablation."""


ADAPTATION_FIGURES = PaperAblation(
    "Gururangan et al. 2020 (arXiv 2004.10964): domain-adaptive pre-training of RoBERTa base",
    finding="Adapted to text of its domain RoBERTa gains 2.3 points on ChemProt and 12.4 on "
    "ACL-ARC; the same steps on text of another domain lose 2.5 on the one and gain 3.4 on the "
    "other.",
    columns=(
        PaperColumn("ChemProt", "chemprot", "f1"),
        PaperColumn("ACL-ARC", "acl_arc", "f1"),
    ),
    rows={
        "RoBERTa": (81.9, 63.0),
        "adapted to the domain": (84.2, 75.4),
        "adapted to another domain": (79.4, 66.4),
    },
    notes=("Published: test set; compare differences between rows, not rows.",),
)
"""Known figures of adaptation."""


DASH = "–"
_TITLES = {"f1": "F1", "matthews": "Matthews", "pearson": "Pearson", "spearman": "Spearman"}


@dataclass(frozen=True)
class PaperRow:
    """A row: scores of our seeds and the paper's figure by column, in points (0..100)."""

    name: str
    ours: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperTable:
    """Rows of figures by column, ours and the paper's, with notes on how to compare them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    notes: tuple[str, ...] = ()


OURS, PAPERS = "ours", "paper"
"""The two halves of a column."""


def halves(table: PaperTable, column: str) -> tuple[str, ...]:
    """Which halves a column has: one alone where the other has no figure in any row.

    Both where nothing of ours is measured yet.
    """
    ours = any(row.ours.get(column) for row in table.rows)
    papers = any(column in row.paper for row in table.rows)
    if ours == papers or not any(any(row.ours.values()) for row in table.rows):
        return OURS, PAPERS
    return (OURS,) if ours else (PAPERS,)


def paper_cell(row: PaperRow, column: str, half: str) -> str:
    """Ours, with a deviation where there are several seeds, or the paper's; a dash for none."""
    if half == OURS:
        return score_text(row.ours.get(column, ()))
    paper = row.paper.get(column)
    return DASH if paper is None else f"{paper:.1f}"


def report_table(table: PaperTable, rows_are: str = "figures") -> Table:
    """The table for a report, the halves of each column side by side; `rows_are` heads names."""
    layout = [(column, half) for column in table.columns for half in halves(table, column)]
    rows = []
    for row in table.rows:
        texts = [paper_cell(row, column, half) for column, half in layout]
        # Also a dash has an order, so that columns without any figure align to the right.
        cells = [Cell(text, 0.0 if text == DASH else float(text.split()[0])) for text in texts]
        rows.append(Row([row.name, *cells]))
    heads = [f"{column}, {half}" for column, half in layout]
    return Table(f"{table.title}, in points (0 to 100)", [rows_are, *heads], rows, table.notes)


def json_paper_table(table: PaperTable) -> dict[str, Any]:
    """The table for JSON, with our means."""
    rows = [
        {
            "name": row.name,
            "ours": {name: list(scores) for name, scores in row.ours.items()},
            "ours_mean": {name: fmean(scores) for name, scores in row.ours.items() if scores},
            "paper": dict(row.paper),
        }
        for row in table.rows
    ]
    return {"title": table.title, "unit": "points, 0-100", "rows": rows, "notes": table.notes}


def beside_published(
    task: str, figures: Mapping[str, Sequence[float]], *, criterion: str, num_dev: int
) -> PaperTable | None:
    """Our dev figures next to the paper's; None for a task that is not in the paper.

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
    """The usual spelling of a metric."""
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


def score_text(scores: Sequence[float]) -> str:
    """Mean and standard deviation: `95.12 ± 0.10`; of one seed the figure alone."""
    if not scores:
        return DASH
    if len(scores) == 1:
        return f"{scores[0]:.2f}"
    return f"{mean(scores):.2f} ± {stdev(scores):.2f}"
