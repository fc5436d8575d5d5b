import re
import unicodedata

import numpy as np
import pytest
from hostile_labels import HOSTILE_LABELS
from hypothesis import given
from hypothesis import strategies as st

from bert_core.tasks.metrics import (
    METRIC_NAME,
    correlation_metrics,
    label_metrics,
    metric_parts,
    multi_label_metrics,
    readable_metric,
)


def test_label_metrics_by_hand():
    gold, found = list("yyyynnnnnn"), list("yyynnnnnny")  # 3 hits, 1 miss, 1 false, 5 rejections
    metrics = label_metrics(gold, found, ("n", "y"))
    assert metrics["accuracy"] == pytest.approx(0.8)
    assert metrics["f1"] == pytest.approx(2 * 3 / (2 * 3 + 1 + 1)), "of the second label"
    assert metrics["f1_macro"] == pytest.approx((0.75 + 10 / 12) / 2)
    assert metrics["matthews"] == pytest.approx((3 * 5 - 1) / np.sqrt(4 * 4 * 6 * 6))


def test_what_is_undefined_is_zero():
    metrics = label_metrics(["n", "n"], ["n", "n"], ("n", "y"))
    assert (metrics["f1"], metrics["matthews"], metrics["accuracy"]) == (0, 0, 1)
    assert "f1" not in label_metrics(["a", "b"], ["a", "c"], ("a", "b", "c"))
    assert correlation_metrics([1, 2, 3], [2, 2, 2])["pearson"] == 0


def test_several_labels_by_hand():
    gold, found = [("a",), ("a", "b"), ()], [("a",), ("b",), ("c",)]
    metrics = multi_label_metrics(gold, found, ("a", "b", "c"))
    assert metrics["exact_match"] == pytest.approx(1 / 3)
    assert metrics["f1_micro"] == pytest.approx(2 * 2 / (3 + 3))
    assert metrics["f1_macro"] == pytest.approx((2 / 3 + 1 + 0) / 3)


def test_correlations_by_hand():
    metrics = correlation_metrics([1, 2, 3, 4], [1, 4, 9, 16])
    assert metrics["spearman"] == pytest.approx(1)
    assert metrics["pearson"] == pytest.approx(np.corrcoef([1, 2, 3, 4], [1, 4, 9, 16])[0, 1])
    assert metrics["correlation"] == pytest.approx((1 + metrics["pearson"]) / 2)
    assert metrics["mean_squared_error"] == pytest.approx((0 + 4 + 36 + 144) / 4)


def as_a_database_may_compare(name):
    """Without case, accents and spaces at the end, as MySQL does by default."""
    letters = unicodedata.normalize("NFKD", name).casefold().rstrip()
    return "".join(each for each in letters if not unicodedata.combining(each))


def check_parts(labels):
    from mlflow.utils.validation import _validate_metric_name, _validate_tag_name

    parts = metric_parts(labels)
    assert parts.keys() == set(labels)
    names = [f"metric.champion/dev/f1_{part}" for part in parts.values()]
    for name in names:
        assert METRIC_NAME.fullmatch(name)
        _validate_metric_name(name)
        _validate_tag_name(name)
        assert name.rpartition("/")[2] == name.split("/dev/")[1], "no label parts the name"
    assert len(set(map(as_a_database_may_compare, names))) == len(names)
    for label, part in parts.items():
        if not re.search(r"_xH[0-9a-f]{16}_$", part):
            assert readable_metric(f"f1_{part}") == f"f1_{label}"


def test_any_label_becomes_a_part_of_a_metrics_name_of_its_own():
    check_parts(HOSTILE_LABELS)


@given(st.sets(st.text(st.characters()) | st.text("aAàÀ_x04/. \u0300"), max_size=12))
def test_labels_of_any_characters_do_not_collide(labels):
    check_parts(labels)


def test_ordinary_labels_stay_as_they_are():
    plain = ("PER", "X-Y", "Steuerliche_Abzüge", "a.b", "geo:loc", "very positive", "中文", "x2_x")
    assert metric_parts(plain) == {each: each for each in plain}
    assert metric_parts(["R&D"]) == {"R&D": "R_x0026_D"}
    assert metric_parts(["PER", "per"])["PER"] == "PER"
