"""Label errors: which given labels out-of-fold probabilities contradict, by confident learning.

The computation is cleanlab's (Northcutt et al. 2021). Shapes: U units (an example, or a word), L
labels.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_core.errors import UserError, require
from bert_core.text.rng import IntArray

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

FILTER, QUALITY = "confident_learning", "self_confidence"
"""How cleanlab chooses suspects, and what it ranks by: the probability of the given label.

The filter holds each label to how sure models are of it. The first of the ranking would be as many,
but mostly of the label that models know least (docs/decisions.md).
"""
ABSENT = ""
"""In a `NoisePair` the absence of the other label, where there may be several."""


@dataclass(frozen=True)
class NoisePair:
    """How many units have the label `given` and likely should have `likely`: an estimate."""

    given: str
    likely: str
    count: float


@dataclass(frozen=True)
class LabelErrors:
    """What was found of U units.

    `quality` [U] is cleanlab's score, 0 to 1, low where the given label is likely wrong; `suspects`
    [U] are those that its filter takes for errors. `suggested` [U] are the likely labels, `share`
    is the estimated share of units with a wrong label, and `noise` says which, the most frequent
    first. `joint` [L, L] counts given (row) and likely labels; None where there may be several.
    """

    quality: FloatArray
    suspects: BoolArray
    suggested: Sequence[tuple[int, ...]]
    share: float
    noise: Sequence[NoisePair]
    joint: FloatArray | None = None

    @property
    def order(self) -> IntArray:
        """The units by their quality, the most suspect first, [U]."""
        return np.argsort(self.quality, kind="stable").astype(np.int64)


def refuse_without_cleanlab() -> None:
    """Raises `UserError` where the library is not installed."""
    require("{} is not installed", "cleanlab", where="label errors", extra="audit")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings about rare labels, of which fewer errors are found."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def in_several_folds(labels: IntArray, fold: IntArray, num_labels: int) -> BoolArray:
    """Which labels, [L], occur in more than one fold, those of U units and their folds given.

    A label of one fold alone is judged by models that have not learned it: they contradict it
    wherever it is, and by their low probabilities every other one that is a little more probable.
    """
    first = np.full(num_labels, np.iinfo(np.int64).max)
    last = np.full(num_labels, -1)
    np.minimum.at(first, labels, fold)
    np.maximum.at(last, labels, fold)
    return first < last


def errors_of_labels(
    labels: IntArray, probabilities: FloatArray, names: Sequence[str]
) -> LabelErrors:
    """Of one label each: `labels` [U] are given, `probabilities` [U, L] out of fold."""
    from cleanlab.count import estimate_joint
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    with _quiet():
        # One process: on Linux cleanlab would fork this one, threads and all.
        suspects = find_label_issues(labels, probabilities, filter_by=FILTER, n_jobs=1)
    quality: Any = get_label_quality_scores(labels, probabilities, method=QUALITY)
    joint = np.asarray(estimate_joint(labels, probabilities)) * len(labels)
    wrong = joint * ~np.eye(len(names), dtype=bool)
    pairs = [
        NoisePair(names[int(row)], names[int(column)], float(wrong[row, column]))
        for row, column in np.argwhere(wrong > 0)
    ]
    return LabelErrors(
        quality=quality,
        suspects=np.asarray(suspects, dtype=bool) & (probabilities.argmax(axis=1) != labels),
        suggested=[(label,) for label in probabilities.argmax(axis=1).tolist()],
        share=float(wrong.sum()) / len(labels),
        noise=sorted(pairs, key=lambda pair: -pair.count),
        joint=joint,
    )


def errors_of_label_sets(
    given: BoolArray, probabilities: FloatArray, names: Sequence[str], judged: IntArray
) -> LabelErrors:
    """Of any number of labels each: `given` [U, L], `probabilities` [U, L] out of fold.

    Each of the `judged` labels is judged by itself (`judged_labels`).
    """
    from cleanlab.count import estimate_joint
    from cleanlab.multilabel_classification.filter import find_multilabel_issues_per_class
    from cleanlab.multilabel_classification.rank import get_label_quality_scores

    chosen, probable = given[:, judged], probabilities[:, judged]
    sets = [np.flatnonzero(row).tolist() for row in chosen]
    wrong = np.zeros(given.shape, dtype=bool)
    with _quiet():
        found = find_multilabel_issues_per_class(sets, probable, filter_by=FILTER, n_jobs=1)
    wrong[:, judged] = np.asarray(found) & ((probable > 0.5) != chosen)
    quality: Any = get_label_quality_scores(sets, probable, method=QUALITY)
    pairs = []
    for number in map(int, judged):
        own = probabilities[:, number]
        labels = given[:, number].astype(np.int64)
        joint = np.asarray(estimate_joint(labels, np.stack([1 - own, own], axis=1))) * len(given)
        pairs.append(NoisePair(ABSENT, names[number], float(joint[0, 1])))
        pairs.append(NoisePair(names[number], ABSENT, float(joint[1, 0])))
    return LabelErrors(
        quality=quality,
        suspects=np.asarray(wrong.any(axis=1)),
        suggested=[tuple(np.flatnonzero(row).tolist()) for row in given ^ wrong],
        share=float(wrong.any(axis=1).mean()),
        noise=sorted((pair for pair in pairs if pair.count > 0), key=lambda pair: -pair.count),
    )


def judged_labels(given: BoolArray, fold: IntArray) -> IntArray:
    """The labels that can be judged: in more than one fold some units have them, and some do not.

    Raises `UserError` where they are fewer than two, which cleanlab needs.
    """
    parts = [given[fold == each] for each in np.unique(fold)]
    having = np.sum([part.any(axis=0) for part in parts], axis=0)
    lacking = np.sum([~part.all(axis=0) for part in parts], axis=0)
    judged = np.flatnonzero((having > 1) & (lacking > 1))
    if len(judged) < 2:
        what = "fewer than two labels that examples of several folds have, and others lack"
        raise UserError(what, "the training examples", "check the column of labels")
    return judged
