import numpy as np
import pytest
from scipy.stats import binom, chi2, norm, ttest_rel

from bert_core.evaluation.comparison import (
    compare,
    mcnemar,
    mean_difference,
    metric_difference,
    sign_test,
)
from bert_core.evaluation.intervals import resampled
from bert_core.evaluation.metrics import ClassCounts, of_labels


def test_mcnemar_counts_and_tests_the_examples_on_which_models_differ():
    first = np.repeat([True, True, False, False], [50, 3, 12, 5])
    second = np.repeat([True, False, True, False], [50, 3, 12, 5])
    found = mcnemar(first, second)
    assert (found.both, found.only_first, found.only_second, found.neither) == (50, 3, 12, 5)
    # Two-sided: as far from the middle as 3 of 15 tosses, on either side.
    assert found.p_value == pytest.approx(2 * binom.cdf(3, 15, 0.5))
    assert found.p_value == pytest.approx(0.03515625)
    assert mcnemar(first, first).p_value == 1


def test_of_many_examples_it_is_mcnemars_own_test():
    statistic = (abs(520 - 600) - 1) ** 2 / (520 + 600)  # corrected for continuity
    assert sign_test(520, 600) == pytest.approx(chi2.sf(statistic, 1), rel=0.01)
    assert sign_test(600, 520) == sign_test(520, 600)


def test_the_paired_difference_is_known_better_than_either_model(with_labels):
    random = np.random.default_rng(0)
    gold = [["no", "yes"][index] for index in random.integers(2, size=2000)]
    hard = random.random(2000) < 0.3  # both fail on the same examples
    luck = random.random((2, 2000)) < [[0.02], [0.05]]
    other = {"no": "yes", "yes": "no"}
    found = [
        [other[g] if h or unlucky else g for g, h, unlucky in zip(gold, hard, row, strict=True)]
        for row in luck
    ]
    first, second = with_labels(gold, found[1]), with_labels(gold, found[0])
    result = compare(first.task, first.predictions, second.predictions, first.examples)
    accuracy = result.metrics["accuracy"]
    assert accuracy.difference.value == pytest.approx(accuracy.second - accuracy.first)
    width = accuracy.difference.high - accuracy.difference.low
    right = [[g == f for g, f in zip(gold, row, strict=True)] for row in found]
    differences = np.array(right[0], dtype=float) - np.array(right[1])
    assert width == pytest.approx(2 * 1.96 * differences.std() / 2000**0.5, rel=0.1)
    # That of the error of a single accuracy is three times as wide.
    assert width < 2 * 1.96 * (0.3 * 0.7 / 2000) ** 0.5 / 2
    assert not accuracy.difference.contains(0)
    assert accuracy.p_value < 0.01
    assert result.right_or_wrong.p_value < 0.01
    assert "the second is better" in result.verdict("accuracy")
    swapped = compare(first.task, second.predictions, first.predictions, first.examples)
    assert "the first is better" in swapped.verdict("accuracy")


def test_a_model_does_not_differ_from_itself(evaluated, kind):
    made = evaluated(kind)
    found = compare(made.task, made.predictions, made.predictions, made.examples, num_resamples=50)
    for name, each in found.metrics.items():
        assert (each.difference.value, each.p_value) == (0, 1), name
        assert each.difference.is_degenerate, name
    assert "do not tell the two apart" in found.verdict(made.task.criterion)
    assert (found.right_or_wrong is None) == (kind == "numbers")


def test_of_equal_models_one_in_twenty_seems_better():
    random = np.random.default_rng(1)
    p_values, held = [], []
    for seed in range(200):
        truth = random.random(100) < 0.5
        wrong = random.random((2, 100)) < 0.15
        gold, *found = np.where([truth, truth ^ wrong[0], truth ^ wrong[1]], "yes", "no")
        drawn, values = [], []
        for each in found:
            classes = ClassCounts.of(
                [[(g, 0)] for g in gold], [[(f, 0)] for f in each], ("no", "yes")
            )
            compute = of_labels(classes)
            values.append(float(compute(np.ones((1, 100)))["f1"][0]))
            drawn.append(resampled(compute, 100, num_resamples=200, seed=seed)["f1"])
        difference = metric_difference(*values, *drawn)
        p_values.append(difference.p_value)
        held.append(difference.difference.contains(0))
    assert 0.02 < np.mean(np.array(p_values) < 0.05) < 0.09
    assert 0.91 < np.mean(held) < 0.98
    assert 0.4 < np.mean(np.array(p_values) < 0.5) < 0.6


def test_of_errors_less_is_better(evaluated):
    made = evaluated("numbers", 200)
    worse = [{"value": each["value"] + 2} for each in made.predictions]
    found = compare(made.task, made.predictions, worse, made.examples, num_resamples=100)
    assert found.metrics["pearson"].difference.value == pytest.approx(0)
    assert "the first is better" in found.verdict("mean_squared_error")
    assert found.right_or_wrong is None


def test_seeds_are_paired_by_students_t():
    first, second = [0.80, 0.82, 0.79], [0.83, 0.84, 0.80]
    found = mean_difference(first, second)
    expected = ttest_rel(second, first).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.value == pytest.approx(0.02)
    assert found.high - found.value > norm.ppf(0.975) * 0.01 / 3**0.5 * 2  # three are few
    with pytest.raises(ValueError, match="one pair"):
        mean_difference([1], [2])
