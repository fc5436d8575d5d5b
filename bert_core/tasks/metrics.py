"""Metrics of the tasks: labels, entities, answers (SQuAD), numbers.

Shares and F1 are in 0..1, correlations (Matthews' too) in -1..1; an error has no upper limit.
Entities are scored by seqeval as conlleval prints them; exact match and F1 of answers agree with
SQuAD's official scripts.
"""

import hashlib
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import eq
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_core.tasks.tag_schemes import OUTSIDE, Tags

FloatArray = npt.NDArray[np.float64]

METRIC_NAME = re.compile(r"[\w\-. :/]{1,250}")
"""What MLflow takes as the name of a metric."""

_MOST_OF_A_LABEL = 180
"""Characters of a label in a metric's name; what is put before it needs room too."""
_UNWRITABLE = r"[^\w\-. :]|[^\0-\uffff]|\s$"
_UNSAFE = re.compile(
    rf"{_UNWRITABLE}|^\s"
    # What would be read as an escape, or begin one together with the escape that follows; before
    # a label there is an underscore.
    rf"|_(?=[xX](?:[0-9A-Za-z]+_|[0-9A-Fa-f]{{4,6}}(?:{_UNWRITABLE})))"
    rf"|^[xX](?=[0-9A-Fa-f]{{4,6}}(?:_|{_UNWRITABLE}))"
)
_ANY = re.compile(r".", re.DOTALL)
_ESCAPED = re.compile(r"_x([0-9A-F]{4,6})_")


def less_is_better(metric: str) -> bool:
    """Returns whether less of a metric is better, by its name: errors, losses, perplexity, bits.

    Of every other metric more is better, and only those can be a task's criterion.
    """
    return metric.endswith(("_error", "_loss", "perplexity", "bits_per_byte"))


def metric_parts(labels: Iterable[str]) -> dict[str, str]:
    """Maps each label to a distinct part of a metric's name.

    Ordinary labels are unchanged. A character that MLflow does not take, and a slash, which
    parts names, is written `_x0026_` by its code point, as XML tools write names; so `R&D` is
    `R_x0026_D`. Of labels that differ by case or accents alone, which a server's database may take
    for one, all but the first are written in code points. The end of a very long label is a hash.
    """
    ordered = sorted(set(labels))
    alike: Counter[str] = Counter()
    parts = {}
    for label in ordered:
        plain = unicodedata.normalize("NFKD", label).casefold().strip()
        plain = "".join(each for each in plain if not unicodedata.combining(each))
        alike[plain] += 1
        pattern = _UNSAFE if alike[plain] == 1 else _ANY
        part = pattern.sub(lambda match: f"_x{ord(match[0]):04X}_", label)
        if len(part) > _MOST_OF_A_LABEL:
            digest = hashlib.sha256(label.encode("utf-8", "surrogatepass")).hexdigest()[:16]
            part = f"{part[: _MOST_OF_A_LABEL - len(digest) - 4]}_xH{digest}_"
        parts[label] = part
    return parts


def readable_metric(name: str) -> str:
    """A metric's name with the label in it as people write it, `f1_R&D`."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), name)


def label_metrics(
    gold: Sequence[str], found: Sequence[str], labels: Sequence[str]
) -> dict[str, float]:
    """Accuracy, F1 and Matthews correlation of one label for each example.

    `f1` is that of the second label where there are two, as GLUE has it, else `f1` is left out;
    `f1_macro` is the mean over the labels that are among `gold` or `found`, as scikit-learn's.
    """
    from sklearn.metrics import accuracy_score, matthews_corrcoef

    names = list(labels)
    metrics = {
        "accuracy": float(accuracy_score(gold, found)),
        "f1_macro": _f1_macro(gold, found, labels=names),
        "matthews": 0.0,
    }
    if len({*gold, *found}) > 1:  # of one label alone it is undefined
        metrics["matthews"] = float(matthews_corrcoef(gold, found))
    if len(names) == 2:
        metrics["f1"] = _f1(gold, found, labels=names[1:], average="macro", zero_division=0)
    return metrics


def multi_label_metrics(
    gold: Sequence[Sequence[str]], found: Sequence[Sequence[str]], labels: Sequence[str]
) -> dict[str, float]:
    """Exact match, micro and macro F1 of any number of labels for each example.

    `f1_macro` is the mean over the labels that some example has or is given.
    """
    indicators = [
        np.array([[label in each for label in labels] for each in sets], dtype=bool)
        for sets in (gold, found)
    ]
    return {
        "exact_match": float((indicators[0] == indicators[1]).all(1).mean()),
        "f1_micro": _f1(*indicators, average="micro", zero_division=0),
        "f1_macro": _f1_macro(*indicators),
    }


def correlation_metrics(gold: Sequence[float], found: Sequence[float]) -> dict[str, float]:
    """Pearson and Spearman correlation, their mean as `correlation`, and the mean squared error.

    A correlation with something constant is undefined and counts as 0.
    """
    from scipy.stats import pearsonr, spearmanr

    truth, guess = np.asarray(gold, dtype=np.float64), np.asarray(found, dtype=np.float64)
    pearson = spearman = 0.0
    if len(truth) > 1 and np.ptp(truth) > 0 and np.ptp(guess) > 0:
        # pyright takes scipy's results for bare tuples.
        pearson = float(pearsonr(truth, guess).statistic)  # pyright: ignore
        spearman = float(spearmanr(truth, guess).statistic)  # pyright: ignore
    return {
        "pearson": pearson,
        "spearman": spearman,
        "correlation": (pearson + spearman) / 2,
        "mean_squared_error": float(((truth - guess) ** 2).mean()),
    }


def _f1(gold: Any, found: Any, **options: Any) -> float:  # noqa: ANN401 - as scikit-learn has it
    from sklearn.metrics import f1_score

    return float(f1_score(gold, found, **options))


def _f1_macro(gold: Any, found: Any, **options: Any) -> float:  # noqa: ANN401 - as scikit-learn's
    """The mean of what is defined: a label that nothing has and nothing is given has no F1."""
    mean = _f1(gold, found, average="macro", zero_division=np.nan, **options)
    return 0.0 if np.isnan(mean) else mean


def entity_metrics(
    gold: Sequence[Sequence[str]], found: Sequence[Sequence[str]], types: Sequence[str] = ()
) -> dict[str, float]:
    """Micro-averaged `precision`, `recall` and `f1`, `accuracy` by word, `f1_TYPE` by type.

    The types are written as `metric_parts` has them.

    An entity is right when its type and both its ends are. A sentence's tags may be in any scheme,
    gold and found in different ones, and are read as conlleval reads them. `accuracy` compares the
    tags as they are written, invalid ones too, as conlleval does: for it both have to be in one
    scheme. What is undefined counts as 0; so does a type of `types` that does not occur.
    """
    from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

    # Both at once, so that they share the numbers of types.
    tags = Tags.of([*gold, *found])
    strings = np.array(tags.strings("iob2"), dtype=object)
    num_words = len(strings) // 2
    wanted, guessed = strings[:num_words], strings[num_words:]
    # Words outside of all entities do not count, and seqeval takes its time with each. Every
    # entity begins with B- now, so that none of them grow together where such words are left out.
    kept = (wanted != OUTSIDE) | (guessed != OUTSIDE)
    scores: list[Any] = [
        precision_recall_fscore_support(
            [wanted[kept].tolist()],
            [guessed[kept].tolist()],
            average=average,
            zero_division=0,  # pyright: ignore - seqeval types its default only
        )
        for average in ("micro", None)
    ]
    (precision, recall, f1, _), (_, _, f1_of_types, _) = scores
    # seqeval's order: the types that occur, sorted.
    occurring = (tags.type_names[index] for index in np.unique(tags.types[tags.inside]))
    by_type = dict.fromkeys(types, 0.0) | dict(zip(occurring, f1_of_types, strict=True))
    parts = metric_parts(by_type)
    return {
        "precision": float(precision),
        "recall": float(recall),
        "f1": float(f1),
        "accuracy": float(np.mean([*map(eq, chain(*gold), chain(*found))])),
        **{f"f1_{parts[name]}": float(value) for name, value in sorted(by_type.items())},
    }


BoolArray = npt.NDArray[np.bool_]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation and English articles, words one space apart."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def answer_scores(
    predictions: Sequence[str], golds: Sequence[Sequence[str]], *, no_answer: bool
) -> tuple[FloatArray, FloatArray]:
    """Exact match and F1 of each prediction with the gold answer that suits it best, each [N].

    With `no_answer`, as in v2.0, a question without gold answers has the empty one; so has one
    whose answers are all empty when normalised, and nothing else then matches as well.
    """
    scores = np.zeros((len(predictions), 2))
    for row, prediction, texts in zip(scores, predictions, golds, strict=True):
        normalized = {normalize_answer(text) for text in texts}
        if no_answer:
            normalized = (normalized - {""}) or {""}
        found = normalize_answer(prediction)
        row[0] = found in normalized
        row[1] = max(_token_f1(found, gold, 1.0 if no_answer else 0.0) for gold in normalized)
    return scores[:, 0], scores[:, 1]


def _token_f1(prediction: str, gold: str, both_empty: float) -> float:
    """F1 of two bags of words; v1.1 gives two empty ones 0, v2.0 gives them 1."""
    if prediction == gold:
        return 1.0 if gold else both_empty
    found, truth = prediction.split(), gold.split()
    same = sum((Counter(found) & Counter(truth)).values())
    if not same:
        return 0.0
    precision, recall = same / len(found), same / len(truth)
    return 2 * precision * recall / (precision + recall)


def best_threshold(
    scores: FloatArray,
    null_scores: FloatArray,
    has_answer: BoolArray,
    answered: BoolArray,
    *,
    parts_equals: bool = True,
) -> tuple[float, float]:
    """The highest mean score that a threshold on `null_scores` reaches, and that threshold.

    A question whose null score is above the threshold is taken to have no answer. `scores` [N] are
    those of the answers as found, of which `answered` says whether they have a text. Of equally
    good thresholds it is the lowest. Where none is better than giving no answer at all it is
    `never_answering`, which the script of v2.0 calls 0.

    The script also tries thresholds between equal null scores, which cannot exist; without
    `parts_equals` the score is what the threshold reaches.
    """
    order = np.argsort(null_scores, kind="stable")
    gains = np.where(has_answer, scores, -1.0 * answered)[order]
    totals = np.cumsum(np.concatenate([[np.count_nonzero(~has_answer)], gains]))
    if not parts_equals:
        ascending = null_scores[order]
        totals[1:-1][ascending[1:] == ascending[:-1]] = -np.inf
    best = int(totals.argmax())
    threshold = null_scores[order[best - 1]] if best else never_answering(null_scores)
    return float(totals[best]) / len(scores), float(threshold)


def never_answering(null_scores: FloatArray) -> FloatArray:
    """A threshold below all null scores [..., N], by 1 at least: other machines round otherwise."""
    lowest = null_scores.min(axis=-1)
    return np.minimum(np.floor(lowest) - 1.0, np.nextafter(lowest, -np.inf))


def tuned_threshold(
    best_texts: Sequence[str], null_scores: FloatArray, golds: Sequence[Sequence[str]]
) -> float:
    """Returns the threshold with the best F1, ignoring those between equal null scores."""
    has_answer = np.array([len(texts) > 0 for texts in golds])
    answered = np.array([len(text) > 0 for text in best_texts])
    _, f1 = answer_scores(best_texts, golds, no_answer=True)
    return best_threshold(f1, null_scores, has_answer, answered, parts_equals=False)[1]


def squad_metrics(predictions: Sequence[str], golds: Sequence[Sequence[str]]) -> dict[str, float]:
    """Those of the v1.1 script."""
    exact, f1 = answer_scores(predictions, golds, no_answer=False)
    return {"exact_match": float(exact.mean()), "f1": float(f1.mean())}


def squad_v2_metrics(
    predictions: Sequence[str],
    best_texts: Sequence[str],
    null_scores: FloatArray,
    golds: Sequence[Sequence[str]],
) -> dict[str, float]:
    """Those of the v2.0 script.

    `predictions` are as decided, "" for no answer; `best_texts` are the best answers other than
    that, from which the best thresholds are found. A kind of question that does not occur is
    left out.
    """
    has_answer = np.array([len(texts) > 0 for texts in golds])
    exact, f1 = answer_scores(predictions, golds, no_answer=True)
    metrics = {"exact_match": float(exact.mean()), "f1": float(f1.mean())}
    for name, some in (("has_answer", has_answer), ("no_answer", ~has_answer)):
        if some.any():
            metrics[f"{name}_exact_match"] = float(exact[some].mean())
            metrics[f"{name}_f1"] = float(f1[some].mean())
    answered = np.array([len(text) > 0 for text in best_texts])
    raw = answer_scores(best_texts, golds, no_answer=True)
    for name, scores in zip(("exact_match", "f1"), raw, strict=True):
        best, threshold = best_threshold(scores, null_scores, has_answer, answered)
        metrics |= {f"best_{name}": best, f"best_{name}_threshold": threshold}
    return metrics
