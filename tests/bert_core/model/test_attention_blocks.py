from itertools import product

import numpy as np
import pytest
import torch

from bert_core.model import attention_blocks
from bert_core.model.attention_blocks import BLOCK_COST, blocks_of


def cost(blocks):
    return sum(BLOCK_COST + block.count * block.width**2 for block in blocks)


def test_long_rows_have_blocks_of_their_own_and_short_ones_share():
    blocks = blocks_of([(2, 200), (1, 100), (1, 12), (3, 10), (1, 4)])
    shapes = [(block.start, block.stop, block.count, block.width) for block in blocks]
    assert shapes == [(0, 400, 2, 200), (400, 500, 1, 100), (500, 546, 5, 12)]
    assert blocks[0].keys is blocks[0].slots is blocks[1].keys is None
    assert blocks[2].keys.sum(1).tolist() == [12, 10, 10, 10, 4]


@pytest.mark.parametrize("seed", range(20))
def test_no_division_is_cheaper(seed):
    generator = np.random.default_rng(seed)
    runs = [(int(generator.integers(1, 4)), int(generator.integers(1, 90))) for _ in range(7)]
    costs = []
    for together in product((False, True), repeat=len(runs) - 1):
        groups = [[runs[0]]]
        for run, joined in zip(runs[1:], together, strict=True):
            groups[-1].append(run) if joined else groups.append([run])
        costs.append(
            sum(
                BLOCK_COST + sum(count for count, _ in group) * max(n for _, n in group) ** 2
                for group in groups
            )
        )
    assert cost(blocks_of(runs)) == min(costs)


def test_tokens_go_to_their_slots_and_come_back(monkeypatch):
    monkeypatch.setattr(attention_blocks, "BLOCK_COST", 10**6)
    (block,) = blocks_of([(1, 4), (2, 2)])
    tokens = torch.arange(1.0, 9).unsqueeze(1)
    slots = block.spread(tokens)
    assert slots.squeeze(2).tolist() == [[1, 2, 3, 4], [5, 6, 0, 0], [7, 8, 0, 0]]
    assert torch.equal(block.gather(slots), tokens)
    out = torch.empty(8, 1)
    block.gather(slots, out=out)
    assert torch.equal(out, tokens)
    bias = block.bias(torch.float32)
    assert bias.shape == (3, 1, 1, 4)
    assert bias[1].flatten().tolist() == [0, 0, -torch.inf, -torch.inf]


def test_a_batch_of_nothing_has_no_blocks():
    assert blocks_of([]) == ()
