"""Table 7 of Devlin et al. 2018: an encoder fine-tuned, and as a source of features, on NER.

What several seeds reached goes in; the table beside the paper's comes out as text, Markdown, JSON.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from bert_core.evaluation.table_text import aligned_table, markdown_line

DASH = "–"
FINETUNING = "finetune"
"""The row of the encoder that is fine-tuned; the other rows are named after their strategy."""

TITLES = {
    FINETUNING: "Fine-tuning",
    "embeddings": "Embeddings",
    "second_to_last": "Second-to-last hidden",
    "last": "Last hidden",
    "weighted_sum_last_four": "Weighted sum last four hidden",
    "concat_last_four": "Concat last four hidden",
    "weighted_sum_all": "Weighted sum all layers",
}
"""The rows, in the paper's order."""

PAPER_DEV = {
    FINETUNING: 96.4,
    "embeddings": 91.0,
    "second_to_last": 95.6,
    "last": 94.9,
    "weighted_sum_last_four": 95.9,
    "concat_last_four": 96.1,
    "weighted_sum_all": 95.5,
}
PAPER_TEST = {FINETUNING: 92.4}
"""F1 in points: BERT base, cased."""


@dataclass(frozen=True)
class SeedScores:
    """F1 in points, one figure for each seed."""

    dev: Sequence[float]
    test: Sequence[float] = ()


@dataclass(frozen=True)
class Table7:
    """Scores by row, and what has to be known about them.

    `encoder` and `recipe` are sentences; rows that were not measured have a dash.
    """

    encoder: str
    recipe: str
    rows: Mapping[str, SeedScores]

    @property
    def order(self) -> list[str]:
        """Our strategies from the best to the worst, by their mean on dev."""
        measured = [name for name in TITLES if name != FINETUNING and name in self.rows]
        return sorted(measured, key=lambda name: -mean(self.rows[name].dev))

    @property
    def notes(self) -> list[str]:
        """What a reader has to know to compare the columns."""
        paper = sorted(PAPER_DEV, key=lambda name: -PAPER_DEV[name])
        order = [name for name in paper if name in self.order]
        return [
            self.encoder,
            self.recipe,
            "The paper's column: BERT base, cased (12 layers, 768 wide), a BiLSTM 768 wide,"
            " document context, averages of five seeds.",
            "F1 of entities in points; ours are the mean over seeds and, after ±, their standard"
            " deviation. Dev figures are those of the best epoch on dev.",
            f"Order of the strategies here: {_order(self.order)}; in the paper: {_order(order)}.",
        ]


def _order(names: Sequence[str]) -> str:
    return " > ".join(names) or "none"


def score_text(scores: Sequence[float]) -> str:
    """Mean and standard deviation: `95.12 ± 0.10`; of one seed the figure alone."""
    if not scores:
        return DASH
    if len(scores) == 1:
        return f"{scores[0]:.2f}"
    return f"{mean(scores):.2f} ± {stdev(scores):.2f}"


def table_lines(table: Table7) -> list[list[str]]:
    """The cells, the head among them."""
    lines = [["", "dev F1", "seeds", "paper's", "test F1", "paper's"]]
    for name, title in TITLES.items():
        scores = table.rows.get(name, SeedScores(()))
        lines.append(
            [
                title,
                score_text(scores.dev),
                str(len(scores.dev)) if scores.dev else DASH,
                f"{PAPER_DEV[name]:.1f}",
                score_text(scores.test),
                f"{PAPER_TEST[name]:.1f}" if name in PAPER_TEST else "",
            ]
        )
    return lines


def text_table(table: Table7) -> str:
    """The table and its notes for a terminal."""
    return aligned_table(table_lines(table), table.notes)


def markdown_table(table: Table7, pictures: Sequence[str] = ()) -> str:
    """The table, its notes and pictures, by their file names, in Markdown."""
    head, *rows = table_lines(table)
    lines = [
        "# Table 7\n",
        markdown_line(head),
        "|---|" + "--:|" * (len(head) - 1),
        *map(markdown_line, rows),
        "",
    ]
    lines += [f"- {note}" for note in table.notes]
    lines += [f"\n![{name.removesuffix('.png')}]({name})" for name in pictures]
    return "\n".join(lines) + "\n"


def json_table(table: Table7, more: Mapping[str, Any]) -> str:
    """All scores and notes as JSON, with what else is given, such as F1 by layer."""
    rows = {
        name: {
            "dev": list(scores.dev),
            "test": list(scores.test),
            "dev_mean": mean(scores.dev) if scores.dev else None,
            "dev_standard_error": _standard_error(scores.dev),
            "paper_dev": PAPER_DEV[name],
            "paper_test": PAPER_TEST.get(name),
        }
        for name, scores in table.rows.items()
    }
    content = {"unit": "F1, points", "rows": rows, "notes": table.notes, **more}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _standard_error(scores: Sequence[float]) -> float | None:
    return stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else None
