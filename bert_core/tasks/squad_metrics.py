"""Exact match and F1 of answers, number for number those of SQuAD's official scripts.

The scripts of v1.1 and v2.0 (Rajpurkar et al. 2016, 2018) give percents, these functions 0..1.
Shapes: N questions.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
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
        row[1] = max(_f1(found, gold, 1.0 if no_answer else 0.0) for gold in normalized)
    return scores[:, 0], scores[:, 1]


def _f1(prediction: str, gold: str, both_empty: float) -> float:
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

    The script takes a threshold to stand between equal null scores, too, which none can; without
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
    """The threshold with the best F1, as `squad_v2_metrics` has it but for equal null scores."""
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
