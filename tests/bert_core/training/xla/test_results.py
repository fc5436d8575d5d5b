"""A step's numbers: read once, when asked for, and judged."""

import numpy as np
import pytest

from bert_core.training.loop import NonFiniteLossError
from bert_core.training.xla.training import LateStepResult, Numbers


class OnDevice:
    """An array of JAX, as far as it matters here, that counts how often it is read."""

    def __init__(self, value, dtype=np.float32):
        self.value, self.sent, self.read = np.array(value, dtype), 0, 0

    def copy_to_host_async(self):
        self.sent += 1

    def __array__(self, dtype=None, copy=None):
        self.read += 1
        return self.value


def arrays(loss=2.5, norm=1.5, stop=0):
    return {
        "loss": OnDevice(loss),
        "sums": OnDevice([1, 2, 3]),
        "gradient_norm": OnDevice(norm),
        "tallies": OnDevice([70, 96, stop], np.int32),
    }


def test_a_result_is_read_when_it_is_asked_for_and_once():
    given = arrays()
    result = LateStepResult(
        Numbers(4, given), learning_rate=0.1, sum_of_squared_lengths=9, stopped=False
    )
    assert [each.sent for each in given.values()] == [1] * 4
    assert (result.step, result.learning_rate, result.sum_of_squared_lengths) == (4, 0.1, 9)
    assert not result.stopped
    assert [each.read for each in given.values()] == [0] * 4
    assert (float(result.loss), float(result.gradient_norm)) == (2.5, 1.5)
    assert result.sums.tolist() == [1, 2, 3]
    assert (int(result.num_real_tokens), int(result.num_slots)) == (70, 96)
    assert [each.read for each in given.values()] == [1] * 4
    assert not hasattr(result, "unknown")


@pytest.mark.parametrize("wrong", [{"loss": np.nan}, {"norm": np.inf}])
def test_what_is_not_finite_is_an_error(wrong):
    with pytest.raises(NonFiniteLossError) as error:
        Numbers(4, arrays(**wrong)).check()
    assert error.value.step == 4
    Numbers(4, arrays()).check()


@pytest.mark.parametrize("stop", [0, 1, 3])
def test_any_process_may_ask_to_stop(stop):
    assert Numbers(4, arrays(stop=stop)).stop == (stop > 0)
