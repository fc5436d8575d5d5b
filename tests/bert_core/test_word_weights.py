"""The weights of words, beside autograd of what they are defined as."""

import pytest
import torch
from torch.nn import functional as F

from bert_core.model import word_weights as module
from bert_core.model.word_weights import word_weights


@pytest.mark.parametrize("at_once", [1, 7, 512])
def test_weights_and_gradients_are_those_of_the_definition(monkeypatch, at_once):
    monkeypatch.setattr(module, "_TOKENS_AT_ONCE", at_once)
    torch.manual_seed(0)
    counts = [3, 1, 9, 4]
    features, table, bias = (
        torch.randn(*size, dtype=torch.float64).float().requires_grad_()
        for size in ((sum(counts), 8), (50, 8), (50,))
    )
    told = torch.randn(len(counts), 50)

    def gradients(weights):
        return torch.autograd.grad((weights * told).sum(), (features, table, bias))

    found = word_weights(features, table, bias, counts)
    logits = F.linear(features, table, bias).split(counts)
    expected = torch.stack([each.max(0).values.relu().log1p() for each in logits])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert 0.1 < (found == 0).float().mean() < 0.9
    for mine, wanted in zip(gradients(found), gradients(expected), strict=True):
        torch.testing.assert_close(mine, wanted, atol=1e-5, rtol=1e-5)


def test_in_bfloat16_weights_are_near():
    torch.manual_seed(0)
    features, table, bias = torch.randn(6, 16), torch.randn(40, 16), torch.randn(40)
    whole = word_weights(features, table, bias, [2, 4])
    with torch.autocast("cpu", torch.bfloat16):
        half = word_weights(features, table, bias, [2, 4])
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, whole, atol=0.1, rtol=0.05)


def test_a_long_text_has_no_more_logits_at_once():
    counts = [3, 8192, 500, 20, 600]
    blocks = list(module._blocks(counts))
    assert all(block[-1][2] - block[0][1] <= 512 for block in blocks)
    pieces = [piece for block in blocks for piece in block]
    assert [piece[1] for piece in pieces[1:]] == [piece[2] for piece in pieces[:-1]]
    found = [sum(end - begin for text, begin, end in pieces if text == each) for each in range(5)]
    assert found == counts
