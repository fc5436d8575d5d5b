"""Metrics over weighted samples: equal to those of the tasks, and by hand."""

import numpy as np
import pytest

from bert_core.evaluation.intervals import leave_out, resamples
from bert_core.evaluation.metrics import (
    ClassCounts,
    class_counts,
    correlations,
    measure,
    plain_metrics,
)
from bert_core.evaluation.outcomes import outcomes
from bert_core.tasks.classification import Classification
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.tagging import Tagging


def test_things_of_a_class_add_up_within_an_example():
    gold = [[("PER", 1), ("PER", 2), ("LOC", 3)], []]
    found = [[("PER", 1), ("PER", 5), ("LOC", 2)], [("ORG", 1)]]
    counts = ClassCounts.of(gold, found, ["LOC", "PER"])
    assert counts.names == ("LOC", "PER", "ORG")  # what nobody expected comes last
    assert counts.gold.toarray().tolist() == [[1, 2, 0], [0, 0, 0]]
    assert counts.found.toarray().tolist() == [[1, 2, 0], [0, 0, 1]]
    assert counts.hits.toarray().tolist() == [[0, 1, 0], [0, 0, 0]]


def test_the_classes_of_a_task(evaluated):
    expected = {
        "two labels": ("no", "yes"),
        "sets": ("a", "b", "c", "d"),
        "tags": ("LOC", "PER"),
        "numbers": None,
        "squad": None,
    }
    for kind, names in expected.items():
        made = evaluated(kind)
        counts = class_counts(made.task, outcomes(*made.of))
        assert (counts and counts.names) == names


@pytest.mark.some(4)
@pytest.mark.parametrize("num", [60, 4])
def test_the_fast_way_gives_the_metrics_of_the_task_for_every_sample(evaluated, kind, num):
    # Four examples: there are samples without a label, without a type, with one number only.
    made = evaluated(kind, num)
    measured = measure(*made.of)
    assert measured.is_fast
    assert measured.values == made.task.metrics(made.predictions, made.examples)
    plain = plain_metrics(*made.of)
    for counts in (next(resamples(num, num_resamples=40, seed=1)), next(leave_out(num))):
        found, expected = measured.compute(counts), plain(counts)
        assert found.keys() == expected.keys() == measured.values.keys()
        for name in found:
            assert np.allclose(found[name], expected[name], atol=1e-12, equal_nan=True), name


class WithItsOwnMetric(Classification):
    def metrics(self, predictions, examples):
        return {"accuracy": 0.5 * super().metrics(predictions, examples)["accuracy"]}


def test_a_task_whose_metrics_are_its_own_is_measured_by_them(with_labels):
    made = with_labels(["no", "yes", "yes"], ["no", "yes", "no"])
    measured = measure(WithItsOwnMetric(labels=("no", "yes")), made.predictions, made.examples)
    assert not measured.is_fast
    assert measured.values == {"accuracy": pytest.approx(1 / 3)}
    assert measured.compute(np.array([[2.0, 1, 0], [0, 0, 3]]))["accuracy"].tolist() == [0.5, 0]


def test_a_label_that_the_model_does_not_know_is_measured_all_the_same(with_labels):
    made = with_labels(["no", "other", "yes"], ["no", "yes", "yes"])
    measured = measure(*made.of)
    assert not measured.is_fast  # scikit-learn leaves the label out of the mean of F1
    assert measured.values["accuracy"] == pytest.approx(2 / 3)


def test_plain_tags_are_measured_by_word():
    task = Tagging(labels=("DT", "NN", "O"))
    examples = [
        TaggedSentence(["a", "cat"], ["DT", "NN"], scheme=None),
        TaggedSentence(["cats", "o", "x"], ["NN", "O", "DT"], scheme=None),
    ]
    predictions = [
        {"tags": ["DT", "DT"], "entities": []},
        {"tags": ["NN", "O", "DT"], "entities": []},
    ]
    measured = measure(task, predictions, examples)
    assert measured.is_fast and measured.values == {"accuracy": 0.8}
    counts = np.array([[2.0, 0], [1, 2]])
    expected = plain_metrics(task, predictions, examples)(counts)["accuracy"].tolist()
    assert measured.compute(counts)["accuracy"].tolist() == pytest.approx(expected)
    assert expected == [0.5, pytest.approx(7 / 8)]


COUNTS = np.array([[1.0, 1, 1, 1], [2, 0, 1, 1], [0, 0, 4, 0]])


def test_a_correlation_with_something_constant_is_0():
    metrics = correlations([1, 2, 3, 4], [2, 2, 3, 5])(COUNTS)
    assert metrics["pearson"][2] == metrics["spearman"][2] == 0
    assert metrics["spearman"][0] == pytest.approx(0.9486833)
    # The mean of three 0.1 is not quite 0.1.
    assert correlations([0.1, 0.3], [0.1, 0.2])(np.array([[3.0, 0]]))["correlation"] == 0
    assert correlations([1, 2, 3, 4], [5, 5, 5, 5])(COUNTS)["correlation"].tolist() == [0, 0, 0]
