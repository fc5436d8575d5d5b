import pytest
import torch
from torch.nn import functional as F

from bert_core.model import attention_dropout
from bert_core.model.attention_dropout import attention_with_dropout
from bert_core.model.dropout import keep_mask

SHAPE = (2, 7, 3, 4, 8)  # sequences, tokens, three, heads, size


def a_block(dtype):
    return torch.randn(SHAPE, dtype=dtype, generator=torch.Generator().manual_seed(0))


def plain(block, mask, bias, share_kept):
    """The same with torch's operations, one after the other."""
    query, key, value = block.permute(2, 0, 3, 1, 4)
    scores = query @ key.mT / SHAPE[-1] ** 0.5
    if bias is not None:
        scores = scores + bias
    kept = scores.softmax(-1) * mask.view(scores.shape) / share_kept
    return (kept @ value).transpose(1, 2)


@pytest.mark.parametrize("masked", [False, True])
def test_equals_plain_operations_with_the_same_mask(masked):
    torch.manual_seed(3)
    block = a_block(torch.float64).requires_grad_()
    bias = None
    if masked:
        bias = torch.zeros(2, 1, 1, 7, dtype=torch.float64)
        bias[1, ..., 4:] = -torch.inf
    found = attention_with_dropout(block, 0.25, bias)
    torch.manual_seed(3)
    expected = plain(block, keep_mask((8, 7, 7), 0.25, torch.float64), bias, 0.75)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(found)
    (gradient,) = torch.autograd.grad(found, block, weights)
    (expected_gradient,) = torch.autograd.grad(expected, block, weights)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-11, atol=1e-12)


def test_is_torchs_attention_when_nothing_is_dropped(monkeypatch):
    monkeypatch.setattr(
        attention_dropout, "keep_mask", lambda shape, _, dtype: torch.ones(shape, dtype=dtype)
    )
    monkeypatch.setattr(attention_dropout, "keep_probability", lambda _: 1.0)
    block = a_block(torch.float32)
    query, key, value = block.permute(2, 0, 3, 1, 4)
    expected = F.scaled_dot_product_attention(query, key, value).transpose(1, 2)
    torch.testing.assert_close(attention_with_dropout(block, 0.1), expected)
