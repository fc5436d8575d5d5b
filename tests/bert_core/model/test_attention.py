"""Attention is the paper's equation in every layout, in blocks on a CPU, and with dropout."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bert_core.errors import UserError
from bert_core.model.cpu import attention as cpu_attention
from bert_core.model.cpu.attention import BLOCK_COST, attention_with_dropout, blocks_of
from bert_core.model.cpu.dropout import keep_mask
from bert_core.model.layout import Packed, Padded
from bert_core.model.operations import CpuOperations, _packed, attention

HEADS, SIZE = 3, 8
on_cpu = CpuOperations().attention


def by_hand(query_key_value, causal=False, reach=None):
    """Equation 1 of Vaswani et al. 2017 for one sequence, head by head and token by token."""
    query, key, value = query_key_value.view(-1, 3, HEADS, SIZE).unbind(1)
    left = right = len(query) if reach is None else reach
    right = 0 if causal else right
    mixed = []
    for head in range(HEADS):
        scores = query[:, head] @ key[:, head].T / SIZE**0.5
        seen = [slice(max(place - left, 0), place + right + 1) for place in range(len(query))]
        each = [scores[place, at].softmax(-1) @ value[at, head] for place, at in enumerate(seen)]
        mixed.append(torch.stack(each))
    return torch.stack(mixed, 1).flatten(1)


def projections(tokens):
    return torch.randn(tokens, 3 * HEADS * SIZE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("lengths", [[5], [4, 4, 4], [4, 4, 1, 6, 0]])
@pytest.mark.parametrize("cost", [0, 10**6])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_is_the_equation_in_each_sequence(lengths, cost, causal, monkeypatch):
    """In blocks of one length, and all in one block."""
    monkeypatch.setattr(cpu_attention, "BLOCK_COST", cost)
    packed = projections(sum(lengths))
    parts = [part for part in packed.split(lengths) if len(part)]
    expected = torch.cat([by_hand(part, causal) for part in parts])
    layout = Packed.from_lengths(lengths)
    for operations in (CpuOperations(), CpuOperations(keeps_rows_apart=True)):
        found = operations.attention(packed, HEADS, layout, causal=causal)
        torch.testing.assert_close(found, expected)


def test_what_evaluation_has_seen_serves_training():
    layout = Packed.from_lengths([4, 3])
    with torch.inference_mode():
        on_cpu(projections(7), HEADS, layout)
    packed = projections(7).requires_grad_()
    for dropout in (0.0, 0.1):
        on_cpu(packed, HEADS, layout, dropout).sum().backward()
    assert packed.grad.isfinite().all()


@pytest.mark.parametrize("lengths", [[6, 6], [6, 2, 1]])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("compute", [attention, on_cpu], ids=["torch", "cpu"])
def test_padded_is_the_equation_over_real_tokens(lengths, causal, compute):
    layout = Padded.from_lengths(lengths, 6)
    padded = projections(6 * len(lengths))
    rows = [padded[6 * i : 6 * i + n] for i, n in enumerate(lengths)]
    expected = torch.cat([by_hand(row, causal) for row in rows])
    found = compute(padded, HEADS, layout, causal=causal)[layout.mask.flatten()]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("compute", [attention, on_cpu], ids=["torch", "cpu"])
def test_a_row_of_padding_alone_spoils_nothing(dropout, causal, compute):
    padded = projections(12).requires_grad_()
    mixed = compute(padded, HEADS, Padded.from_lengths([6, 0], 6), dropout, causal=causal)
    mixed[:6].sum().backward()
    assert mixed.isfinite().all()
    assert padded.grad.isfinite().all()
    assert (padded.grad[6:] == 0).all()


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_zeroes_no_sequence_and_keeps_the_mean(causal):
    torch.manual_seed(0)
    layout = Packed.from_lengths([5, 5, 3])
    packed = projections(13)
    plain = on_cpu(packed, HEADS, layout, causal=causal)
    samples = torch.stack([on_cpu(packed, HEADS, layout, 0.2, causal=causal) for _ in range(2000)])
    assert not torch.equal(samples[0], samples[1])
    torch.testing.assert_close(samples.mean(0), plain, atol=0.08, rtol=0)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_a_causal_gradient_goes_to_the_left_alone(dropout, autocast, packed):
    """Whichever way it is computed: what a token makes of itself no later token decides."""
    layout = Packed.from_lengths([7, 5]) if packed else Padded.from_lengths([7, 5], 7)
    second = 7  # the first token of the second sequence in both layouts
    given = projections(12 if packed else 14).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        mixed = on_cpu(given * 1, HEADS, layout, dropout, causal=True)
    mixed[[2, second + 3]].sum().backward()
    touched = given.grad.abs().sum(1) > 0
    assert not touched[3:second].any() and not touched[second + 4 :].any()
    if not dropout:  # which may drop one
        assert touched[:3].all() and touched[second : second + 4].all()


@pytest.mark.parametrize(("causal", "reach"), [(False, None), (True, None), (False, 2)])
def test_the_packed_kernel_is_told_how_far_to_look(causal, reach, monkeypatch):
    """The kernel itself runs on CUDA alone: here an equation stands for it that takes the same."""

    def kernel(query, key, value, begins, _, longest, __, *, window_size=(-1, -1)):
        assert longest == 6 and window_size in ((-1, -1), (-1, 0), (2, 2))
        joined = torch.stack([query, key, value], 1).flatten(1).float()
        rows = joined.split(begins.diff().tolist())
        near = 2 if window_size == (2, 2) else None
        mixed = torch.cat([by_hand(row, window_size == (-1, 0), near) for row in rows])
        return mixed.view(-1, HEADS, SIZE)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    lengths = [4, 6, 1]
    packed = projections(11).bfloat16()
    split = packed.view(-1, 3, HEADS, SIZE)
    found = _packed(split, Packed.from_lengths(lengths), 0.0, causal, reach).flatten(1)
    expected = torch.cat([by_hand(row.float(), causal, reach) for row in packed.split(lengths)])
    torch.testing.assert_close(found, expected)


def test_the_packed_kernel_says_what_it_lacks():
    packed, layout = projections(4).to("meta"), Packed.from_lengths([4]).to("meta")
    with pytest.raises(UserError, match="attention_probs_dropout_prob=0.1"):
        attention(packed, HEADS, layout, 0.1)
    with pytest.raises(UserError, match="16-bit"):
        attention(packed, HEADS, layout)


def test_the_packed_kernel_compiles_without_a_break():
    """Its import stands in the function, inside what is compiled; the meta device has no kernel."""
    layout = Packed.from_lengths([4, 3]).to("meta")
    packed = projections(7).to("meta", torch.bfloat16).requires_grad_()
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    mixed = compiled(packed, HEADS, layout) + compiled(packed, HEADS, layout, causal=True)
    assert mixed.shape == (7, HEADS * SIZE)
    mixed.sum().backward()
    assert packed.grad.shape == packed.shape


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
    monkeypatch.setattr(cpu_attention, "BLOCK_COST", 10**6)
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
    monkeypatch.setattr(cpu_attention, "BLOCK_COST", 10**6)
    blocks_of.cache_clear()
    (block,) = blocks_of(((1, 3), (1, 1)), 1)
    assert block.hidden(causal=False).tolist() == [[[False] * 3], [[False, True, True]]]
    assert block.hidden(causal=True).tolist() == [later]


def test_rows_of_other_lengths_can_be_kept_apart():
    runs = ((2, 5), (1, 4), (3, 2))
    (together,) = blocks_of(runs, 4)
    assert together.keys is not None
    apart = blocks_of(runs, 4, apart=True)
    assert [(each.count, each.width, each.keys) for each in apart] == [
        (count, length, None) for count, length in runs
    ]
    assert [(each.start, each.stop) for each in apart] == [(0, 10), (10, 14), (14, 20)]


DROPOUT_HEADS = 4
RUNS = ((2, 7), (1, 5), (2, 3), (1, 1))
TOKENS = sum(count * length for count, length in RUNS)


def split_projections(dtype):
    shape = (TOKENS, 3, DROPOUT_HEADS, SIZE)
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


def with_plain_operations(split, mask, blocks, share_kept, causal):
    """The same with torch's operations, one sequence after the other."""
    mixed, first_score = [], 0
    for block in blocks:
        real = torch.ones(block.count, block.width).bool() if block.keys is None else block.keys
        shape = DROPOUT_HEADS, block.count, block.width, block.width
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
    monkeypatch.setattr(cpu_attention, "BLOCK_COST", cost)
    blocks = blocks_of(RUNS, DROPOUT_HEADS)
    assert len(blocks) == num_blocks
    torch.manual_seed(3)
    split = split_projections(torch.float64).requires_grad_()
    found = attention_with_dropout(split, 0.25, blocks, causal)
    torch.manual_seed(3)
    num_scores = sum(DROPOUT_HEADS * block.count * block.width**2 for block in blocks)
    mask = keep_mask((num_scores,), 0.25, torch.float64)
    expected = with_plain_operations(split, mask, blocks, 0.75, causal)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(found)
    (gradient,) = torch.autograd.grad(found, split, weights)
    (expected_gradient,) = torch.autograd.grad(expected, split, weights)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("cost", [0, 10**6])
def test_is_torchs_attention_when_nothing_is_dropped(cost, monkeypatch):
    monkeypatch.setattr(
        cpu_attention, "keep_mask", lambda shape, _, dtype: torch.ones(shape, dtype=dtype)
    )
    monkeypatch.setattr(cpu_attention, "keep_probability", lambda _: 1.0)
    monkeypatch.setattr(cpu_attention, "BLOCK_COST", cost)
    split = split_projections(torch.float32)
    expected, start = [], 0
    for count, length in RUNS:
        for _ in range(count):
            query, key, value = split[start : start + length].permute(1, 2, 0, 3)
            expected.append(F.scaled_dot_product_attention(query, key, value).transpose(0, 1))
            start += length
    found = attention_with_dropout(split, 0.1, blocks_of(RUNS, DROPOUT_HEADS))
    torch.testing.assert_close(found, torch.cat(expected))
