import threading

import pytest

from bert_core.prefetch import steps_ahead


def test_steps_are_made_ahead_in_order_and_not_further():
    made = []
    steps = steps_ahead(lambda step: made.append(step) or step * 10, 5, ahead=2)
    assert made == [], "nothing is made before it is asked for"
    assert [next(steps) for _ in range(3)] == [50, 60, 70]
    assert max(made) <= 5 + 2 + 2
    threads = threading.active_count()
    steps.close()
    assert threading.active_count() < threads


def test_what_goes_wrong_ahead_is_raised_at_its_turn():
    def make(step):
        if step == 2:
            raise ValueError("step 2")
        return step

    steps = steps_ahead(make, 0)
    assert [next(steps), next(steps)] == [0, 1]
    with pytest.raises(ValueError, match="step 2"):
        next(steps)
