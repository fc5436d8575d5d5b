"""Exact search, and the metrics of rankings."""

import math

import numpy as np
import pytest

from bert_core.tasks import retrieval
from bert_core.tasks.retrieval import METRICS, nearest, normalized, ranking_metrics


@pytest.mark.parametrize("cells", [1, 1 << 24])
@pytest.mark.parametrize("count", [1, 7, 50])
def test_the_nearest_are_those_of_a_whole_sort(monkeypatch, cells, count):
    monkeypatch.setattr(retrieval, "_CELLS_AT_ONCE", cells)
    random = np.random.default_rng(0)
    queries = random.integers(-3, 4, size=(9, 6)).astype(np.float32)  # sums are exact
    documents = random.integers(-1, 2, size=(30, 6)).astype(np.float32)  # many are level
    numbers, scores = nearest(queries, documents, count)
    products = queries @ documents.T
    expected = np.argsort(-products, axis=1, kind="stable")[:, :count]
    assert numbers.tolist() == expected.tolist()
    assert np.array_equal(scores, np.take_along_axis(products, expected, axis=1))


def test_metrics_are_those_of_the_definitions():
    found = [[4, 2, 9], [1, 3], [5]]
    relevant = [{2: 1.0}, {3: 1.0, 8: 1.0}, {6: 1.0}]
    first, second, none = ranking_metrics(found, relevant)
    assert first["mrr_at_10"] == 0.5 and first["recall_at_1"] == 0 and first["recall_at_10"] == 1
    assert first["ndcg_at_10"] == pytest.approx(1 / math.log2(3), abs=1e-6)
    ideal = 1 + 1 / math.log2(3)
    assert second["ndcg_at_10"] == pytest.approx(1 / math.log2(3) / ideal, abs=1e-6)
    assert second["recall_at_100"] == 0.5
    assert none == dict.fromkeys(METRICS, 0.0)


def test_vectors_without_length_stay():
    assert normalized(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist() == [[0.6, 0.8], [0.0, 0.0]]
