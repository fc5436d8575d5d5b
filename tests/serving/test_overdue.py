"""A micro-batch that takes longer than it should is noticed while it does."""

import time

import pytest

from serving.overdue import Overdue


def test_one_is_late_by_how_long_the_last_one_took():
    overdue = Overdue()
    with overdue.at(1):  # the first may take as long as it likes
        time.sleep(0.05)
        assert overdue.seconds == 0
    with overdue.at(1):
        began = time.monotonic()
        assert overdue.seconds == 0
        while not overdue.seconds:
            assert time.monotonic() < began + 60
            time.sleep(0.01)
        assert time.monotonic() > began + 0.4
        with overdue.at(10):  # another thread's is not late
            before = overdue.seconds
            time.sleep(0.01)
            assert overdue.seconds > before
    assert overdue.seconds == 0


def test_a_failed_one_has_ended_and_says_nothing_of_the_next():
    overdue = Overdue()
    with pytest.raises(ValueError, match="failed"), overdue.at(1):
        raise ValueError("failed")
    with overdue.at(1):
        time.sleep(0.05)
        assert overdue.seconds == 0
