"""What Devlin et al. 2018 publish: figures by task and by table, in points (0..100).

Metrics have the names that the tasks here give them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

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

NO_TABLE = PaperAblation(
    "The share of tokens that are predicted",
    finding="Devlin et al. predict 15 % throughout and have no figures for other shares; Wettig et "
    "al. 2023 (arXiv 2202.08005) find 40 % better than 15 % for encoders of BERT large's size, and "
    "the best share the higher the larger the encoder.",
)
"""The masking rate, of which the paper has no ablation."""
