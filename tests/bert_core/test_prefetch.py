import threading

import pytest
import torch
from static_batches import static_source

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


@pytest.mark.parametrize("packed", [False, True])
def test_the_thread_pins_every_tensor_where_that_is_asked_for(packed, monkeypatch):
    """Locked memory takes CUDA: here each tensor says who asked for it."""
    asked = []

    def pin_memory(tensor):
        asked.append((threading.current_thread().name.split("_")[0], id(tensor)))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    source = static_source(packed=packed)
    next(source.steps(0))
    assert asked == []
    step = next(source.steps(0, ahead=1, pinned=True))
    for batch in step.micro_batches:
        offsets = batch.layout.cu_seqlens if packed else batch.layout.mask
        tensors = [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
        assert len(tensors) == 6
        for tensor in [*tensors, offsets]:
            assert ("batches", id(tensor)) in asked
