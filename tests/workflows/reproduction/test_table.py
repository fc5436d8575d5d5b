import math

import pytest

from workflows.reproduction.table import Comparison, table_lines, verdict_line

VALUES = {
    (1, "train/loss"): 0.5,
    (2, "train/loss"): 0.1 + 0.2,
    (2, "dev/f1"): 0.75,
    (2, "dev/loss"): math.nan,
}
WEIGHTS = "ab" * 32


def compared(changes=None, weights=WEIGHTS, lost=()):
    again = {key: value for key, value in (VALUES | (changes or {})).items() if key not in lost}
    return Comparison(VALUES, again, WEIGHTS, weights)


def test_the_same_to_the_bit():
    same = compared()
    assert same.is_equal and same.is_within(0) and same.different == []
    assert verdict_line(same, 0) == "the same to the bit: 4 figures; the weights too"
    lines = table_lines(same)
    assert [line.split()[0] for line in lines] == [
        *("figure", "dev/f1", "dev/loss", "train/loss", "weights")
    ]
    assert lines[1].split() == ["dev/f1", "0.75", "0.75", "0"]
    assert lines[2].split() == ["dev/loss", "nan", "nan", "0"]
    assert lines[3].split() == ["train/loss", "0.3", "0.3", "0"], "of the last step"
    assert lines[4].split() == ["weights", "ab" * 6, "ab" * 6, "the", "same"]


def test_one_bit_is_a_difference():
    other = compared({(2, "train/loss"): 0.3, (1, "new"): 1.0})
    assert other.different == [(2, "train/loss")] and not other.is_within(0)
    assert other.is_within(1e-15) and not other.is_within(1e-17)
    line = verdict_line(other, 1e-15)
    assert line.startswith("1 of 4 figures differ, the first in step 2 (train/loss), most ")
    assert line.endswith("by 5.55e-17; within the tolerance of 1e-15")
    assert "within" not in verdict_line(other, 0)


@pytest.mark.parametrize(
    ("changes", "lost"),
    [({(2, "dev/f1"): math.nan}, ()), ({(2, "dev/loss"): 1.0}, ()), ({}, [(2, "dev/f1")])],
)
def test_what_is_missing_or_no_number_is_within_no_tolerance(changes, lost):
    other = compared(changes, lost=lost)
    assert not other.is_equal and not other.is_within(1e9)
    assert "there is none again" in verdict_line(other, 1e9)
    assert ("none" in table_lines(other)[1]) == bool(lost)


def test_zero_has_a_sign():
    assert not Comparison({(1, "a"): 0.0}, {(1, "a"): -0.0}, None, None).is_equal


def test_the_weights_count_as_far_as_they_are_known():
    other = compared(weights="cd" * 32)
    assert not other.is_equal and not other.is_within(0) and other.is_within(1e-9)
    assert verdict_line(other, 0) == "all 4 figures are the same, the weights are not"
    unknown = compared(weights=None)
    assert unknown.is_equal and "the weights are not known" in verdict_line(unknown, 0)
    assert table_lines(unknown)[-1].split()[-2:] == ["unknown", "unknown"]


def test_nothing_recorded_is_nothing_made_again():
    empty = Comparison({}, VALUES, WEIGHTS, WEIGHTS)
    assert not empty.is_equal and not empty.is_within(1)
    assert verdict_line(empty, 0).startswith("no figure is recorded")
