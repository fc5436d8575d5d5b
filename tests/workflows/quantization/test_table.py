from dataclasses import replace

import numpy as np
import pytest

from bert_core.evaluation.comparison import Comparison, MetricDifference
from bert_core.evaluation.intervals import Interval
from bert_core.evaluation.outcomes import Outcome
from workflows.quantization.table import Timing, loss_of_encoder, loss_of_task


def told(*found):
    return [Outcome("", {}, None, each, None, None, {}) for each in found]


def difference(first, second, low, high):
    return MetricDifference(first, second, Interval(second - first, low, high), 0.5)


COMPARISON = Comparison(
    {"accuracy": difference(0.9, 0.9, 0.0, 0.0), "f1": difference(0.8, 0.79, -0.02, 0.01)}, None
)


def changes(before, after):
    return loss_of_task("d", COMPARISON, "f1", [told(*before), told(*after)], []).notes[0]


def test_the_metric_that_decides_comes_first_with_its_interval():
    loss = loss_of_task("10 examples", COMPARISON, "f1", [told("a"), told("a")], ["And this."])
    assert loss.rows[0] == ("f1", "0.8000", "0.7900", "-0.0100 (-0.0200 to +0.0100)")
    assert loss.rows[1] == ("accuracy", "0.9000", "0.9000", "+0.0000")
    lines = loss.text.splitlines()
    assert lines[0] == "Measured on 10 examples:"
    assert lines[3] == "| --- | ---: | ---: | ---: |"
    assert lines[-1] == "0 of 1 predictions changed (0.00%). And this."


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        (["a", "b", "a"], ["a", "a", "a"], 1),
        ([["x", "y"], []], [["y", "x"], ["x"]], 1),
        ([2, 1], [2, 0], 1),
    ],
)
def test_changed_answers_are_counted(before, after, count):
    assert changes(before, after).startswith(f"{count} of {len(before)} predictions changed")


def test_entities_are_the_same_whatever_their_score():
    entity = {"type": "PER", "start": 0, "end": 2, "text": "a b", "score": 0.9}
    same, other = entity | {"score": 0.8}, entity | {"type": "ORG"}
    assert changes([[entity], [entity]], [[same], [other]]).startswith("1 of 2")


def test_numbers_move():
    assert changes([1.0, 2.0], [1.5, 2.1]) == "Numbers moved by 0.3 on average, by 0.5 at most."


def test_vectors_turn():
    cosines = np.linspace(0.99, 1.0, 101)
    rows = loss_of_encoder("d", cosines, []).rows
    assert [value for _, value in rows] == ["0.99500", "0.99010", "0.99000"]


def test_speed_is_a_ratio_of_cpu_time():
    timing = Timing(6.0, 2.0, 1500)
    assert "1,500 tokens took 6.0 s" in timing.sentence and "3.00 times" in timing.sentence
    assert "0.50 times" in replace(timing, int8=12.0).sentence
