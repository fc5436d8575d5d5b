"""Temperature and thresholds: the best ones, and only where they help out of fold."""

import itertools

import numpy as np
import pytest
from scipy.special import expit

from bert_core.evaluation.decisions import (
    NUM_FOLDS,
    ScoredDecisions,
    best_thresholds,
    folds,
    tune_decisions,
    with_thresholds,
)
from bert_core.settings import DecisionSettings
from bert_core.tasks.classification import METRICS, Classification, Text
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.multiple_choice import Choices, MultipleChoice

BOTH = DecisionSettings(temperature=True, thresholds=True)


def rows_of(labels, rows_per_item=1):
    """Rows of one token each, `rows_per_item` for each of the labels."""
    items = np.arange(len(labels))
    ones = np.ones(len(labels) * rows_per_item, dtype=np.int64)
    return EncodedRows(
        input_ids=ones,
        lengths=ones,
        first_lengths=ones,
        places=0 * ones,
        place_counts=ones,
        labels=labels,
        labels_per_item=np.ones_like(items),
        rows_per_item=np.full_like(items, rows_per_item),
        example=np.repeat(items, rows_per_item),
        num_tokens=np.ones_like(items),
        truncated=np.zeros(len(items), dtype=bool),
    )


def two_labels(random, num, shift):
    """Logits of two labels, of which the second is rare; they are shifted away from it."""
    labels = (random.random(num) < 0.1).astype(np.int64)
    logits = random.normal(size=num) + 3 * labels - shift
    outputs = np.stack([np.zeros(num), logits], axis=1).astype(np.float32)
    return outputs, labels, [Text("x", None, "ab"[label]) for label in labels]


def tuned(task, outputs, labels, examples, asked=BOTH):
    return tune_decisions(task, outputs, rows_of(labels), examples, asked)


def every_threshold(scores):
    """One below all scores, between any two of them, and above all, of each label."""
    for column in scores.T:
        ordered = np.unique(column)
        yield [*(ordered[:1] / 2), *((ordered[1:] + ordered[:-1]) / 2), (ordered[-1] + 1) / 2]


@pytest.mark.some(4)
@pytest.mark.parametrize("criterion", ["accuracy", "f1", "f1_macro", "matthews"])
@pytest.mark.parametrize("seed", range(4))
def test_the_threshold_of_two_labels_is_the_best_there_is(criterion, seed):
    random = np.random.default_rng(seed)
    second = np.round(random.beta(1, 3, size=40), 2)  # with ties
    scores = np.stack([1 - second, second], axis=1)
    examples = [Text("x", None, "ab"[int(random.random() < share)]) for share in second]
    gold = np.array([[example.answer == name for name in "ab"] for example in examples])
    task = Classification(labels=("a", "b"), metric=criterion)

    def score(thresholds):
        decided = task.model_copy(update={"thresholds": thresholds}).decide(scores)
        return task.metrics(decided, examples)[criterion]

    best = max(score({"b": each}) for each in next(every_threshold(scores[:, 1:])))
    assert score(with_thresholds(task, scores, gold).thresholds) == pytest.approx(best)


@pytest.mark.some(3)
@pytest.mark.parametrize("criterion", METRICS["multiple"])
@pytest.mark.parametrize("seed", range(3))
def test_the_thresholds_of_several_labels_are_about_the_best_there_are(criterion, seed):
    random = np.random.default_rng(seed)
    gold = random.random((12, 2)) < [0.5, 0.3]
    scores = np.where(gold, random.beta(2, 4, gold.shape), random.beta(1, 6, gold.shape))
    examples = [
        Text("x", None, tuple(name for name, has in zip("ab", row, strict=True) if has))
        for row in gold
    ]
    task = Classification(kind="multiple", labels=("a", "b"), metric=criterion)

    def score(thresholds):
        named = dict(zip("ab", thresholds, strict=True))
        decided = task.model_copy(update={"thresholds": named}).decide(scores)
        return task.metrics(decided, examples)[criterion]

    found = score(best_thresholds(scores, gold, criterion))
    best = max(map(score, itertools.product(*every_threshold(scores))))
    if criterion == "f1_macro":  # which is that of each label
        assert found == pytest.approx(best)
    assert score([0.5] * 2) <= found and found >= best - 0.1


@pytest.mark.parametrize("criterion", METRICS["multiple"])
def test_a_label_that_all_of_dev_has_or_none_keeps_its_half(criterion):
    scores = np.random.default_rng(0).uniform(size=(60, 3))
    gold = np.stack([scores[:, 0] > 0.3, np.zeros(60, bool), np.ones(60, bool)], axis=1)
    found = best_thresholds(scores, gold, criterion)
    assert found[1:].tolist() == [0.5, 0.5]


def test_a_threshold_is_left_at_a_half_where_that_is_as_good():
    scores = np.array([[0.9], [0.7], [0.2], [0.1]])
    gold = np.array([[True], [True], [False], [False]])
    assert best_thresholds(scores, gold, "f1") == [0.5]
    gold[2] = True
    assert best_thresholds(scores, gold, "f1") == pytest.approx([0.15])


def test_certain_scores_are_no_trouble():
    """A probability may be 0 or 1; nothing is above 1, and 0 is above nothing."""
    task = Classification(labels=("a", "b"), metric="f1")
    outputs = np.array([[0, 2000], [2000, 0], [0, -2000], [0, 0]] * 20, dtype=np.float32)
    examples = [Text("x", None, label) for label in "babb" * 20]
    found = tuned(task, outputs, np.array([1, 0, 1, 1] * 20), examples)
    assert all(np.isfinite(finding.before) for finding in found.findings)
    scores = np.array([each["scores"]["b"] for each in found.predictions])
    assert scores.min() == 0 and np.isfinite(scores).all()
    one = np.array([[False], [False], [False], [True]])
    assert best_thresholds(np.ones((4, 1)), one, "accuracy") == [1.0]
    assert best_thresholds(np.zeros((4, 1)), ~one, "f1") == [0.5]


@pytest.mark.parametrize("wanted", [0.25, 1.0, 4.0])
def test_the_temperature_is_that_by_which_logits_are_too_large(wanted):
    random = np.random.default_rng(0)
    logits = random.normal(size=(20_000, 3)) * 2
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    gold = (shares.cumsum(axis=1) < random.random((20_000, 1))).sum(axis=1)
    decided = ScoredDecisions(wanted * logits, gold, np.arange(20_000))
    assert decided.best_temperature() == pytest.approx(wanted, rel=0.05)
    right = np.log(shares[np.arange(20_000), gold])
    assert decided.log_losses(wanted) == pytest.approx(-right)

    belongs = random.random(logits.shape) < expit(logits)
    several = ScoredDecisions(wanted * logits, belongs.astype(np.float32), np.arange(20_000))
    assert several.best_temperature() == pytest.approx(wanted, rel=0.05)
    expected = -np.log(np.where(belongs, expit(logits), expit(-logits))).mean(axis=1)
    assert several.log_losses(wanted) == pytest.approx(expected)


def test_a_shifted_problem_is_decided_better_and_is_calibrated():
    random = np.random.default_rng(1)
    outputs, labels, examples = two_labels(random, 400, shift=4)
    task = Classification(labels=("a", "b"), metric="f1")
    found = tuned(task, 3 * outputs, labels, examples)
    temperature, thresholds = found.findings
    assert temperature.value and temperature.after < temperature.before
    assert thresholds.value and thresholds.after > thresholds.before + 0.2
    assert thresholds.difference.low > 0
    assert found.task.thresholds.keys() == {"b"} and found.task.thresholds["b"] < 0.3
    before = task.metrics(task.decode(outputs, None, examples), examples)["f1"]
    assert found.task.metrics(found.predictions, examples)["f1"] > before + 0.2
    scaled = 3 * outputs / np.float32(found.temperature)
    assert found.task.decode(scaled, None, examples) == found.predictions


def test_no_threshold_is_kept_of_random_labels():
    """But for chance, at most once in forty. A high temperature is right: scores say nothing."""
    for seed in range(20):
        random = np.random.default_rng(seed)
        outputs = random.normal(size=(200, 2)).astype(np.float32)
        labels = random.integers(0, 2, 200)
        examples = [Text("x", None, "ab"[label]) for label in labels]
        task = Classification(labels=("a", "b"), metric="f1_macro")
        found = tuned(task, outputs, labels, examples)
        assert found.task == task and "not kept" in found.findings[1].text
        labels_found = [each["label"] for each in found.predictions]
        assert labels_found == [each["label"] for each in task.decode(outputs, None, examples)]
        assert found.temperature == 1 or found.temperature > 3


def test_a_temperature_that_is_right_already_is_not_kept():
    random = np.random.default_rng(3)
    logits = random.normal(size=400) * 2
    labels = (random.random(400) < expit(logits)).astype(np.int64)
    outputs = np.stack([np.zeros(400), logits], axis=1).astype(np.float32)
    examples = [Text("x", None, "ab"[label]) for label in labels]
    found = tuned(Classification(labels=("a", "b")), outputs, labels, examples)
    (finding, _) = found.findings
    assert found.temperature == 1 and finding.after >= finding.before


def test_few_examples_tune_nothing():
    outputs, labels, examples = two_labels(np.random.default_rng(0), 49, shift=4)
    found = tuned(Classification(labels=("a", "b"), metric="f1"), outputs, labels, examples)
    assert found.temperature == 1 and not found.task.thresholds
    assert "49 dev examples, and 50 are needed" in found.findings[0].text


def test_windows_are_one_decision_and_choices_are_compared_with_each_other():
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 60)
    outputs = random.normal(size=(120, 2)).astype(np.float32)
    windows = rows_of(np.repeat(labels, 2))
    windows.example[:] = np.repeat(np.arange(60), 2)
    task = Classification(labels=("a", "b"))
    decided = ScoredDecisions.of(task, outputs, windows, 60)
    assert decided.gold.tolist() == labels.tolist()
    assert decided.logits == pytest.approx(outputs.reshape(60, 2, 2).mean(axis=1), rel=1e-5)

    gold = random.integers(0, 4, 80)
    scores = (4 * random.normal(size=(80, 4))).astype(np.float32)
    scores[np.arange(80), gold] += 4
    examples = [Choices("c", tuple("wxyz"), int(each)) for each in gold]
    rows = rows_of(gold, rows_per_item=4)
    found = tune_decisions(
        MultipleChoice(), scores.reshape(-1, 1), rows, examples, DecisionSettings(temperature=True)
    )
    assert found.temperature > 2
    plain = MultipleChoice().decode(scores.reshape(-1, 1), rows, examples)
    assert [each["choice"] for each in found.predictions] == [each["choice"] for each in plain]


def test_folds_have_their_share_of_each_label_and_depend_on_the_seed_alone():
    strata = ["rare"] * 11 + ["usual"] * 92
    fold = folds(strata, 0)
    assert np.bincount(fold).tolist() == [21, 21, 21, 20, 20]
    assert sorted(np.bincount(fold[:11], minlength=NUM_FOLDS)) == [2, 2, 2, 2, 3]
    assert folds(strata, 0).tolist() == fold.tolist() != folds(strata, 1).tolist()
