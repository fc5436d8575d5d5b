"""One program for all steps: no break, nothing compiled anew, and the numbers of the plain path.

A machine without CUDA has no kernel for packed rows: there they are traced on the meta device.
"""

from dataclasses import replace
from itertools import islice

import pytest
import torch
from static_batches import small_bert, static_source
from torch._dynamo.testing import CompileCounterWithBackend

from bert_core.config import IGNORE_INDEX
from bert_core.model.bert import Bert
from bert_core.pretraining import compute_loss
from bert_core.training.loop import compiled


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def micro_batches(packed):
    """The micro-batches of some steps, with the counts of their steps."""
    found = []
    for step in islice(static_source(packed=packed).steps(0), 4 if packed else 2):
        found += [(batch, step.counts) for batch in step.micro_batches]
    assert packed or len({batch.num_real_tokens for batch, _ in found}) > 2
    assert len({counts["num_predictions"] for _, counts in found}) > 1
    return found


def results(loss, model, batch, counts):
    model.zero_grad()
    value, sums = loss(model, batch, **counts)
    value.backward()
    return [value.detach(), sums, *(each.grad for each in model.parameters())]


def test_padded_rows_are_compiled_with_and_without_a_mask_and_have_the_plain_numbers():
    torch.manual_seed(0)
    model = Bert.for_pretraining(small_bert(hidden_dropout_prob=0.0)).double()
    counter = CompileCounterWithBackend("aot_eager")
    program = compiled(compute_loss, backend=counter)
    seen = set()
    for batch, counts in micro_batches(packed=False):
        wanted = results(compute_loss, model, batch, counts)
        found = results(program, model, batch, counts)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)  # the sums are float32
        seen.add(batch.layout.is_full)
        assert counter.frame_count == len(seen)
    assert seen == {False, True}


@pytest.mark.parametrize("is_decoder", [False, True])
def test_packed_rows_are_compiled_once(is_decoder):
    model = Bert.for_pretraining(small_bert(is_decoder=is_decoder)).to("meta", torch.bfloat16)
    # Not "aot_eager", which has no gradient for cross entropy on this device.
    counter = CompileCounterWithBackend("eager")
    program = compiled(compute_loss, backend=counter)
    for batch, counts in micro_batches(packed=True):
        value, sums, *gradients = results(program, model, batch.to("meta"), counts)
        assert (value.shape, sums.shape) == ((), (6,))
        assert all(each is not None for each in gradients)
    assert counter.frame_count == 1


def test_a_batch_without_labels_is_no_division_by_zero():
    model = Bert.for_pretraining(small_bert())
    batch, _ = micro_batches(packed=False)[0]
    ignored = {
        name: torch.full_like(getattr(batch, name), IGNORE_INDEX)
        for name in ("masked_ids", "next_sentence")
    }
    program = compiled(compute_loss, backend="eager")
    loss, sums = program(model, replace(batch, **ignored), num_predictions=0, num_rows=0)
    assert loss.item() == 0 and sums.tolist() == [0] * 6


def test_what_leaves_the_program_is_an_error():
    def reads_the_loss(model, batch, **counts):
        loss, sums = compute_loss(model, batch, **counts)
        return (loss if loss > 0 else -loss), sums

    model = Bert.for_pretraining(small_bert())
    batch, counts = micro_batches(packed=False)[0]
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(reads_the_loss, backend="aot_eager")(model, batch, **counts)


@pytest.mark.slow
def test_the_real_compiler_gives_the_plain_numbers():
    torch.manual_seed(0)
    model = Bert.for_pretraining(small_bert(hidden_dropout_prob=0.0))
    program = compiled(compute_loss)
    for batch, counts in micro_batches(packed=False)[:2]:
        wanted = results(compute_loss, model, batch, counts)
        found = results(program, model, batch, counts)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
