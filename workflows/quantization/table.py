"""What was measured of a model in float32 and in int8 goes in; a table to read comes out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_core.evaluation.comparison import Comparison
from bert_core.evaluation.intervals import Interval
from bert_core.evaluation.outcomes import Outcome, spans
from bert_core.tasks.task import FloatArray


@dataclass(frozen=True)
class QuantizationLoss:
    """What was measured: on what, a row for each figure, and sentences about them."""

    data: str
    titles: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: Sequence[str]

    @property
    def text(self) -> str:
        """All of it, in Markdown."""
        bar = ("---", *("---:" for _ in self.titles[1:]))
        table = [f"| {' | '.join(cells)} |" for cells in (self.titles, bar, *self.rows)]
        return "\n\n".join([f"Measured on {self.data}:", "\n".join(table), " ".join(self.notes)])


@dataclass(frozen=True)
class Timing:
    """The CPU seconds that each of the two took for the same tokens."""

    float32: float
    int8: float
    num_tokens: int

    @property
    def sentence(self) -> str:
        """How many times as fast int8 is."""
        return (
            f"{self.num_tokens:,} tokens took {self.float32:,.1f} s of CPU time in float32 and"
            f" {self.int8:,.1f} s in int8, {self.float32 / self.int8:.2f} times as fast."
        )


def loss_of_task(
    data: str,
    comparison: Comparison,
    criterion: str,
    told: Sequence[Sequence[Outcome]],
    notes: Sequence[str],
) -> QuantizationLoss:
    """The task's metrics, the one that decides first, and which answers have changed.

    `told` are the answers in float32 and those in int8.
    """
    names = sorted(comparison.metrics, key=lambda name: name != criterion)
    rows = []
    for name in names:
        found = comparison.metrics[name]
        difference = _difference(found.difference)
        rows.append((name, f"{found.first:.4f}", f"{found.second:.4f}", difference))
    titles = ("", "float32", "int8", "difference (95 % interval)")
    return QuantizationLoss(data, titles, rows, [_changes(*told), *notes])


def loss_of_encoder(data: str, cosines: FloatArray, notes: Sequence[str]) -> QuantizationLoss:
    """How far the vectors of texts have turned, given the cosine of each with itself, [N]."""
    rows = [
        ("mean", f"{cosines.mean():.5f}"),
        ("1st percentile", f"{np.quantile(cosines, 0.01):.5f}"),
        ("smallest", f"{cosines.min():.5f}"),
    ]
    titles = ("", "cosine of a text's vectors in float32 and in int8")
    return QuantizationLoss(data, titles, rows, notes)


def _difference(found: Interval) -> str:
    if found.is_degenerate and found.value == found.low:
        return f"{found.value:+.4f}"
    return f"{found.value:+.4f} ({found.low:+.4f} to {found.high:+.4f})"


def _changes(before: Sequence[Outcome], after: Sequence[Outcome]) -> str:
    """One sentence on the answers that are others; of numbers, on how far they have moved."""
    pairs = list(zip(before, after, strict=True))
    if all(isinstance(each.found, float) for each in (*before, *after)):
        moved = [abs(one.found - other.found) for one, other in pairs]
        return f"Numbers moved by {np.mean(moved):.4g} on average, by {max(moved):.4g} at most."
    changed = sum(_answer(one) != _answer(other) for one, other in pairs)
    return f"{changed:,} of {len(pairs):,} predictions changed ({changed / len(pairs):.2%})."


def _answer(outcome: Outcome) -> Any:  # noqa: ANN401 - of any task
    """What was found, without how sure the model is of it."""
    found = outcome.found
    if isinstance(found, list) and found and isinstance(found[0], Mapping):
        return spans(found)
    return set(found) if isinstance(found, list) else found
