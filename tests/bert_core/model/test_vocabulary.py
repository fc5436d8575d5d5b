import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from bert_core.config import IGNORE_INDEX
from bert_core.model.cpu import vocabulary
from bert_core.model.cpu.operations import CpuOperations
from bert_core.model.vocabulary import project, vocabulary_cross_entropy

on_cpu = CpuOperations().vocabulary_cross_entropy


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
def test_equals_projection_and_cross_entropy(monkeypatch, dtype, scale, tolerance, block_places):
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
