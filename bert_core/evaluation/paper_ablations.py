"""The ablations of Devlin et al. 2018 (tables 5, 6 and 8): figures of dev sets, in points.

Columns name the task, the approach and the metric here that compare with the paper's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


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
