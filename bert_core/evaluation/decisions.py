"""Decisions tuned on dev: the temperature of the scores, and a threshold of each label.

Both are judged out of fold: dev is divided into folds, and what is tuned on all but one is measured
on that one. What does not help there is not kept; what helps is tuned again on all of dev.
Shapes: N examples, D decisions, L labels or choices, C cuts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_core.errors import one_line
from bert_core.evaluation.intervals import Interval, compare
from bert_core.evaluation.metrics import f1_of, ratio
from bert_core.settings import DecisionSettings
from bert_core.tasks.classification import Classification, Text, outputs_of_examples
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.metrics import FloatArray
from bert_core.tasks.multiple_choice import MultipleChoice
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Predictions, Task
from bert_core.text.rng import IntArray

BoolArray = npt.NDArray[np.bool_]
Outputs = npt.NDArray[np.float32]

NUM_FOLDS = 5
FEWEST = 50
"""Examples of dev below which nothing is tuned: a fold would have less than ten."""
TEMPERATURES = (0.1, 10.0)
_SWEEPS = 10
"""Over all labels, until no threshold changes; few take more than three."""


@dataclass(frozen=True)
class Finding:
    """What tuning the temperature or the thresholds came to.

    `value` describes what was kept, and is empty where nothing was, for the `reason`. `before` and
    `after` are the `metric` out of fold, `difference` its paired interval; None of what was not
    measured.
    """

    name: str
    metric: str = ""
    before: float | None = None
    after: float | None = None
    difference: Interval | None = None
    value: str = ""
    reason: str = ""

    @property
    def text(self) -> str:
        """One line, with the figures."""
        head = f"{self.name} {self.value}" if self.value else f"{self.name} not kept"
        parts = [self.reason] if self.reason else []
        if self.before is not None and self.after is not None:
            parts.append(f"{self.metric} {self.before:.4f}, then {self.after:.4f} out of fold")
        if self.difference is not None:
            low, high = self.difference.low, self.difference.high
            parts[-1] += f" (95 % interval of the difference {low:+.4f} to {high:+.4f})"
        return one_line(f"{head}: {'; '.join(parts)}")


@dataclass(frozen=True)
class Decisions:
    """A task with tuned thresholds, its predictions for dev, and what was found.

    The `temperature` is not the task's: the head's answers are to be divided by it.
    """

    task: Task
    predictions: Predictions
    temperature: float = 1.0
    findings: tuple[Finding, ...] = ()


def tune_decisions(
    task: Task,
    outputs: Outputs,
    rows: EncodedRows,
    examples: Sequence[Any],
    asked: DecisionSettings,
    *,
    seed: int = 0,
) -> Decisions:
    """Tunes what is asked for, of the head's answers [P, L] to the rows of dev's examples.

    The temperature has the least log loss, and is kept where log loss falls out of fold. The
    thresholds have the highest criterion, and are kept where the 95 % interval of its rise out of
    fold, of the paired bootstrap, lies above 0. Of 200 problems of 200 examples with random labels
    and scores that was so for 2 by `f1_macro`. Examples all have answers. A temperature moves no
    example across a threshold that moves with it, so the second is tuned after the first.
    """
    if len(examples) < FEWEST:
        reason = f"{len(examples)} dev examples, and {FEWEST} are needed"
        findings = tuple(Finding(name, reason=reason) for name in asked.changed)
        return Decisions(task, task.decode(outputs, rows, examples), findings=findings)
    fold = folds([repr(getattr(example, "answer", None)) for example in examples], seed)
    found: list[Finding] = []
    temperature = 1.0
    if asked.temperature:
        decided = ScoredDecisions.of(task, outputs, rows, len(examples))
        temperature, finding = tuned_temperature(decided, fold)
        found.append(finding)
    scaled = outputs / np.float32(temperature)
    predictions = task.decode(scaled, rows, examples)
    if asked.thresholds:
        assert isinstance(task, Classification)
        task, finding = tuned_thresholds(task, predictions, examples, fold, seed=seed)
        found.append(finding)
        predictions = task.decode(scaled, rows, examples)
    return Decisions(task, predictions, temperature, tuple(found))


def folds(strata: Sequence[str], seed: int) -> IntArray:
    """The fold of each example, [N], drawn from the seed; each fold has its share of a stratum."""
    _, codes = np.unique(np.array(strata, dtype=object).astype(str), return_inverse=True)
    drawn = np.random.default_rng(seed).permutation(len(codes))
    fold = np.empty(len(codes), dtype=np.int64)
    fold[np.lexsort((drawn, codes))] = np.arange(len(codes)) % NUM_FOLDS
    return fold


@dataclass(frozen=True)
class ScoredDecisions:
    """Decisions with a right answer: `logits` [D, L], and the `example` of each, [D].

    `gold` is the right label or choice, [D], or whether each label belongs there, [D, L].
    """

    logits: FloatArray
    gold: npt.NDArray[Any]
    example: IntArray

    @classmethod
    def of(
        cls, task: Task, outputs: Outputs, rows: EncodedRows, num_examples: int
    ) -> "ScoredDecisions":
        """The decisions of a task: labels of examples, tags of words, or choices."""
        example, gold = np.arange(num_examples), rows.labels
        match task:
            case Classification():
                logits = outputs_of_examples(outputs, rows, num_examples)
                gold = gold[np.unique(rows.example, return_index=True)[1]]
            case MultipleChoice():
                logits = outputs.reshape(rows.num_items, -1)
            case Tagging():
                logits, example = outputs, np.repeat(rows.example, rows.place_counts)
            case _:
                raise ValueError(f"{type(task).__name__} has no temperature")
        return cls(logits.astype(np.float64), gold, example)

    def among(self, chosen: BoolArray) -> "ScoredDecisions":
        """The decisions of the chosen examples, [N]."""
        kept = chosen[self.example]
        return ScoredDecisions(self.logits[kept], self.gold[kept], self.example[kept])

    def log_losses(self, temperature: float) -> FloatArray:
        """The log loss of each decision, [D]; of several labels their mean."""
        logits = self.logits / temperature
        if self.gold.ndim == 2:
            signs = np.where(self.gold > 0.5, -1.0, 1.0)
            return np.logaddexp(0.0, signs * logits).mean(axis=1)
        right = np.take_along_axis(logits, self.gold[:, None], axis=1)[:, 0]
        return np.logaddexp.reduce(logits, axis=1) - right

    def best_temperature(self) -> float:
        """The temperature of the least mean log loss, within TEMPERATURES, to four digits.

        The loss is convex in one over the temperature, so there is one minimum.
        """
        from scipy.optimize import minimize_scalar

        found = minimize_scalar(
            lambda log: float(self.log_losses(np.exp(log)).mean()),
            bounds=np.log(TEMPERATURES),
            method="bounded",
            options={"xatol": 1e-6},
        )
        return float(f"{np.exp(found.x):.4g}")  # pyright: ignore - the result's type is unknown


def tuned_temperature(decided: ScoredDecisions, fold: IntArray) -> tuple[float, Finding]:
    """The temperature, 1 where none is kept, and what was found."""
    temperature = decided.best_temperature()
    losses = np.empty(len(decided.logits))
    for number in range(NUM_FOLDS):
        held = fold == number
        best = decided.among(~held).best_temperature()
        losses[held[decided.example]] = decided.among(held).log_losses(best)
    before, after = float(decided.log_losses(1.0).mean()), float(losses.mean())
    finding = Finding("temperature", "log loss", before, after)
    low, high = TEMPERATURES
    if not low * 1.01 < temperature < high / 1.01:
        # Where every answer is right, or none says anything, there is no best one.
        reason = f"the best is not within {low:g} to {high:g}"
        return 1.0, replace(finding, reason=reason)
    if not after < before:
        return 1.0, finding
    return temperature, replace(finding, value=f"{temperature:g}")


def tuned_thresholds(
    task: Classification,
    predictions: Predictions,
    examples: Sequence[Text],
    fold: IntArray,
    *,
    seed: int,
) -> tuple[Classification, Finding]:
    """The task, with thresholds where they are kept, and what was found."""
    scores = np.array([list(each["scores"].values()) for each in predictions])  # [N, L]
    gold = given_labels(task, examples)
    out_of_fold = list(predictions)
    for number in range(NUM_FOLDS):
        held = fold == number
        tuned = with_thresholds(task, scores[~held], gold[~held])
        places = np.flatnonzero(held).tolist()
        for place, prediction in zip(places, tuned.decide(scores[held]), strict=True):
            out_of_fold[place] = prediction
    compared = compare(task, predictions, out_of_fold, examples, seed=seed)
    metric = compared.metrics[task.criterion]
    finding = Finding("thresholds", task.criterion, metric.first, metric.second, metric.difference)
    if metric.second <= metric.first or metric.difference.low <= 0:
        return task, finding
    tuned = with_thresholds(task, scores, gold)
    if not tuned.thresholds:
        return task, replace(finding, reason="0.5 is the best of all dev")
    shown = ", ".join(f"{name} {value:.3g}" for name, value in tuned.thresholds.items())
    return tuned, replace(finding, value=shown)


def with_thresholds(task: Classification, scores: FloatArray, gold: BoolArray) -> Classification:
    """The task with the thresholds of the highest criterion, given scores and answers [N, L].

    Of two labels the threshold is that of the second; those that are 0.5 are left out.
    """
    names = task.labels
    if task.kind == "single":
        names, scores, gold = names[1:], scores[:, 1:], gold[:, 1:]
    best = best_thresholds(scores, gold, task.criterion)
    named = zip(names, best.tolist(), strict=True)
    return task.model_copy(
        update={"thresholds": {name: each for name, each in named if each != 0.5}}
    )


def best_thresholds(scores: FloatArray, gold: BoolArray, criterion: str) -> FloatArray:
    """The thresholds [L] with the highest criterion; a label is given where its score is above.

    One label after the other is given its best threshold, until none changes. For F1 of labels on
    average, and of one column, that is the best there is.
    """
    thresholds = np.full(scores.shape[1], 0.5)
    for _ in range(_SWEEPS):
        before = thresholds.copy()
        for label in range(len(thresholds)):
            thresholds[label] = _best_threshold(scores, gold, criterion, thresholds, label)
        if np.array_equal(before, thresholds):
            break
    return thresholds


@dataclass(frozen=True)
class Cuts:
    """The ways to divide examples by a score: the best `found` are given the label, [C] each.

    `hits` of them have it; `threshold` is one that divides so, 0.5 where it does.
    """

    threshold: FloatArray
    found: FloatArray
    hits: FloatArray

    @classmethod
    def of(cls, scores: FloatArray, gold: BoolArray) -> "Cuts":
        """The cuts between different scores [N], given which examples have the label, [N]."""
        order = np.argsort(-scores, kind="stable")
        ordered = scores[order]
        ends = np.flatnonzero(np.diff(ordered, append=-1.0)) + 1
        found = np.concatenate([[0], ends])
        lowest = np.concatenate([[1.0], ordered[ends - 1]])  # of those that are given it
        highest = np.concatenate([ordered[:1], ordered[ends[:-1]], [0.0]])  # of the others
        middle = highest + (lowest - highest) / 2
        middle = np.where(middle < lowest, middle, highest)
        threshold = np.where((highest <= 0.5) & (lowest > 0.5), 0.5, middle)
        hits = np.concatenate([[0], np.cumsum(gold[order])])[found]
        possible = (highest < lowest) | (found == 0)  # a score of 0 is above nothing
        return cls(threshold[possible], found[possible].astype(float), hits[possible].astype(float))


def _best_threshold(
    scores: FloatArray, gold: BoolArray, criterion: str, thresholds: FloatArray, label: int
) -> float:
    """The best threshold of one label while the others keep theirs; of equals that nearest 0.5."""
    given, others = scores > thresholds, np.arange(len(thresholds)) != label
    counted = np.ones(len(scores), dtype=bool)
    if criterion == "exact_match":  # an example that is wrong elsewhere cannot become right
        counted = (given == gold)[:, others].all(axis=1)
    if not counted.any():
        return float(thresholds[label])
    cuts = Cuts.of(scores[counted, label], gold[counted, label])
    hits, found = cuts.hits, cuts.found
    num_gold, total = gold[counted, label].sum(), counted.sum()
    if not 0 < num_gold < total:  # nothing contradicts a threshold beyond all scores
        return float(thresholds[label])
    nots = total - num_gold - found + hits  # that rightly are not given it
    match criterion:
        case "accuracy" | "exact_match":
            values = (hits + nots) / total
        case "f1_micro":
            elsewhere = (given & gold)[:, others].sum(), given[:, others].sum(), gold.sum()
            values = f1_of(hits + elsewhere[0], elsewhere[2] + 0 * hits, found + elsewhere[1])
        case "f1_macro" if len(thresholds) == 1:  # of two labels
            both = f1_of(hits, num_gold + 0 * hits, found)
            values = (both + f1_of(nots, total - num_gold + 0 * hits, total - found)) / 2
        case "f1" | "f1_macro":
            values = f1_of(hits, num_gold + 0 * hits, found)
        case "matthews":
            spread = num_gold * (total - num_gold) * found * (total - found)
            values = ratio(hits * total - num_gold * found, np.sqrt(spread))
        case _:
            raise ValueError(f"no thresholds are the best by {criterion}")
    best = np.flatnonzero(values >= values.max() - 1e-12)
    return float(cuts.threshold[best[np.abs(cuts.threshold[best] - 0.5).argmin()]])


def given_labels(task: Classification, examples: Sequence[Text]) -> BoolArray:
    """Which labels each example has, [N, L]."""
    sets = [{*(task.label_names([example]) or ())} for example in examples]
    return np.array([[name in each for name in task.labels] for each in sets], dtype=bool)
