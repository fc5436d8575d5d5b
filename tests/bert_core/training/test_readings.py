"""When a step's numbers reach the host, and what they decide there."""

import pytest
import torch

from bert_core.training.loop import NonFiniteLossError, Readings


def test_late_readings_come_one_step_late_and_at_once_at_the_end():
    fine, stop, bad = torch.zeros(9), torch.zeros(9), torch.zeros(9)
    stop[8] = 1
    bad[0] = float("nan")
    norm = torch.tensor(1.0)
    late = Readings(late=True)
    assert not late.take(1, stop, norm, last=False)
    assert late.take(2, fine, norm, last=False)
    late = Readings(late=True)
    assert not late.take(1, bad, norm, last=False)
    with pytest.raises(NonFiniteLossError, match="step 1:"):
        late.take(2, fine, norm, last=False)
    with pytest.raises(NonFiniteLossError, match="step 9:"):
        Readings(late=True).take(9, bad, norm, last=True)
    assert Readings(late=False).take(1, stop, norm, last=False)
