import numpy as np
import pytest

from bert_core.evaluation.metrics import ClassCounts, correlations, means, of_entities, of_labels

COUNTS = np.array([[1.0, 1, 1, 1], [2, 0, 1, 1], [0, 0, 4, 0]])


def test_means_are_weighted():
    found = means({"a": [1, 0, 1, 0], "b": [0.5, 0, 0, 1]})(COUNTS)
    assert found["a"].tolist() == [0.5, 0.75, 1]
    assert found["b"].tolist() == [0.375, 0.5, 0]


def test_matthews_by_hand():
    # 1 true positive, 1 false positive, 1 false negative, 1 true negative: no correlation.
    gold, found = "yynn", "ynyn"
    classes = ClassCounts.of([[(g, 0)] for g in gold], [[(f, 0)] for f in found], "ny")
    metrics = of_labels(classes)(COUNTS)
    # Second sample: 2 true positives, 1 false positive, 1 true negative.
    assert metrics["matthews"] == pytest.approx([0, (2 * 1 - 0) / np.sqrt(3 * 2 * 2 * 1), 0])
    assert metrics["f1"] == pytest.approx([0.5, 4 / 5, 0])
    assert metrics["accuracy"] == pytest.approx([0.5, 0.75, 0])


def test_a_correlation_with_something_constant_is_0():
    metrics = correlations([1, 2, 3, 4], [2, 2, 3, 5])(COUNTS)
    assert metrics["pearson"][2] == metrics["spearman"][2] == 0
    assert metrics["spearman"][0] == pytest.approx(0.9486833)
    # The mean of three 0.1 is not quite 0.1.
    assert correlations([0.1, 0.3], [0.1, 0.2])(np.array([[3.0, 0]]))["correlation"] == 0
    assert correlations([1, 2, 3, 4], [5, 5, 5, 5])(COUNTS)["correlation"].tolist() == [0, 0, 0]


def test_an_entity_has_to_have_the_right_type_and_ends():
    gold = [[("PER", (0, 2)), ("LOC", (3, 4))], [("PER", (0, 1))]]
    found = [[("PER", (0, 2)), ("PER", (3, 4))], [("PER", (0, 2))]]
    metrics = of_entities(ClassCounts.of(gold, found, ["LOC", "PER"]), [4, 1], [5, 2])
    found = metrics(np.array([[1.0, 1], [2, 0]]))
    assert found["precision"] == pytest.approx([1 / 3, 1 / 2])
    assert found["recall"] == pytest.approx([1 / 3, 1 / 2])
    assert found["f1_LOC"].tolist() == [0, 0]
    assert found["f1_PER"] == pytest.approx([2 / 5, 2 * 2 / 6])
    assert found["accuracy"] == pytest.approx([5 / 7, 8 / 10])
