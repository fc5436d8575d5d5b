"""The majority classifier, and predictions that are all the same."""

import pytest

from bert_core.evaluation.error_analysis import (
    majority_classifier,
    same_answer,
    same_answer_warning,
)
from bert_core.evaluation.outcomes import outcomes
from bert_core.tasks.classification import Classification, Text

SEVERAL = Classification(kind="multiple", labels=("a", "b", "c"))


def the_same(made):
    return same_answer(made.task, made.predictions, outcomes(*made.of))


def test_the_majority_classifier_gives_the_most_frequent_label(with_labels):
    made = with_labels(["no"] * 3 + ["yes"], ["yes"] * 4)
    majority = majority_classifier(made.task, made.examples)
    assert (majority.text, majority.share) == ("no", 0.75)
    assert majority.metrics["accuracy"] == 0.75 and majority.metrics["f1"] == 0
    assert majority.metrics["f1_macro"] == pytest.approx(6 / 7 / 2)


def test_of_several_labels_it_gives_those_of_more_than_half():
    sets = [("a",), ("a", "b"), ("a", "b", "c"), ()]
    majority = majority_classifier(SEVERAL, [Text("x", None, each) for each in sets])
    assert (majority.answer, majority.share) == (("a",), 0.25)
    assert majority.metrics["f1_micro"] == pytest.approx(2 * 3 / (6 + 4))
    none = majority_classifier(SEVERAL, [Text("x", None, each) for each in [("a",), ()]])
    assert none.text == "no label" and none.metrics["exact_match"] == 0.5


def test_predictions_that_are_all_the_same_are_named(with_labels):
    assert the_same(with_labels(["no", "yes"], ["no", "no"])) == ("no",)
    assert the_same(with_labels(["no", "yes"], ["no", "yes"])) is None
    assert the_same(with_labels(["no", "no"], ["no", "no"])) is None, "as they should be"
    texts = [Text("x", None, each) for each in [("a", "b"), ()]]
    same = [{"labels": [], "scores": {}}] * 2
    found = same_answer(SEVERAL, same, outcomes(SEVERAL, same, texts))
    assert found == ()
    assert same_answer_warning(found, 2) == "all 2 predictions are the same: no label"
    assert same_answer_warning(None, 2) == ""


def test_other_tasks_have_neither(evaluated, kind):
    made = evaluated(kind)
    has_labels = kind in ("two labels", "five labels", "sets")
    assert (majority_classifier(made.task, made.examples) is not None) == has_labels
    assert the_same(made) is None
