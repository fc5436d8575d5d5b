"""Steps on an accelerator: no part waits for the device, and one program computes all steps.

The meta device and fake tensors have no values: reading one raises. That is what a host sync is, so
a whole training step that runs there has none. What does wait on CUDA and not there, a copy from
the host's ordinary memory, is refused by `NoBlockingCopies`. A machine without CUDA has no kernel
for packed rows: they are traced on the meta device.
"""

from itertools import islice

import pytest
import torch
from static_batches import small_bert, static_source
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import clip_grad_norm_
from torch.utils._python_dispatch import TorchDispatchMode

from bert_core.model.bert import Bert
from bert_core.pretraining import compute_loss
from bert_core.settings import OptimizerSettings
from bert_core.training import loop
from bert_core.training.loop import TrainingState, compiled, train
from bert_core.training.optimization import create_optimizer

THERE = torch.device("meta")


class NoBlockingCopies(TorchDispatchMode):
    """Refuses copies between host and device that the host would wait for."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in ("_to_copy", "copy_"):
            source = args[1] if name == "copy_" else args[0]
            blocks = not (kwargs.get("non_blocking") or (name == "copy_" and args[2:] == (True,)))
            if blocks and source.device.type != result.device.type:
                raise RuntimeError(f"a blocking copy from {source.device} to {result.device}")
        return result


@pytest.fixture
def copies(monkeypatch):
    """What the loop brings to the host: its loop, one step late and not waited for."""
    taken = []

    def copy_to_host(values):
        taken.append(values.device)
        return torch.zeros(values.shape, dtype=values.dtype), None

    monkeypatch.setattr(loop, "_copy_to_host", copy_to_host)
    return taken


def run(packed, optimizer="adamw", loss=compute_loss, steps=3):
    """Some steps on a device without values; in bfloat16, as packed rows want it."""
    torch.manual_seed(0)
    model = Bert.for_pretraining(small_bert()).to(THERE, torch.bfloat16)
    state = TrainingState(model, create_optimizer(model, OptimizerSettings(name=optimizer)))
    batches = list(islice(static_source(packed=packed).steps(0), steps))
    assert all(len(step.micro_batches) > 1 for step in batches)
    with NoBlockingCopies():
        results = train(
            state,
            iter(batches),
            loss,
            total_steps=steps,
            schedule=lambda _: 1e-3,
            max_gradient_norm=1.0,
            device=THERE,
            autocast_dtype=None,
            seed=0,
        )
        found = list(results)
    assert state.step == steps and isinstance(state.num_tokens_seen, torch.Tensor)
    return found


@pytest.mark.parametrize(("packed", "optimizer"), [(False, "adamw"), (True, "lamb")])
def test_a_step_reads_nothing_but_its_late_readings(packed, optimizer, copies):
    found = run(packed, optimizer)
    assert copies == [THERE] * 3
    for result in found:
        tensors = (result.loss, result.sums, result.gradient_norm, result.num_real_tokens)
        assert {tensor.device for tensor in tensors} == {THERE}


def _if_positive(loss):
    return loss if loss > 0 else -loss


SYNCS = {
    "item": lambda loss: loss / loss.item(),
    "cpu": lambda loss: loss * loss.detach().cpu().mean(),
    "copy": lambda loss: loss * loss.detach().to("cpu", non_blocking=True).mean(),
    "nonzero": lambda loss: loss * len(loss.detach().reshape(1).nonzero()),
    "if": _if_positive,
    "mask": lambda loss: loss.reshape(1)[loss.reshape(1) > 0].sum(),
    "masked_select": lambda loss: loss.reshape(1).masked_select(loss.reshape(1) > 0).sum(),
    "list to the device": lambda loss: loss * torch.tensor([7.0, 8.0]).to(THERE).sum(),
}


@pytest.mark.parametrize("name", SYNCS)
def test_a_sync_in_the_loss_is_seen(name, copies):
    def waiting_loss(model, batch, **counts):
        loss, sums = compute_loss(model, batch, **counts)
        return SYNCS[name](loss), sums

    with pytest.raises((RuntimeError, NotImplementedError)):
        run(packed=True, loss=waiting_loss, steps=1)


def test_a_sync_around_the_loss_is_seen(copies, monkeypatch):
    def step_that_looks(optimizer, learning_rate):
        norm = clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
        if norm < 2.0:
            optimizer.step()

    monkeypatch.setattr(loop, "_step_optimizer", step_that_looks)
    with pytest.raises(RuntimeError):
        run(packed=True, steps=1)


@pytest.mark.parametrize("name", ["adamw", "lamb", "stableadamw"])
def test_the_optimizer_of_cuda_reads_nothing(name):
    """Its fused kernel, LAMB's kernels for many tensors, and clipping, on tensors of no values."""
    with FakeTensorMode():
        shapes = [(4, 4), (4,), (3, 3)]
        tensors = [torch.nn.Parameter(torch.empty(shape, device="cuda")) for shape in shapes]
        model = torch.nn.ParameterList(tensors)
        for parameter in tensors:
            parameter.grad = torch.empty_like(parameter)
        optimizer = create_optimizer(model, OptimizerSettings(name=name))
        assert name != "adamw" or optimizer.defaults["fused"]
        for _ in range(2):
            clip_grad_norm_(tensors, 1.0)
            optimizer.step()
        with pytest.raises(RuntimeError):
            float(optimizer.state[tensors[0]]["exp_avg"].sum())


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
    return [value.detach(), sums, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.slow
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


@pytest.mark.parametrize("is_decoder", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_packed_rows_are_compiled_once(is_decoder):
    model = Bert.for_pretraining(small_bert(is_decoder=is_decoder)).to("meta", torch.bfloat16)
    # Not "aot_eager", which has no gradient for cross entropy on this device.
    counter = CompileCounterWithBackend("eager")
    program = compiled(compute_loss, backend=counter)
    for batch, counts in micro_batches(packed=True):
        value, sums, *gradients = results(program, model, batch.to("meta"), counts)
        assert (value.shape, sums.shape) == ((), (6,))
        assert all(gradient is not None for gradient in gradients)
    assert counter.frame_count == 1


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
