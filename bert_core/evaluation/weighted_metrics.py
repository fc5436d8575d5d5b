"""Metrics over many weighted samples at once: how often each example counts goes in.

A thousand samples of ten thousand examples are too many for scikit-learn and seqeval. What most
metrics need of an example is a few numbers that add up, so all samples are a product of matrices.
Shapes: N examples, C classes, S samples.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from bert_core.evaluation.class_counts import ClassCounts, f1_of, ratio
from bert_core.tasks.metrics import FloatArray, answer_scores, metric_parts, never_answering

WeightedMetrics = Callable[[FloatArray], dict[str, FloatArray]]
"""The counts of each example in samples, whole numbers [S, N] -> each metric of the samples [S];
NaN where a sample leaves a metric undefined."""


def means(values: Mapping[str, npt.ArrayLike]) -> WeightedMetrics:
    """Metrics that are means of what each example has, [N]."""
    table = np.stack([np.asarray(each, dtype=np.float64) for each in values.values()], axis=1)

    def compute(counts: FloatArray) -> dict[str, FloatArray]:
        found = counts @ table / counts.sum(axis=1, keepdims=True)
        return dict(zip(values, found.T, strict=True))

    return compute


def of_labels(classes: ClassCounts) -> WeightedMetrics:
    """Accuracy, F1 and Matthews' correlation of one label for each example.

    The last over any number of labels (Gorodkin 2004), 0 where either side has one label only.
    """

    def compute(counts: FloatArray) -> dict[str, FloatArray]:
        hits, gold, found = classes.sums(counts)
        total = gold.sum(axis=1)
        f1 = f1_of(hits, gold, found)
        covariance = hits.sum(axis=1) * total - (gold * found).sum(axis=1)
        spreads = [total**2 - (each**2).sum(axis=1) for each in (gold, found)]
        metrics = {
            "accuracy": hits.sum(axis=1) / total,
            "f1_macro": f1.mean(axis=1),
            "matthews": ratio(covariance, np.sqrt(spreads[0] * spreads[1])),
        }
        if len(classes.names) == 2:
            metrics["f1"] = f1[:, 1]
        return metrics

    return compute


def of_label_sets(classes: ClassCounts) -> WeightedMetrics:
    """Exact match, micro and macro F1 of any number of labels for each example."""
    missed = classes.gold.sum(axis=1) + classes.found.sum(axis=1) - 2 * classes.hits.sum(axis=1)
    exact_match = means({"exact_match": np.asarray(missed).ravel() == 0})

    def compute(counts: FloatArray) -> dict[str, FloatArray]:
        hits, gold, found = classes.sums(counts)
        return exact_match(counts) | {
            "f1_micro": f1_of(hits.sum(axis=1), gold.sum(axis=1), found.sum(axis=1)),
            "f1_macro": f1_of(hits, gold, found).mean(axis=1),
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
    has_answer = np.array([len(each) > 0 for each in golds])
    answered = np.array([len(each) > 0 for each in best_texts])
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
