import random
from statistics import fmean

import pytest
from scipy.stats import dunnett

from bert_core.evaluation.sweep import Difference, differences

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
