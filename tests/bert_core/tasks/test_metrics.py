import numpy as np
import pytest

from bert_core.tasks.metrics import correlation_metrics, label_metrics, multi_label_metrics


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
