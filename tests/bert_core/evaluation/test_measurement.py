import numpy as np
import pytest

from bert_core.evaluation.intervals import leave_out, resamples
from bert_core.evaluation.metrics import measure, plain_metrics
from bert_core.tasks.classification import Classification
from bert_core.tasks.conll import TaggedSentence
from bert_core.tasks.tagging import Tagging


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
