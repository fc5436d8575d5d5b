"""Dropout, the cross entropy over the vocabulary, and the choice of operations by device."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from bert_core.config import IGNORE_INDEX
from bert_core.model.bert import Bert
from bert_core.model.cpu import vocabulary
from bert_core.model.cpu.dropout import add_dropout, dropout, keep_mask, keep_probability
from bert_core.model.operations import (
    CpuOperations,
    OnDevice,
    TorchOperations,
    project,
    use_operations,
    vocabulary_cross_entropy,
)

on_cpu = CpuOperations().vocabulary_cross_entropy


@pytest.mark.parametrize("probability", [0.1, 0.25, 0.5])
def test_drops_the_share_that_was_asked_for(probability):
    torch.manual_seed(0)
    places = 4_000_000
    mask = keep_mask((places // 4, 4), probability, torch.float32)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    assert keep_probability(probability) == pytest.approx(1 - probability, abs=1e-5)
    deviation = (probability * (1 - probability) / places) ** 0.5
    assert mask.mean().item() == pytest.approx(1 - probability, abs=5 * deviation)
    columns = mask.mean(0) - (1 - probability)
    assert columns.abs().max() < 10 * deviation
    # Neighbours, in either direction, are independent.
    for left, right in ((mask[:, 0], mask[:, 1]), (mask[:-1, 0], mask[1:, 0])):
        assert torch.corrcoef(torch.stack([left, right]))[0, 1].abs() < 5e-3


def test_scales_what_it_keeps_and_its_gradient_alike():
    torch.manual_seed(0)
    states = torch.rand(64, 33, dtype=torch.float64).add_(1).requires_grad_()
    dropped = dropout(states, 0.1, training=True)
    scale = 1 / keep_probability(0.1)
    kept = dropped != 0
    assert torch.equal(dropped[kept], (states * scale)[kept])
    dropped.sum().backward()
    assert torch.equal(states.grad, kept * torch.tensor(scale, dtype=torch.float64))


def test_adding_is_the_sum():
    residual, states = torch.randn(2, 40, 8).unbind()
    torch.manual_seed(5)
    added = add_dropout(residual, states, 0.3, training=True)
    torch.manual_seed(5)
    torch.testing.assert_close(added, residual + dropout(states, 0.3, training=True))
    assert torch.equal(add_dropout(residual, states, 0.3, training=False), residual + states)


def test_does_nothing_when_not_training_or_at_zero():
    states = torch.randn(4, 4)
    assert dropout(states, 0.5, training=False) is states
    assert dropout(states, 0.0, training=True) is states


def test_the_seed_alone_decides_whatever_the_threads():
    before, masks = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(7)
        keep_mask((3,), 0.5, torch.float32)
        masks.append(keep_mask((1000, 333), 0.1, torch.float32))
    torch.set_num_threads(before)
    assert torch.equal(*masks)


def operations_of(model):
    return [part.operations for part in model.modules() if isinstance(part, OnDevice)]


def test_moving_a_model_chooses_its_operations(small_config):
    """No CUDA here: a device without values stands for it."""
    model = Bert.for_pretraining(small_config)
    assert len(operations_of(model)) > 10
    assert all(isinstance(each, CpuOperations) for each in operations_of(model))
    inference = CpuOperations(keeps_rows_apart=True)
    use_operations(model, inference)
    assert all(each is inference for each in operations_of(model.to("cpu")))
    assert all(isinstance(each, TorchOperations) for each in operations_of(model.to("meta")))
    back = operations_of(model.to_empty(device="cpu"))
    assert all(isinstance(each, CpuOperations) for each in back)


@pytest.mark.parametrize("operations", [CpuOperations(), TorchOperations()])
def test_operations_agree_without_dropout(small_config, operations, some_rows):
    rows = some_rows([9, 5, 5, 2], vocab_size=small_config.vocab_size)
    model = Bert.for_pretraining(small_config).eval()
    expected = rows.loss(model, packed=False)
    use_operations(model, operations)
    for value, wanted in zip(rows.loss(model, packed=False), expected, strict=True):
        torch.testing.assert_close(value, wanted)


def inputs(dtype, scale=1.0, predictions=37, words=5000):
    random = torch.Generator().manual_seed(0)
    features = torch.randn(predictions, 16, dtype=dtype, generator=random) * scale
    weight = torch.randn(words, 16, dtype=dtype, generator=random)
    bias = torch.randn(words, dtype=dtype, generator=random)
    labels = torch.randint(0, words, (predictions,), generator=random)
    labels[::4] = (features @ weight.T + bias).argmax(1)[::4]
    labels[1::9] = IGNORE_INDEX
    return [each.requires_grad_() for each in (features, weight, bias)], labels


@pytest.mark.parametrize("block_places", [1, 40_000, 10_000_000])
@pytest.mark.parametrize(
    ("dtype", "scale", "tolerance"),
    [
        (torch.float64, 1.0, 1e-12),
        (torch.float32, 1.0, 1e-5),
        (torch.float32, 50.0, 1e-5),  # logits in the thousands: exp needs its shift
        (torch.float64, 50.0, 1e-12),
    ],
)
def test_loss_equals_projection_and_cross_entropy(
    monkeypatch, dtype, scale, tolerance, block_places
):
    monkeypatch.setattr(vocabulary, "_BLOCK_PLACES", block_places)
    (features, weight, bias), labels = inputs(dtype, scale)
    logits = F.linear(features, weight, bias)
    expected = F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum") / 11
    loss, hits = on_cpu(features, weight, bias, labels, 11)
    assert loss.item() == pytest.approx(expected.item(), rel=tolerance)
    counted = labels != IGNORE_INDEX
    assert hits.item() == ((logits.argmax(1) == labels) & counted).sum().item() > 5
    # A loss that is weighted afterwards takes its gradient along.
    found = torch.autograd.grad(loss * 3, (features, weight, bias))
    wanted = torch.autograd.grad(expected * 3, (features, weight, bias))
    for left, right in zip(found, wanted, strict=True):
        assert (left - right).norm() <= tolerance * right.norm()


@pytest.mark.parametrize("scale", [1.0, 50.0])
@pytest.mark.parametrize("predictions", [300, 512])
def test_by_convolution_as_without(monkeypatch, predictions, scale):
    """300 less those without a label are filled up to 320, 512 to 512."""
    parameters, labels = inputs(torch.float32, scale, predictions)
    found = {}
    for is_faster in (False, True):
        monkeypatch.setattr("bert_core.model.cpu.linear.onednn_is_faster_here", lambda: is_faster)  # noqa: B023
        loss, hits = on_cpu(*parameters, labels, 11)
        found[is_faster] = (loss, hits, *torch.autograd.grad(loss, parameters))
    for value, wanted in zip(found[True], found[False], strict=True):
        assert value.shape == wanted.shape
        assert (value - wanted).float().norm() <= 1e-5 * wanted.float().norm()


def test_agrees_with_what_other_devices_compute():
    (features, weight, bias), labels = inputs(torch.float64)
    fused, hits = on_cpu(features, weight, bias, labels, 7)
    plain, plain_hits = vocabulary_cross_entropy(features, weight, bias, labels, 7)
    torch.testing.assert_close(fused, plain)
    assert hits == plain_hits


def test_without_predictions_loss_and_gradients_are_zero():
    (features, weight, bias), labels = inputs(torch.float32)
    loss, hits = on_cpu(features, weight, bias, torch.full_like(labels, IGNORE_INDEX), 1)
    loss.backward()
    assert (loss.item(), hits.item()) == (0, 0)
    assert all((each.grad == 0).all() for each in (features, weight, bias))


def test_evaluation_holds_no_gradient():
    (features, weight, bias), labels = inputs(torch.float32)
    with torch.no_grad():
        loss, _ = on_cpu(features, weight, bias, labels, 5)
    assert not loss.requires_grad


@pytest.mark.parametrize("words", [100, 128])
def test_words_of_zeros_after_the_last_change_nothing(words):
    parameters, _ = inputs(torch.float64, words=words)
    logits, plain = project(*parameters, 64), F.linear(*parameters)
    assert logits.shape == plain.shape
    torch.testing.assert_close(logits, plain)
    factors = torch.randn(plain.shape, dtype=plain.dtype)
    found = torch.autograd.grad((logits * factors).sum(), parameters)
    wanted = torch.autograd.grad((plain * factors).sum(), parameters)
    for left, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(left, right)


def test_cuda_multiplies_with_a_multiple_of_64_words(monkeypatch):
    """On tensors without values, of which a build without CUDA computes products and not all."""
    widths = []
    monkeypatch.setattr(F, "cross_entropy", lambda logits, *_, **__: logits.sum())

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func.overloadpacket.__name__ in ("mm", "addmm"):
                widths.append(result.shape[-1])
            return result

    with FakeTensorMode(), torch.no_grad(), Products():
        features, weight = (torch.empty(rows, 16, device="cuda") for rows in (7, 30_522))
        labels = torch.empty(7, dtype=torch.int64, device="cuda")
        bias = torch.empty(30_522, device="cuda")
        loss, hits = vocabulary_cross_entropy(features, weight, bias, labels, 3)
        assert project(features, weight, bias, 64).shape == (7, 30_522)
    assert (loss.device.type, hits.shape, widths[:1]) == ("cuda", (), [30_528])
