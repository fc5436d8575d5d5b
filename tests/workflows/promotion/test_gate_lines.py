import json

import pytest

from bert_core.evaluation.intervals import Interval
from workflows.promotion.gate import Gate
from workflows.promotion.gate_lines import (
    at_most,
    drop,
    gain_interval,
    least,
    no_champion,
    record,
    summary,
    table,
)


@pytest.mark.parametrize(
    ("name", "value", "required", "passed"),
    [
        ("accuracy", 0.85, 0.85, True),
        ("accuracy", 0.8499, 0.85, False),
        ("accuracy", float("nan"), 0.85, False),
        ("mean_squared_error", 0.2, 0.3, True),
        ("mean_squared_error", 0.4, 0.3, False),
    ],
)
def test_a_metric_has_to_be_good_enough(name, value, required, passed):
    line = least(name, value, required)
    assert line.passed is passed
    assert ("FAILS" in line.verdict) is not passed
    assert line.required.startswith("<=" if name.endswith("error") else ">=")


def test_there_may_be_too_much_of_a_figure():
    line = at_most("memory", "memory_mb", 801.04, 800, "MB")
    assert (line.measured, line.required, line.verdict) == ("801.0 MB", "<= 800 MB", "FAILS")
    assert line.values == {"memory_mb": 801.04}
    assert at_most("memory", "memory_mb", 800, 800, "MB").passed


@pytest.mark.parametrize(
    ("interval", "most", "verdict"),
    [
        (Interval(0.0, 0.0, 0.0), 0.0, "passes"),
        (Interval(0.02, 0.005, 0.03), 0.0, "passes"),
        (Interval(-0.005, -0.0099, 0.0), 0.01, "passes"),
        (Interval(0.0, -0.02, 0.02), 0.01, "FAILS: too few examples to tell"),
        (Interval(0.03, -0.02, 0.08), 0.01, "FAILS: too few examples to tell"),
        (Interval(-0.02, -0.03, -0.015), 0.01, "FAILS"),
        (Interval(float("nan"), float("nan"), float("nan")), 0.01, "FAILS"),
    ],
)
def test_the_worst_end_of_the_interval_decides_a_drop(interval, most, verdict):
    line = drop("accuracy", 0.9, interval, most, "100 examples")
    assert line.verdict == verdict
    assert "champion 0.9000, 100 examples" in line.measured


def test_of_an_error_what_is_less_is_gained():
    worse = Interval(0.3, 0.2, 0.5)  # the candidate's error less the champion's
    assert gain_interval("mean_squared_error", worse) == Interval(-0.3, -0.5, -0.2)
    assert gain_interval("accuracy", worse) is worse
    assert not drop("mean_squared_error", 0.1, worse, 0.4, "").passed
    assert drop("mean_squared_error", 0.1, worse, 0.5, "").passed


def test_all_of_it_is_kept_and_shown():
    lines = [least("f1", 0.5, 0.8), no_champion("f1"), at_most("folder", "folder_mb", 1, 2, "MB")]
    titles, first, second, _ = table(lines)
    assert titles == ["check", "measured", "required", "verdict"]
    assert first == ["f1", "0.5000", ">= 0.8", "FAILS"]
    assert second[1] == "no champion yet" and second[3] == "passes"
    assert summary(lines) == "failed 1 of 3: f1"
    assert summary(lines[1:]) == "passed 2 of 2"
    kept = json.loads(json.dumps(record(lines, Gate(metrics={"f1": 0.8}))))
    assert kept["passed"] is False and kept["gate"]["metrics"] == {"f1": 0.8}
    assert kept["checks"][0]["values"] == {"f1": 0.5} and "cores" in kept["machine"]
