"""Metrics over labels and numbers, from scikit-learn and scipy; all of them in 0..1 or -1..1."""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

METRIC_NAME = re.compile(r"[\w\-. :/]{1,250}")
"""What MLflow takes as the name of a metric."""

_MOST_OF_A_LABEL = 180
"""Characters of a label in a metric's name; what is put before it needs room too."""
_UNSAFE = re.compile(r"[^\w\-. :]|[^\0-\uffff]|_(?=[xX][0-9A-Za-z]+_)|^\s|\s$")
_ANY = re.compile(r".", re.DOTALL)
_ESCAPED = re.compile(r"_x([0-9A-F]{4,6})_")


def metric_parts(labels: Iterable[str]) -> dict[str, str]:
    """For each label what stands for it in the names of metrics, all of them different.

    Ordinary labels stand for themselves. A character that MLflow does not take, and a slash, which
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
    `f1_macro` is the mean over the labels.
    """
    from sklearn.metrics import accuracy_score, matthews_corrcoef

    names = list(labels)
    metrics = {
        "accuracy": float(accuracy_score(gold, found)),
        "f1_macro": _f1(gold, found, labels=names, average="macro"),
        "matthews": 0.0,
    }
    if len({*gold, *found}) > 1:  # of one label alone it is undefined
        metrics["matthews"] = float(matthews_corrcoef(gold, found))
    if len(names) == 2:
        metrics["f1"] = _f1(gold, found, labels=names[1:], average="macro")
    return metrics


def multi_label_metrics(
    gold: Sequence[Sequence[str]], found: Sequence[Sequence[str]], labels: Sequence[str]
) -> dict[str, float]:
    """Exact match, micro and macro F1 of any number of labels for each example."""
    indicators = [
        np.array([[label in each for label in labels] for each in sets], dtype=bool)
        for sets in (gold, found)
    ]
    return {
        "exact_match": float((indicators[0] == indicators[1]).all(1).mean()),
        "f1_micro": _f1(*indicators, average="micro"),
        "f1_macro": _f1(*indicators, average="macro"),
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
    """F1, 0 where it is undefined."""
    from sklearn.metrics import f1_score

    options["zero_division"] = 0
    return float(f1_score(gold, found, **options))
