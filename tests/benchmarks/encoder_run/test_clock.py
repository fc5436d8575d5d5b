import pytest

from benchmarks.encoder_run import clock as encoder_clock
from benchmarks.encoder_run.clock import Clock, duration


@pytest.fixture
def now(monkeypatch):
    """The time, in a list of one number."""
    time = [1000.0]
    monkeypatch.setattr(encoder_clock.time, "monotonic", lambda: time[0])
    return time


def test_pretraining_has_its_part_of_the_time(now):
    clock = Clock(9, 6)
    now[0] += 60
    assert clock.pretraining_seconds() == 300 and not clock.is_over()
    now[0] += 8 * 60
    assert clock.is_over()


def test_pretraining_has_no_more_than_there_is(now):
    assert Clock(2, 6).pretraining_seconds() == 120


def test_lines_come_now_and_then(now, capsys):
    clock = Clock(9, 6)
    for text in ("one", "two", "three"):
        now[0] += 3
        clock.say(text)
    assert capsys.readouterr().out == "  0.1 min  one\n  0.1 min  three\n"


def test_times_are_said_as_people_say_them():
    assert [duration(each) for each in (0.4, 59.4, 59.6, 750)] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "12 min 30 s",
    ]
