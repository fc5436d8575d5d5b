"""Which classes each example has, and which were found: what F1 and its kin are functions of.

A class is a label, or a type of entities. Shapes: N examples, C classes, S samples.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bert_core.evaluation.outcomes import Outcome, spans
from bert_core.tasks.classification import Classification
from bert_core.tasks.metrics import FloatArray
from bert_core.tasks.tag_schemes import split_tag
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True)
class ClassCounts:
    """For each example and class, [N, C]: `gold` ones, `found` ones, and `hits`, both at once."""

    names: tuple[str, ...]
    hits: "csr_array"
    gold: "csr_array"
    found: "csr_array"

    @classmethod
    def of(
        cls,
        gold: Sequence[Iterable[tuple[str, Hashable]]],
        found: Sequence[Iterable[tuple[str, Hashable]]],
        names: Sequence[str],
    ) -> "ClassCounts":
        """Counts (class, thing) pairs; a pair of an example that is in both is a hit.

        Classes that are not among `names` follow them.
        """
        gold_sets, found_sets = [set(each) for each in gold], [set(each) for each in found]
        seen = {name for sets in (gold_sets, found_sets) for each in sets for name, _ in each}
        all_names = (*names, *sorted(seen - set(names)))
        number = {name: index for index, name in enumerate(all_names)}
        both = [first & second for first, second in zip(gold_sets, found_sets, strict=True)]
        hits, golds, founds = (_counted(each, number) for each in (both, gold_sets, found_sets))
        return cls(all_names, hits=hits, gold=golds, found=founds)

    def sums(self, counts: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Hits, gold and found over samples with these counts of each example [S, N]; [S, C]."""
        return counts @ self.hits, counts @ self.gold, counts @ self.found


def class_counts(task: Task, results: Sequence[Outcome]) -> ClassCounts | None:
    """The labels, or the types of entities, of outcomes; None where answers are no classes."""
    if isinstance(task, Tagging):
        types = sorted({split_tag(label)[1] for label in task.labels} - {""})
        return ClassCounts.of(
            [spans(each.gold) for each in results], [spans(each.found) for each in results], types
        )
    if isinstance(task, Classification) and task.kind != "regression":
        return ClassCounts.of(
            [_labels(each.gold) for each in results],
            [_labels(each.found) for each in results],
            task.labels,
        )
    return None


def ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """part / whole, 0 where there is nothing to divide by."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole != 0)


def f1_of(hits: FloatArray, gold: FloatArray, found: FloatArray) -> FloatArray:
    """The harmonic mean of precision and recall, 0 where it is undefined."""
    return ratio(2 * hits, gold + found)


def _labels(answer: str | Sequence[str]) -> set[tuple[str, Hashable]]:
    return {(label, None) for label in ([answer] if isinstance(answer, str) else answer)}


def _counted(pairs: Sequence[set[tuple[str, Hashable]]], number: Mapping[str, int]) -> "csr_array":
    from scipy.sparse import csr_array

    rows = np.repeat(np.arange(len(pairs)), [len(each) for each in pairs])
    columns = np.array([number[name] for each in pairs for name, _ in each], dtype=np.int64)
    # Of the same place more than once, as with two entities of a type, the matrix has the sum.
    return csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(pairs), len(number)))
