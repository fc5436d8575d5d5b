"""Confusion matrices, worst mistakes and calibration."""

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss
from sklearn.metrics import confusion_matrix as reference

from bert_core.evaluation.error_analysis import (
    NO_ENTITY,
    calibration,
    confusion_matrix,
    count_pairs,
    expected_error,
    reliability_bins,
    worst_mistakes,
)
from bert_core.tasks.classification import Classification, Text


def test_rows_are_right_answers_and_columns_those_found(evaluated):
    made = evaluated("five labels", 200)
    found = confusion_matrix(*made.of)
    gold = [example.answer for example in made.examples]
    guesses = [prediction["label"] for prediction in made.predictions]
    assert found.names == tuple("abcde")
    assert np.array_equal(found.counts, reference(gold, guesses, labels=list("abcde")))
    assert found.counts[0].sum() == gold.count("a")


def test_an_unknown_label_is_counted_too(with_labels):
    found = confusion_matrix(*with_labels(["no", "other"], ["no", "yes"]).of)
    assert found.names == ("no", "yes", "other")
    assert found.counts.tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_the_most_frequent_mistakes_come_first():
    pairs = [("a", "b")] * 3 + [("b", "a")] * 5 + [("a", "a")] * 9 + [("c", "a")]
    matrix = count_pairs(pairs, "abc")
    assert matrix.most_confused(2) == [("b", "a", 5), ("a", "b", 3)]
    assert len(matrix.most_confused(10)) == 3


def test_entities_are_compared_span_by_span(evaluated):
    made = evaluated("tags", 1)
    made.examples[:] = [
        type(made.examples[0])(list("abcdef"), ["B-PER", "I-PER", "O", "B-LOC", "O", "B-LOC"])
    ]
    entities = [("PER", 0, 2), ("PER", 3, 4), ("LOC", 4, 5)]
    made.predictions[:] = [
        {
            "tags": ["B-PER", "I-PER", "O", "B-PER", "B-LOC", "O"],
            "entities": [
                {"type": kind, "start": start, "end": end, "score": 0.5}
                for kind, start, end in entities
            ],
        }
    ]
    found = confusion_matrix(*made.of)
    assert found.names == ("LOC", "PER", NO_ENTITY)
    assert found.counts.tolist() == [[0, 1, 1], [0, 1, 0], [1, 0, 0]]


def test_other_tasks_have_no_matrix(evaluated):
    assert all(
        confusion_matrix(*evaluated(kind).of) is None for kind in ("sets", "numbers", "squad")
    )


def test_the_worst_mistakes_are_wrong_and_sure(with_labels):
    made = with_labels(
        ["yes", "yes", "no", "no"], ["yes", "no", "yes", "yes"], [0.99, 0.6, 0.97, 0.8]
    )
    worst = worst_mistakes(*made.of, num=2)
    assert [each.texts["first"] for each in worst] == ["text 2", "text 3"]
    assert (worst[0].gold, worst[0].found, worst[0].confidence) == ("no", "yes", 0.97)
    assert worst[0].where == "file:2"


def test_the_worst_of_several_labels_have_the_surest_wrong_one():
    task = Classification(kind="multiple", labels=("a", "b"))
    scores = {
        "barely": (0.51, 0.1),
        "surely": (0.999, 0.1),
        "missed": (0.1, 0.03),
        "right": (0.9, 0),
    }
    golds = {"barely": (), "surely": (), "missed": ("b",), "right": ("a",)}
    examples = [Text(text, None, answer) for text, answer in golds.items()]
    predictions = [
        {
            "scores": dict(zip("ab", each, strict=True)),
            "labels": [name for name, score in zip("ab", each, strict=True) if score > 0.5],
        }
        for each in scores.values()
    ]
    worst = worst_mistakes(task, predictions, examples)
    assert [each.texts["first"] for each in worst] == ["surely", "missed", "barely"]


def test_the_worst_of_numbers_are_furthest_off(evaluated):
    made = evaluated("numbers")
    worst = worst_mistakes(*made.of, num=5)
    errors = [abs(each.gold - each.found) for each in worst]
    assert errors == sorted(errors, reverse=True)
    everything = zip(made.examples, made.predictions, strict=True)
    assert errors[0] == max(abs(each.answer - found["value"]) for each, found in everything)


def test_the_worst_of_sentences_have_the_surest_wrong_entities(evaluated):
    made = evaluated("tags")
    worst = worst_mistakes(*made.of)
    assert all(each.correct is False for each in worst)

    def surest(result):
        gold = [(each["type"], each["start"], each["end"]) for each in result.gold]
        wrong = [
            each["score"]
            for each in result.found
            if (each["type"], each["start"], each["end"]) not in gold
        ]
        return max(wrong, default=0)

    assert [surest(each) for each in worst] == sorted(map(surest, worst), reverse=True)
    assert surest(worst[0]) > 0.8


def test_every_kind_of_task_has_worst_mistakes(evaluated, kind):
    assert len(worst_mistakes(*evaluated(kind).of, num=3)) == 3


def test_calibration_by_hand(with_labels):
    # Four surer than 0.93, three of them right; two at 0.6, one of them right.
    made = with_labels(
        ["yes", "yes", "no", "no", "yes", "no"],
        ["yes", "yes", "no", "yes", "yes", "yes"],
        [0.95, 0.95, 0.95, 0.95, 0.61, 0.61],
    )
    found = calibration(*made.of)
    assert found.num_decisions == 6
    assert found.accuracy == pytest.approx(4 / 6)
    assert [each.count for each in found.bins] == [2, 4]
    assert [each.accuracy for each in found.bins] == [0.5, 0.75]
    assert found.expected_error == pytest.approx((2 * 0.11 + 4 * 0.2) / 6)
    # Two groups of equal confidence stay whole.
    assert found.adaptive_error == pytest.approx(found.expected_error)
    right = [0.05**2 * 2] * 3 + [0.39**2 * 2]
    wrong = [0.95**2 * 2, 0.61**2 * 2]
    assert found.brier_score == pytest.approx(sum(right + wrong) / 6)


def test_a_bin_ends_where_the_next_begins():
    edges = np.linspace(0, 1, 16)
    sure = np.array([0.0, 1 / 15, 1 / 15 + 1e-9, 1.0])
    bins = reliability_bins(sure, np.array([0.0, 1, 1, 1]), edges)
    assert [each.count for each in bins] == [2, 1, 1]
    assert [(each.low, each.high) for each in bins] == [
        (0, pytest.approx(1 / 15)),
        (pytest.approx(1 / 15), pytest.approx(2 / 15)),
        (pytest.approx(14 / 15), 1),
    ]


def test_opposite_errors_in_different_bins_do_not_cancel():
    sure = np.array([0.2] * 10 + [0.8] * 10)
    correct = np.array([1.0] * 4 + [0] * 6 + [1] * 6 + [0] * 4)
    assert sure.mean() == pytest.approx(correct.mean())
    assert expected_error(reliability_bins(sure, correct, np.linspace(0, 1, 16))) == pytest.approx(
        0.2
    )


def test_a_crowd_near_1_is_looked_into(with_labels):
    # All between 0.95 and 1: one bin of equal width, in which two errors cancel out.
    sure = np.linspace(0.951, 0.999, 600)
    random = np.random.default_rng(0)
    right = random.random(600) < np.where(sure < 0.975, 1.0, 0.95)
    gold = np.where(right, "yes", "no").tolist()
    found = calibration(*with_labels(gold, ["yes"] * 600, sure.tolist()).of)
    assert len(found.bins) == 1
    assert found.adaptive_error > found.expected_error + 0.01
    assert found.adaptive_error == pytest.approx(0.037, abs=0.012)


def test_a_calibrated_model_has_no_error_and_an_overconfident_one_has(with_labels):
    random = np.random.default_rng(0)
    sure = random.uniform(0.5, 1, 20_000)
    gold = np.where(random.random(20_000) < sure, "yes", "no").tolist()
    made = with_labels(gold, ["yes"] * 20_000, sure.tolist())
    found = calibration(*made.of)
    assert found.expected_error < 0.015
    truth = np.array(gold) == "yes"
    # scikit-learn's is that of one of the two outcomes.
    assert found.brier_score == pytest.approx(2 * brier_score_loss(truth, sure))
    overconfident = with_labels(gold, ["yes"] * 20_000, (0.5 + sure / 2).tolist())
    assert calibration(*overconfident.of).expected_error == pytest.approx(0.125, abs=0.01)


def test_an_answer_the_model_does_not_know_had_no_probability(with_labels):
    found = calibration(*with_labels(["other"], ["yes"], [0.9]).of)
    assert found.brier_score == pytest.approx(0.9**2 + 0.1**2 + 1)


def test_what_a_decision_is(evaluated):
    made = evaluated("sets", 50)
    found = calibration(*made.of)
    assert found.num_decisions == 50 * 4  # each label belongs or does not
    assert all(each.low >= 0.46 for each in found.bins)
    made = evaluated("tags", 50)
    found = calibration(*made.of)
    assert found.num_decisions == sum(
        len(prediction["entities"]) for prediction in made.predictions
    )
    precision = made.task.metrics(made.predictions, made.examples)["precision"]
    assert found.accuracy == pytest.approx(precision)
    made = evaluated("squad", 50)
    found = calibration(*made.of)
    exact = made.task.metrics(made.predictions, made.examples)["exact_match"]
    assert (found.num_decisions, found.accuracy) == (50, pytest.approx(exact))
    assert calibration(*evaluated("choices").of).num_decisions == 60
    assert calibration(*evaluated("numbers").of) is None
    nothing = evaluated("tags", 1)
    nothing.predictions[0]["entities"] = []
    assert calibration(*nothing.of) is None
