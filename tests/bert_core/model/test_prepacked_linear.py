"""The same products as `F.linear`'s, wherever that is asked for them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bert_core.model.prepacked_linear import PrepackedLinear


@pytest.fixture
def linear():
    torch.manual_seed(0)
    return nn.Linear(96, 160)


@pytest.mark.parametrize("num_rows", [0, 1, 7, 64, 300])
def test_the_same_to_rounding(linear, num_rows):
    rows = torch.randn(num_rows, 96)
    with torch.inference_mode():
        found, wanted = PrepackedLinear(linear)(rows), linear(rows)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def test_without_bias(linear):
    linear.bias = None
    rows = torch.randn(5, 96)
    torch.testing.assert_close(PrepackedLinear(linear)(rows), linear(rows), atol=1e-5, rtol=0)


def test_rows_that_do_not_lie_end_to_end(linear):
    rows = torch.randn(96, 9).t()
    torch.testing.assert_close(PrepackedLinear(linear)(rows), linear(rows), atol=1e-5, rtol=0)


def test_as_autocast_has_it(linear):
    packed, rows = PrepackedLinear(linear), torch.randn(33, 96)
    for _ in range(2):  # laid out once, and kept
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            found, wanted = packed(rows), linear(rows)
        assert found.dtype == wanted.dtype == torch.bfloat16
        torch.testing.assert_close(found.float(), wanted.float(), atol=0.02, rtol=0)
    torch.testing.assert_close(packed(rows), linear(rows), atol=1e-5, rtol=0)  # float32 again


def test_gradients_of_what_goes_in(linear):
    first, second = (torch.randn(4, 96).requires_grad_() for _ in range(2))
    second.data.copy_(first.data)
    PrepackedLinear(linear)(first).square().sum().backward()
    linear(second).square().sum().backward()
    torch.testing.assert_close(first.grad, second.grad)


def test_its_state_is_that_of_a_linear_map(linear):
    state = PrepackedLinear(linear).state_dict()
    assert state.keys() == linear.state_dict().keys()
    for name, value in linear.state_dict().items():
        assert torch.equal(state[name], value)


def test_a_linear_map_is_what_torch_computes(linear):
    """Torch's own names for it begin with an underscore: a version without them fails here."""
    rows = torch.randn(3, 96)
    packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
    found = torch.ops.mkldnn._linear_pointwise(rows, packed, linear.bias, "none", [], "")
    torch.testing.assert_close(found, F.linear(rows, linear.weight, linear.bias), atol=1e-5, rtol=0)
