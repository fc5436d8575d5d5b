"""Bootstrap intervals, and the comparison of two models: by hand, and against scipy."""

import numpy as np
import pytest
from scipy.stats import norm, ttest_rel

from bert_core.errors import UserError
from bert_core.evaluation.intervals import (
    Comparison,
    Interval,
    MetricDifference,
    bootstrap_intervals,
    compare,
    interval,
    leave_out,
    mean_difference,
    metric_difference,
    over_seeds,
    resampled,
    resamples,
    without_each,
)
from bert_core.evaluation.metrics import ClassCounts, means, of_labels
from bert_core.evaluation.outcomes import resampling_units
from bert_core.tasks.text_embedding import RelatedTexts, TextEmbedding


def interval_of_mean(values, *, groups=None, num_resamples=500, seed=0):
    compute = means({"mean": values})
    drawn = resampled(compute, len(values), num_resamples=num_resamples, seed=seed, groups=groups)
    left_out = without_each(compute, len(values), groups)
    return interval(float(np.mean(values)), drawn["mean"], left_out["mean"])


@pytest.mark.parametrize(("num", "share"), [(60, 0.7), (71, 0.95)])
def test_19_of_20_intervals_hold_the_truth(num, share):
    # 95 % of 71: where the percentiles alone hold it 87 times in 100.
    random = np.random.default_rng(0)
    held = [
        interval_of_mean(random.random(num) < share, num_resamples=300, seed=seed).contains(share)
        for seed in range(500)
    ]
    assert 0.92 < np.mean(held) < 0.985


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution():
    values = np.random.default_rng(0).normal(size=2000)
    found = interval_of_mean(values, num_resamples=4000)
    reach = 1.96 * values.std() / 2000**0.5
    assert found.low == pytest.approx(values.mean() - reach, abs=0.1 * reach)
    assert found.high == pytest.approx(values.mean() + reach, abs=0.1 * reach)


def test_examples_of_one_document_are_drawn_together():
    # 40 documents of 10 examples that are all right or all wrong: worth 40 examples, not 400.
    right = np.repeat(np.random.default_rng(0).random(40) < 0.5, 10)
    groups = [f"document {number // 10}" for number in range(400)]
    alone, together = interval_of_mean(right), interval_of_mean(right, groups=groups)
    ratio = (together.high - together.low) / (alone.high - alone.low)
    assert ratio == pytest.approx(10**0.5, rel=0.1)


def test_two_recipes_are_compared_by_the_means_of_their_seeds():
    def pair(first, second):
        nothing = Interval(second - first, np.nan, np.nan)
        return Comparison({"f1": MetricDifference(first, second, nothing, 0.5)})

    firsts, seconds = [0.80, 0.82, 0.84], [0.83, 0.84, 0.88]
    pairs = [pair(*each) for each in zip(firsts, seconds, strict=True)]
    found = over_seeds(pairs).metrics["f1"]
    assert (found.first, found.second) == (np.mean(firsts), np.mean(seconds))
    assert found.difference == mean_difference(firsts, seconds)
    assert found.p_value == pytest.approx(ttest_rel(seconds, firsts).pvalue)
    assert over_seeds(pairs[:1]) is pairs[0]
    assert over_seeds([pair(0.5, 0.5)] * 2).metrics["f1"].p_value == 1.0


def test_a_query_is_drawn_with_all_its_passages():
    # 40 queries of 5 passages, each found by all or by none: worth 40 examples, not 200.
    found = np.random.default_rng(0).random(40) < 0.5
    pairs = [
        RelatedTexts((f"query {n}", f"passage {n}-{part}"), True)
        for n in range(40)
        for part in range(5)
    ]
    task = TextEmbedding(kind="pairs")
    predictions = [{name: float(found[n // 5]) for name in task.pair_metrics} for n in range(200)]
    groups = resampling_units(pairs)
    name = task.criterion
    together = bootstrap_intervals(task, predictions, pairs, groups=groups)[name]
    once = interval_of_mean(found, num_resamples=1000)
    assert together.high - together.low == pytest.approx(once.high - once.low, rel=0.1)
    scored = [RelatedTexts(("one", f"other {n}"), 1.0) for n in range(3)]
    assert resampling_units(scored) is None, "a score is no passage found"


def test_samples_are_functions_of_the_seed_and_have_as_many_examples():
    def drawn(seed, num=500):
        # More than are made at once.
        parts = list(resamples(10_000, num_resamples=num, seed=seed))
        assert len(parts) > 1
        return np.concatenate(parts)

    first = drawn(3)
    assert first.shape == (500, 10_000)
    assert (first.sum(axis=1) == 10_000).all()
    assert np.array_equal(first, drawn(3))
    assert np.array_equal(first[:450], drawn(3, 450))
    assert not np.array_equal(first, drawn(4))
    # How often an example is drawn is Poisson's distribution, nearly.
    assert first.mean() == 1
    assert first.var() == pytest.approx(1, rel=0.01)
    assert (first == 0).mean() == pytest.approx(np.exp(-1), rel=0.01)


def test_each_example_is_left_out_once():
    assert np.array_equal(np.concatenate(list(leave_out(5))), 1 - np.eye(5))
    some = np.concatenate(list(leave_out(1234)))
    assert len(some) == 500
    assert ((1 - some).sum(axis=0) == 1).all()
    assert np.concatenate(list(leave_out(3, ["a", "b", "a"]))).tolist() == [[0, 1, 0], [1, 0, 1]]
    assert np.concatenate(list(leave_out(1))).tolist() == [[1]]


def test_every_metric_of_every_task_has_an_interval(evaluated, kind):
    made = evaluated(kind)
    found = bootstrap_intervals(*made.of, num_resamples=200, seed=5)
    values = made.task.metrics(made.predictions, made.examples)
    assert {name: each.value for name, each in found.items()} == values
    for name, each in found.items():
        assert each.low <= each.value <= each.high or name.endswith("threshold"), name
    assert found == bootstrap_intervals(*made.of, num_resamples=200, seed=5)
    assert found != bootstrap_intervals(*made.of, num_resamples=200, seed=6)


class Slow:
    """A task of nobody's; its metric is undefined where the first example is not drawn."""

    def metrics(self, predictions, examples):
        share = float(np.mean([prediction["x"] for prediction in predictions]))
        return {"share": share} | ({"of first": share} if 0 in examples else {})


def test_any_metric_has_an_interval():
    values = [0, 1, 1, 1, 0, 1]
    found = bootstrap_intervals(Slow(), [{"x": value} for value in values], range(6))
    assert found["share"] == interval_of_mean(values, num_resamples=1000)
    assert 0 <= found["of first"].low < found["of first"].high <= 1


def test_where_nothing_varies_the_interval_says_so(with_labels):
    made = with_labels(["no", "yes", "no"], ["no", "yes", "no"])
    accuracy = bootstrap_intervals(*made.of)["accuracy"]
    assert accuracy == Interval(1, 1, 1)
    assert accuracy.is_degenerate
    one = bootstrap_intervals(made.task, made.predictions[:1], made.examples[:1])
    assert one["accuracy"].is_degenerate


def test_without_examples_there_is_nothing_to_draw(with_labels):
    with pytest.raises(UserError, match="no examples with answers"):
        next(resamples(0, num_resamples=10, seed=0))


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
    worse = [{"value": prediction["value"] + 2} for prediction in made.predictions]
    found = compare(made.task, made.predictions, worse, made.examples, num_resamples=100)
    assert found.metrics["pearson"].difference.value == pytest.approx(0)
    assert "the first is better" in found.verdict("mean_squared_error")


def test_seeds_are_paired_by_students_t():
    first, second = [0.80, 0.82, 0.79], [0.83, 0.84, 0.80]
    found = mean_difference(first, second)
    expected = ttest_rel(second, first).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.value == pytest.approx(0.02)
    assert found.high - found.value > norm.ppf(0.975) * 0.01 / 3**0.5 * 2  # three are few
    with pytest.raises(ValueError, match="one pair"):
        mean_difference([1], [2])
