from itertools import product

import numpy as np
import pytest
import torch

from bert_core.model import attention_blocks
from bert_core.model.attention_blocks import BLOCK_COST, blocks_of


@pytest.fixture(autouse=True)
def fresh():
    """No blocks of another BLOCK_COST."""
    blocks_of.cache_clear()
    yield
    blocks_of.cache_clear()


def test_long_rows_have_blocks_of_their_own_and_short_ones_share():
    blocks = blocks_of(((2, 200), (1, 100), (1, 12), (3, 10), (1, 4)), 12)
    shapes = [(block.start, block.stop, block.count, block.width) for block in blocks]
    assert shapes == [(0, 400, 2, 200), (400, 500, 1, 100), (500, 546, 5, 12)]
    assert blocks[0].keys is blocks[0].slots is blocks[1].tokens is None
    assert blocks[2].keys.sum(1).tolist() == [12, 10, 10, 10, 4]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("num_heads", [1, 12])
def test_no_division_is_cheaper(seed, num_heads):
    generator = np.random.default_rng(seed)
    runs = [(int(generator.integers(1, 4)), int(generator.integers(1, 90))) for _ in range(7)]
    costs = []
    for together in product((False, True), repeat=len(runs) - 1):
        groups = [[runs[0]]]
        for run, joined in zip(runs[1:], together, strict=True):
            groups[-1].append(run) if joined else groups.append([run])
        counts = [sum(count for count, _ in group) for group in groups]
        widths = [max(length for _, length in group) for group in groups]
        costs.append(cost(counts, widths, num_heads))
    blocks = blocks_of(tuple(runs), num_heads)
    found = [block.count for block in blocks], [block.width for block in blocks]
    assert cost(*found, num_heads) == min(costs)


def cost(counts, widths, num_heads):
    scores = [num_heads * count * width**2 for count, width in zip(counts, widths, strict=True)]
    return BLOCK_COST * len(counts) + sum(scores)


def test_tokens_go_to_their_slots_and_come_back(monkeypatch):
    monkeypatch.setattr(attention_blocks, "BLOCK_COST", 10**6)
    (block,) = blocks_of(((1, 4), (2, 2)), 1)
    tokens = torch.arange(1.0, 9).unsqueeze(1)
    slots = block.spread(tokens)
    assert slots.squeeze(2).tolist() == [[1, 2, 3, 4], [5, 6, 0, 0], [7, 8, 0, 0]]
    assert torch.equal(block.gather(slots), tokens)
    real = block.keys.flatten()
    assert torch.equal(tokens[block.tokens][real], slots.flatten(0, 1)[real])


def test_hidden_are_empty_slots_or_what_comes_later(monkeypatch):
    (full,) = blocks_of(((2, 3),), 1)
    assert full.hidden(causal=False) is None
    later = [[False, True, True], [False, False, True], [False, False, False]]
    assert full.hidden(causal=True).tolist() == [later]
    monkeypatch.setattr(attention_blocks, "BLOCK_COST", 10**6)
    blocks_of.cache_clear()
    (block,) = blocks_of(((1, 3), (1, 1)), 1)
    assert block.hidden(causal=False).tolist() == [[[False] * 3], [[False, True, True]]]
    assert block.hidden(causal=True).tolist() == [later]


def test_a_batch_of_nothing_has_no_blocks():
    assert blocks_of((), 1) == ()


def test_rows_of_other_lengths_can_be_kept_apart():
    runs = ((2, 5), (1, 4), (3, 2))
    (together,) = blocks_of(runs, 4)
    assert together.keys is not None
    apart = blocks_of(runs, 4, apart=True)
    assert [(each.count, each.width, each.keys) for each in apart] == [
        (count, length, None) for count, length in runs
    ]
    assert [(each.start, each.stop) for each in apart] == [(0, 10), (10, 14), (14, 20)]
