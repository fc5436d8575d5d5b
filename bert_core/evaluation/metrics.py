"""Metrics of a task over many weighted samples at once, for the bootstrap.

A thousand samples of ten thousand examples are too many for scikit-learn and seqeval. Most metrics
depend on a few numbers per example that add up, so all samples are one matrix product.
Shapes: N examples, C classes (labels or entity types), S samples.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import eq
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert_core.evaluation.outcomes import Outcome, outcomes, spans
from bert_core.tasks.classification import Classification
from bert_core.tasks.metrics import FloatArray, answer_scores, metric_parts, never_answering
from bert_core.tasks.multiple_choice import MultipleChoice
from bert_core.tasks.question_answering import QuestionAnswering, best_and_null, gold_texts
from bert_core.tasks.reranking import Reranking
from bert_core.tasks.squad import Question
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Predictions, Task
from bert_core.tasks.text_embedding import RelatedTexts, TextEmbedding, query_weights
from bert_core.text.rng import IntArray

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
    """Counts the labels or entity types of outcomes; None for other answers."""
    if isinstance(task, Tagging):
        return ClassCounts.of(
            [spans(result.gold) for result in results],
            [spans(result.found) for result in results],
            task.type_names,
        )
    if isinstance(task, Classification) and task.kind != "regression":
        return ClassCounts.of(
            [_labels(result.gold) for result in results],
            [_labels(result.found) for result in results],
            task.labels,
        )
    return None


def ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """part / whole, 0 where whole is 0."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole != 0)


def f1_of(hits: FloatArray, gold: FloatArray, found: FloatArray) -> FloatArray:
    """The harmonic mean of precision and recall, 0 where it is undefined."""
    return ratio(2 * hits, gold + found)


def _mean_of_defined(f1: FloatArray, counted: FloatArray) -> FloatArray:
    """The mean of F1 [S, C] over the labels that are in a sample or predicted, 0 without any."""
    return ratio(f1.sum(axis=1), (counted > 0).sum(axis=1).astype(np.float64))


def _labels(answer: str | Sequence[str]) -> set[tuple[str, Hashable]]:
    return {(label, None) for label in ([answer] if isinstance(answer, str) else answer)}


def _counted(pairs: Sequence[set[tuple[str, Hashable]]], number: Mapping[str, int]) -> "csr_array":
    from scipy.sparse import csr_array

    rows = np.repeat(np.arange(len(pairs)), [len(pair) for pair in pairs])
    columns = np.array([number[name] for pair in pairs for name, _ in pair], dtype=np.int64)
    # Of the same place more than once, as with two entities of a type, the matrix has the sum.
    return csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(pairs), len(number)))


WeightedMetrics = Callable[[FloatArray], dict[str, FloatArray]]
"""The counts of each example in samples, whole numbers [S, N] -> each metric of the samples [S];
NaN where a sample leaves a metric undefined."""


def means(
    values: Mapping[str, npt.ArrayLike], weights: npt.ArrayLike | None = None
) -> WeightedMetrics:
    """Metrics that are means of what each example has, [N]; `weights` are those of examples."""
    table = np.stack([np.asarray(value, dtype=np.float64) for value in values.values()], axis=1)
    weight = np.ones(len(table)) if weights is None else np.asarray(weights, dtype=np.float64)

    def compute(counts: FloatArray) -> dict[str, FloatArray]:
        weighted = counts * weight
        sums = weighted.sum(axis=1, keepdims=True)
        found = np.divide(
            weighted @ table, sums, out=np.zeros((len(sums), table.shape[1])), where=sums > 0
        )
        return dict(zip(values, found.T, strict=True))

    return compute


def of_labels(classes: ClassCounts) -> WeightedMetrics:
    """Accuracy, F1 and Matthews' correlation of one label for each example.

    The last over any number of labels (Gorodkin 2004), 0 where either side has one label only.
    Macro F1 is the mean over the labels of the sample, so one that a resample happens to miss does
    not pull the interval down.
    """

    def compute(counts: FloatArray) -> dict[str, FloatArray]:
        hits, gold, found = classes.sums(counts)
        total = gold.sum(axis=1)
        f1 = f1_of(hits, gold, found)
        covariance = hits.sum(axis=1) * total - (gold * found).sum(axis=1)
        spreads = [total**2 - (each**2).sum(axis=1) for each in (gold, found)]
        metrics = {
            "accuracy": hits.sum(axis=1) / total,
            "f1_macro": _mean_of_defined(f1, gold + found),
            "matthews": ratio(covariance, np.sqrt(spreads[0] * spreads[1])),
        }
        if len(classes.names) == 2:
            metrics["f1"] = f1[:, 1]
        return metrics

    return compute


def of_label_sets(classes: ClassCounts) -> WeightedMetrics:
    """Exact match, micro and macro F1 of any number of labels for each example.

    Of macro F1 as in `of_labels`.
    """
    missed = classes.gold.sum(axis=1) + classes.found.sum(axis=1) - 2 * classes.hits.sum(axis=1)
    exact_match = means({"exact_match": np.asarray(missed).ravel() == 0})

    def compute(counts: FloatArray) -> dict[str, FloatArray]:
        hits, gold, found = classes.sums(counts)
        return exact_match(counts) | {
            "f1_micro": f1_of(hits.sum(axis=1), gold.sum(axis=1), found.sum(axis=1)),
            "f1_macro": _mean_of_defined(f1_of(hits, gold, found), gold + found),
        }

    return compute


def of_words(right_words: npt.ArrayLike, num_words: npt.ArrayLike) -> WeightedMetrics:
    """Accuracy by word; the arguments count the words with the right tag and all words, [N]."""
    words = np.stack([np.asarray(right_words), np.asarray(num_words)], axis=1).astype(np.float64)

    def compute(counts: FloatArray) -> dict[str, FloatArray]:
        of_samples = counts @ words
        return {"accuracy": of_samples[:, 0] / of_samples[:, 1]}

    return compute


def of_entities(
    classes: ClassCounts, right_words: npt.ArrayLike, num_words: npt.ArrayLike
) -> WeightedMetrics:
    """Precision, recall and F1 of entities of all types together, F1 of each type, and accuracy.

    `right_words` and `num_words` as in `of_words`.
    """
    accuracy = of_words(right_words, num_words)
    parts = metric_parts(classes.names)

    def compute(counts: FloatArray) -> dict[str, FloatArray]:
        sums = classes.sums(counts)
        hits, gold, found = (each.sum(axis=1) for each in sums)
        of_types = f1_of(*sums)
        return {
            "precision": ratio(hits, found),
            "recall": ratio(hits, gold),
            "f1": f1_of(hits, gold, found),
            **accuracy(counts),
            **{f"f1_{parts[name]}": of_types[:, index] for index, name in enumerate(classes.names)},
        }

    return compute


def correlations(gold: npt.ArrayLike, found: npt.ArrayLike) -> WeightedMetrics:
    """Pearson, Spearman, their mean, and the mean squared error of numbers, [N] each.

    A correlation with something constant counts as 0.
    """
    from scipy.sparse import csr_array

    truth, guess = (np.asarray(each, dtype=np.float64) for each in (gold, found))
    error = means({"mean_squared_error": (truth - guess) ** 2})
    number = np.arange(len(truth))
    values, groups = [], []
    for numbers in (truth, guess):
        distinct, group = np.unique(numbers, return_inverse=True)
        values.append((distinct, group))
        groups.append(csr_array((np.ones(len(numbers)), (number, group))))

    def compute(counts: FloatArray) -> dict[str, FloatArray]:
        total = counts.sum(axis=1, keepdims=True)
        centred: dict[str, list[FloatArray]] = {"pearson": [], "spearman": []}
        varied = np.ones(len(counts), dtype=bool)
        for (distinct, group), grouped in zip(values, groups, strict=True):
            tied = counts @ grouped  # [S, distinct values]
            varied &= (tied > 0).sum(axis=1) > 1
            # Of equal values each has the mean of their ranks.
            ranks = np.cumsum(tied, axis=1) - (tied - 1) / 2
            centred["spearman"].append(ranks[:, group] - (total + 1) / 2)
            mean = tied @ distinct[:, None] / total
            centred["pearson"].append(distinct[group] - mean)
        metrics = {
            name: _correlation(counts, first, second, varied)
            for name, (first, second) in centred.items()
        }
        metrics["correlation"] = (metrics["pearson"] + metrics["spearman"]) / 2
        return metrics | error(counts)

    return compute


def _correlation(
    counts: FloatArray, first: FloatArray, second: FloatArray, varied: npt.NDArray[np.bool_]
) -> FloatArray:
    """Of centred values [S, N]; 0 for samples that have not `varied` values on both sides, [S]."""
    products = (counts * first * second).sum(axis=1)
    squares = (counts * first**2).sum(axis=1) * (counts * second**2).sum(axis=1)
    return np.where(varied, ratio(products, np.sqrt(squares)), 0.0)


def of_answers(
    texts: Sequence[str],
    best_texts: Sequence[str],
    null_scores: FloatArray,
    golds: Sequence[Sequence[str]],
) -> WeightedMetrics:
    """Exact match and F1 as SQuAD 2.0 has them; see `squad_v2_metrics`."""
    has_answer = np.array([len(gold) > 0 for gold in golds])
    answered = np.array([len(best_text) > 0 for best_text in best_texts])
    order = np.argsort(null_scores, kind="stable")
    names = ("exact_match", "f1")
    scores = dict(zip(names, answer_scores(texts, golds, no_answer=True), strict=True))
    raw = dict(zip(names, answer_scores(best_texts, golds, no_answer=True), strict=True))
    kinds = {"": np.ones_like(has_answer), "has_answer_": has_answer, "no_answer_": ~has_answer}
    kinds = {name: some.astype(np.float64) for name, some in kinds.items() if some.any()}

    def compute(counts: FloatArray) -> dict[str, FloatArray]:
        metrics = {}
        for kind, some in kinds.items():
            num = counts @ some
            for name in names:
                total = counts @ (some * scores[name])
                metrics[kind + name] = np.where(num > 0, ratio(total, num), np.nan)
        never = never_answering(np.where(counts > 0, null_scores, np.inf))
        for name in names:
            gains = np.where(has_answer, raw[name], -1.0 * answered)[order]
            totals = np.zeros((len(counts), len(order) + 1))
            np.cumsum(counts[:, order] * gains, axis=1, out=totals[:, 1:])
            totals += (counts @ ~has_answer)[:, None]
            best = totals.argmax(axis=1)
            highest = np.take_along_axis(totals, best[:, None], axis=1)[:, 0]
            metrics[f"best_{name}"] = highest / counts.sum(axis=1)
            # Nothing is gained below the first place: no threshold is better than no answers.
            threshold = np.where(best > 0, null_scores[order[best - 1]], never)  # [S]
            metrics[f"best_{name}_threshold"] = threshold
        return metrics

    return compute


_AGREEMENT = 1e-9


@dataclass(frozen=True)
class Measurement:
    """A task's metrics over all examples, as `Task.metrics` has them, and over samples of them."""

    values: dict[str, float]
    compute: WeightedMetrics
    is_fast: bool


def measure(task: Task, predictions: Predictions, examples: Sequence[Any]) -> Measurement:
    """Measures all examples, and finds the fastest exact way to measure samples of them.

    A fast way is taken only if it has, over all examples, the very metrics of the task, so that a
    task whose metrics are its own is measured by them.
    """
    values = task.metrics(predictions, examples)
    fast = _fast_metrics(task, predictions, examples)
    if fast is not None:
        found = fast(np.ones((1, len(examples))))
        same = found.keys() == values.keys() and all(
            abs(found[name][0] - value) <= _AGREEMENT for name, value in values.items()
        )
        if same:
            return Measurement(values, fast, is_fast=True)
    return Measurement(values, plain_metrics(task, predictions, examples), is_fast=False)


def plain_metrics(task: Task, predictions: Predictions, examples: Sequence[Any]) -> WeightedMetrics:
    """Any task's metrics, from `Task.metrics` itself, one sample after the other."""

    def compute(counts: FloatArray) -> dict[str, FloatArray]:
        samples = []
        for row in counts.astype(np.int64):
            drawn = np.repeat(np.arange(len(row)), row).tolist()
            some = [predictions[index] for index in drawn]
            samples.append(task.metrics(some, [examples[index] for index in drawn]))
        names = {name: None for metrics in samples for name in metrics}
        return {
            name: np.array([metrics.get(name, np.nan) for metrics in samples]) for name in names
        }

    return compute


def _fast_metrics(
    task: Task, predictions: Predictions, examples: Sequence[Any]
) -> WeightedMetrics | None:
    if isinstance(task, QuestionAnswering):
        return _of_questions(task, predictions, examples)
    if isinstance(task, MultipleChoice):
        pairs = zip(predictions, examples, strict=True)
        return means({"accuracy": [found["choice"] == each.answer for found, each in pairs]})
    if isinstance(task, TextEmbedding):
        return _of_vectors(task, predictions, examples)
    if isinstance(task, Reranking):
        names = task.metrics(predictions, examples)
        table = {name: [found.get(name, 0.0) for found in predictions] for name in names}
        return means(table, [float(any(name in found for name in names)) for found in predictions])
    if isinstance(task, Classification) and task.kind == "regression":
        gold = [example.answer for example in examples]
        return correlations(gold, [prediction["value"] for prediction in predictions])
    classes = class_counts(task, outcomes(task, predictions, examples))
    if classes is None:
        return None
    if isinstance(task, Tagging):
        right, count = _right_words(task, predictions, examples)
        return of_words(right, count) if task.is_plain else of_entities(classes, right, count)
    several = isinstance(task, Classification) and task.kind == "multiple"
    return of_label_sets(classes) if several else of_labels(classes)


def _of_vectors(
    task: TextEmbedding, predictions: Predictions, examples: Sequence[RelatedTexts]
) -> WeightedMetrics:
    if task.kind == "pairs":
        table = {name: [found[name] for found in predictions] for name in task.pair_metrics}
        return means(table, query_weights(examples))
    if task.kind == "labels":
        pairs = zip(predictions, examples, strict=True)
        return means({"accuracy": [found["label"] == each.answer for found, each in pairs]})
    gold = np.array([example.answer for example in examples], dtype=np.float64)
    of_numbers = correlations(gold, [prediction["value"] for prediction in predictions])

    def compute(counts: FloatArray) -> dict[str, FloatArray]:
        found = of_numbers(counts)
        return {name: found[name] for name in ("spearman", "pearson")}

    return compute


def _of_questions(
    task: QuestionAnswering, predictions: Predictions, examples: Sequence[Question]
) -> WeightedMetrics:
    golds = gold_texts(examples)
    texts = [prediction["text"] for prediction in predictions]
    if not task.no_answer:
        exact, f1 = answer_scores(texts, golds, no_answer=False)
        return means({"exact_match": exact, "f1": f1})
    return of_answers(texts, *best_and_null(predictions), golds)


def _right_words(
    task: Tagging, predictions: Predictions, examples: Sequence[TaggedSentence]
) -> tuple[IntArray, IntArray]:
    """Words with the right tag, and all words, of each sentence, [N]."""
    lengths = np.array([len(example.words) for example in examples])
    pairs = zip(task.gold_tags(examples), predictions, strict=True)
    right = np.array([sum(map(eq, gold, found["tags"])) for gold, found in pairs])
    return right, lengths
