"""Statistics over runs with several seeds, against scipy and the tables of Dunnett."""

import random
import statistics
from statistics import fmean

import pytest
from scipy.stats import dunnett

from bert_core.evaluation.sweep import (
    MOST_VALUES,
    Difference,
    PointScores,
    axis_groups,
    axis_values,
    differences,
    fences,
    importances,
    margins,
    noise_share,
    one_sided_critical_value,
    ranked,
    seed_noise,
    two_sided_critical_value,
    without_fallen,
)

FOUND = [
    PointScores(
        {"rate": rate, "epochs": epochs}, (10 * rate + epochs - 0.5, 10 * rate + epochs + 0.5)
    )
    for rate in (1, 2)
    for epochs in (2, 3, 4)
]


def test_the_best_mean_is_first():
    best, *rest = ranked([*FOUND, PointScores({"rate": 9, "epochs": 9}, ())])
    assert best.point == {"rate": 2, "epochs": 4} and best.mean == 24
    assert len(rest) == 5 and rest[-1].mean == 12
    assert best.deviation == pytest.approx(0.5**0.5)
    assert PointScores({}, (1.0,)).deviation is None


def test_points_are_grouped_by_their_value():
    found = [*FOUND, PointScores({"rate": 3, "epochs": 2}, ())]
    groups = axis_groups(found, "rate")
    assert [(group.low, group.high, group.mean) for group in groups] == [(1, 1, 13), (2, 2, 23)]
    names = [PointScores({"name": name}, (1.0,)) for name in ("b", "a", None, True, "b")]
    assert axis_values(names, "name") == ["b", "a", None, True]
    assert [len(group.points) for group in axis_groups(names, "name")] == [2, 1, 1, 1]


def test_neighbours_among_many_numbers_are_taken_together():
    found = [PointScores({"rate": 1e-5 * number}, (float(number),)) for number in range(1, 23)]
    groups = axis_groups(found, "rate")
    assert [len(group.points) for group in groups] == [6, 5, 5, 6]
    assert groups[0].low == 1e-5 and groups[0].high < groups[1].low
    assert sum((group.points for group in groups), ()) == tuple(found)
    few = found[: MOST_VALUES + 1]
    assert [len(group.points) for group in axis_groups(few, "rate")] == [4, 5]


def test_shares_of_a_grid_without_interaction_sum_to_one():
    shares = importances(FOUND)
    assert sum(share.share for share in shares.values()) == pytest.approx(1)
    assert shares["rate"].share == pytest.approx(150 / 154)
    assert (shares["rate"].by_chance, shares["epochs"].by_chance) == (1 / 5, 2 / 5)
    assert not shares["rate"].is_binned
    assert importances([]) == {}
    single = importances([PointScores({"rate": 1}, (2.0,))])["rate"]
    assert (single.share, single.by_chance) == (0.0, 0.0)


def test_an_axis_without_effect_explains_what_chance_does():
    draw = random.Random(1)
    shares = []
    for _ in range(200):
        found = [
            PointScores({"useless": draw.random(), "rate": rate}, (draw.gauss(0, 1),))
            for rate in (1, 2, 3)
            for _ in range(8)
        ]
        shares.append(importances(found))
    for axis in ("useless", "rate"):
        mean = statistics.fmean(share[axis].share for share in shares)
        assert mean == pytest.approx(shares[0][axis].by_chance, abs=0.02)
    assert shares[0]["useless"].is_binned and not shares[0]["rate"].is_binned


def test_what_fell_apart_is_left_out():
    good = [PointScores({"rate": number}, (0.8 + 0.01 * number,)) for number in range(8)]
    fallen = PointScores({"rate": 9}, (0.3,))
    assert without_fallen([*good, fallen, PointScores({"rate": 10}, ())]) == good
    assert fences([1.0, 2.0, 9.0]) == fences([1.0] * 9) == (float("-inf"), float("inf"))


def test_the_noise_of_seeds_is_that_of_the_better_half():
    fallen = PointScores({"rate": 0, "epochs": 2}, (1.0, 9.0))
    noise = seed_noise([*FOUND, fallen, fallen])
    assert noise is not None
    assert noise.deviation == pytest.approx(0.5**0.5) and noise.freedom == 4
    assert seed_noise([PointScores({}, (each.mean,)) for each in FOUND]) is None
    assert seed_noise([PointScores({}, (1.0, 1.0))] * 3) is None
    assert seed_noise([]) is None


def test_the_share_of_noise_is_that_of_the_means_variance():
    means = statistics.variance([each.mean for each in FOUND])
    assert noise_share(FOUND) == pytest.approx(0.5 / 2 / means)
    assert noise_share(FOUND[:1]) is None
    assert noise_share([PointScores({}, (1.0,)), PointScores({}, (2.0,))]) is None


ONE_SIDED = [(1, 10, 1.81), (2, 10, 2.15), (5, 10, 2.56), (5, 20, 2.39), (2, 10**6, 1.92)]
TWO_SIDED = [(1, 10, 2.23), (2, 6, 2.86), (3, 20, 2.54), (5, 12, 2.90), (2, 10**6, 2.21)]


def test_the_critical_values_are_dunnetts():
    """Dunnett 1955, table 1a, and 1964, table II, 95 %; of one other it is Student's."""
    for compute, table in (
        (one_sided_critical_value, ONE_SIDED),
        (two_sided_critical_value, TWO_SIDED),
    ):
        for num_others, freedom, value in table:
            assert compute(num_others, freedom) == pytest.approx(value, abs=0.006)


def test_the_truly_best_is_hardly_ever_taken_for_worse():
    draw = random.Random(0)
    kept, dropped = 0, 0
    for _ in range(300):
        found = [
            PointScores({"point": number}, tuple(draw.gauss(mean, 1) for _ in range(3)))
            for number, mean in enumerate([0, 0, 0, 0, -9])
        ]
        best = ranked(found)
        allowed = margins(found)
        assert allowed is not None
        level = {
            each.point["point"]
            for each, margin in zip(best, allowed, strict=True)
            if best[0].mean - each.mean <= margin
        }
        kept += 0 in level
        dropped += 4 not in level
    assert kept >= 0.93 * 300
    assert dropped == 300


def test_of_few_seeds_a_point_may_be_further_behind():
    found = [PointScores({}, (5.0, 5.2)), PointScores({}, (4.9, 5.1)), PointScores({}, (4.0,))]
    first, second, single = margins(found) or []
    assert first == second < single
    assert margins(found[:1]) is None
    assert margins([PointScores({}, (1.0,)), PointScores({}, (2.0,))]) is None


REFERENCE = (84.0, 84.4, 84.2)
OTHERS = {"worse": (80.1, 80.5, 80.0), "alike": (84.1, 84.6, 84.3), "none": ()}


def test_a_difference_is_told_apart_where_its_interval_leaves_out_nothing():
    found = differences(REFERENCE, OTHERS)
    assert found.keys() == {"worse", "alike"}
    assert found["worse"].mean == pytest.approx(-4.0)
    assert found["worse"].is_told_apart and not found["alike"].is_told_apart
    assert Difference(-0.5, 0.5).is_told_apart is False
    assert Difference(-0.5, None).is_told_apart is None


@pytest.mark.parametrize("sizes", [(3, 3, 3), (5, 5, 5, 5, 5), (3, 3, 2)])
def test_the_intervals_are_scipys(sizes):
    """Of groups of one size to the digit; of others nearly."""
    draw = random.Random(repr(sizes))
    groups = [tuple(draw.gauss(50 + 2 * k, 1) for _ in range(n)) for k, n in enumerate(sizes)]
    reference, *others = groups
    named = {str(number): each for number, each in enumerate(others)}
    found = differences(reference, named)
    theirs = dunnett(*others, control=reference, random_state=0).confidence_interval(0.95)
    for number, (low, high) in enumerate(zip(theirs.low, theirs.high, strict=True)):
        assert found[str(number)].mean == pytest.approx((low + high) / 2, abs=0.02)
        assert found[str(number)].reach == pytest.approx((high - low) / 2, rel=0.04)


def test_seeds_that_say_nothing_give_no_interval():
    single = differences((84.0,), {"other": (83.0,)})
    assert single == {"other": Difference(-1.0, None)}
    same = differences((84.0, 84.0), {"other": (83.0, 83.0)})
    assert same["other"].reach is None
    assert differences((), {"other": (83.0, 84.0)}) == {}
    assert differences((84.0, 85.0), {}) == {}


def test_one_that_scatters_makes_all_intervals_wider():
    steady = differences(REFERENCE, OTHERS)
    scattered = differences(REFERENCE, OTHERS | {"wild": (20.0, 60.0, 84.0)})
    assert scattered["worse"].reach > 5 * steady["worse"].reach
    assert scattered["wild"].mean == pytest.approx(fmean((20, 60, 84)) - fmean(REFERENCE))


def test_what_does_not_differ_is_hardly_ever_told_apart():
    draw = random.Random(0)
    wrong = 0
    for _ in range(300):
        reference, *others = ([draw.gauss(0, 1) for _ in range(3)] for _ in range(6))
        found = differences(reference, {str(k): each for k, each in enumerate(others)})
        wrong += any(each.is_told_apart for each in found.values())
    assert 0.01 * 300 < wrong < 0.09 * 300
