import math

import pytest
import torch
from torch.nn import functional as F

from bert_core.model import attention_blocks, attention_dropout
from bert_core.model.attention_blocks import blocks_of
from bert_core.model.attention_dropout import attention_with_dropout
from bert_core.model.dropout import keep_mask

HEADS, SIZE = 4, 8
RUNS = ((2, 7), (1, 5), (2, 3), (1, 1))
TOKENS = sum(count * length for count, length in RUNS)


def projections(dtype):
    shape = (TOKENS, 3, HEADS, SIZE)
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


def plain(split, mask, blocks, share_kept, causal):
    """The same with torch's operations, one sequence after the other."""
    mixed, first_score = [], 0
    for block in blocks:
        real = torch.ones(block.count, block.width).bool() if block.keys is None else block.keys
        shape = HEADS, block.count, block.width, block.width
        masks = mask[first_score:][: math.prod(shape)].view(shape)
        rows = split[block.start : block.stop].split(real.sum(1).tolist())
        for number, row in enumerate(rows):
            query, key, value = row.permute(1, 2, 0, 3)
            drawn = masks[:, number, : len(row), : len(row)]
            scores = query @ key.mT / SIZE**0.5
            if causal:
                later = torch.arange(len(row)) > torch.arange(len(row)).unsqueeze(1)
                scores = scores.masked_fill(later, -torch.inf)
            kept = scores.softmax(-1) * drawn / share_kept
            mixed.append((kept @ value).transpose(0, 1))
        first_score += math.prod(shape)
    return torch.cat(mixed)


@pytest.mark.parametrize(("cost", "num_blocks"), [(0, 4), (120, 2), (10**6, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_equals_plain_operations_with_the_same_mask(cost, num_blocks, causal, monkeypatch):
    monkeypatch.setattr(attention_blocks, "BLOCK_COST", cost)
    blocks_of.cache_clear()
    blocks = blocks_of(RUNS, HEADS)
    assert len(blocks) == num_blocks
    torch.manual_seed(3)
    split = projections(torch.float64).requires_grad_()
    found = attention_with_dropout(split, 0.25, blocks, causal)
    torch.manual_seed(3)
    num_scores = sum(HEADS * block.count * block.width**2 for block in blocks)
    mask = keep_mask((num_scores,), 0.25, torch.float64)
    expected = plain(split, mask, blocks, 0.75, causal)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(found)
    (gradient,) = torch.autograd.grad(found, split, weights)
    (expected_gradient,) = torch.autograd.grad(expected, split, weights)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("cost", [0, 10**6])
def test_is_torchs_attention_when_nothing_is_dropped(cost, monkeypatch):
    monkeypatch.setattr(
        attention_dropout, "keep_mask", lambda shape, _, dtype: torch.ones(shape, dtype=dtype)
    )
    monkeypatch.setattr(attention_dropout, "keep_probability", lambda _: 1.0)
    monkeypatch.setattr(attention_blocks, "BLOCK_COST", cost)
    blocks_of.cache_clear()
    split = projections(torch.float32)
    expected, start = [], 0
    for count, length in RUNS:
        for _ in range(count):
            query, key, value = split[start : start + length].permute(1, 2, 0, 3)
            expected.append(F.scaled_dot_product_attention(query, key, value).transpose(0, 1))
            start += length
    found = attention_with_dropout(split, 0.1, blocks_of(RUNS, HEADS))
    torch.testing.assert_close(found, torch.cat(expected))
