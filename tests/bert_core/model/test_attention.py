import pytest
import torch

from bert_core.errors import UserError
from bert_core.model import attention_blocks
from bert_core.model.attention import _packed, attention
from bert_core.model.layout import Packed, Padded

HEADS, SIZE = 3, 8


def by_hand(query_key_value, causal=False):
    """Equation 1 of Vaswani et al. 2017 for one sequence, head by head and token by token."""
    query, key, value = query_key_value.view(-1, 3, HEADS, SIZE).unbind(1)
    mixed = []
    for head in range(HEADS):
        scores = query[:, head] @ key[:, head].T / SIZE**0.5
        seen = [each[: place + 1] if causal else each for place, each in enumerate(scores)]
        mixed.append(torch.stack([each.softmax(-1) @ value[: len(each), head] for each in seen]))
    return torch.stack(mixed, 1).flatten(1)


def projections(tokens):
    return torch.randn(tokens, 3 * HEADS * SIZE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("lengths", [[5], [4, 4, 4], [4, 4, 1, 6, 0]])
@pytest.mark.parametrize("cost", [0, 10**6])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_is_the_equation_in_each_sequence(lengths, cost, causal, monkeypatch):
    """In blocks of one length, and all in one block."""
    monkeypatch.setattr(attention_blocks, "BLOCK_COST", cost)
    attention_blocks.blocks_of.cache_clear()
    packed = projections(sum(lengths))
    parts = [part for part in packed.split(lengths) if len(part)]
    expected = torch.cat([by_hand(part, causal) for part in parts])
    layout = Packed.from_lengths(lengths)
    found = attention(packed, HEADS, layout, causal=causal)
    torch.testing.assert_close(found, expected)
    apart = attention(packed, HEADS, layout, causal=causal, apart=True)
    torch.testing.assert_close(apart, expected)


def test_what_evaluation_has_seen_serves_training():
    layout = Packed.from_lengths([4, 3])
    with torch.inference_mode():
        attention(projections(7), HEADS, layout)
    packed = projections(7).requires_grad_()
    for dropout in (0.0, 0.1):
        attention(packed, HEADS, layout, dropout).sum().backward()
    assert packed.grad.isfinite().all()


@pytest.mark.parametrize("lengths", [[6, 6], [6, 2, 1]])
@pytest.mark.parametrize("causal", [False, True])
def test_padded_is_the_equation_over_real_tokens(lengths, causal):
    layout = Padded.from_lengths(lengths, 6)
    padded = projections(6 * len(lengths))
    rows = [padded[6 * i : 6 * i + n] for i, n in enumerate(lengths)]
    expected = torch.cat([by_hand(row, causal) for row in rows])
    found = attention(padded, HEADS, layout, causal=causal)[layout.mask.flatten()]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("causal", [False, True])
def test_a_row_of_padding_alone_spoils_nothing(dropout, causal):
    padded = projections(12).requires_grad_()
    mixed = attention(padded, HEADS, Padded.from_lengths([6, 0], 6), dropout, causal=causal)
    mixed[:6].sum().backward()
    assert mixed.isfinite().all()
    assert padded.grad.isfinite().all()
    assert (padded.grad[6:] == 0).all()


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_zeroes_no_sequence_and_keeps_the_mean(causal):
    torch.manual_seed(0)
    layout = Packed.from_lengths([5, 5, 3])
    packed = projections(13)
    plain = attention(packed, HEADS, layout, causal=causal)
    samples = torch.stack(
        [attention(packed, HEADS, layout, 0.2, causal=causal) for _ in range(2000)]
    )
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
        mixed = attention(given * 1, HEADS, layout, dropout, causal=True)
    mixed[[2, second + 3]].sum().backward()
    touched = given.grad.abs().sum(1) > 0
    assert not touched[3:second].any() and not touched[second + 4 :].any()
    if not dropout:  # which may drop one
        assert touched[:3].all() and touched[second : second + 4].all()


@pytest.mark.parametrize("causal", [False, True])
def test_the_packed_kernel_is_told_how_far_to_look(causal, monkeypatch):
    """The kernel itself runs on CUDA alone: here an equation stands for it that takes the same."""

    def kernel(query, key, value, begins, _, longest, __, *, window_size=(-1, -1)):
        assert longest == 6 and window_size in ((-1, -1), (-1, 0))
        joined = torch.stack([query, key, value], 1).flatten(1).float()
        rows = joined.split(begins.diff().tolist())
        mixed = torch.cat([by_hand(row, window_size == (-1, 0)) for row in rows])
        return mixed.view(-1, HEADS, SIZE)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    lengths = [4, 6, 1]
    packed = projections(11).bfloat16()
    split = packed.view(-1, 3, HEADS, SIZE)
    found = _packed(split, Packed.from_lengths(lengths), 0.0, causal).flatten(1)
    expected = torch.cat([by_hand(row.float(), causal) for row in packed.split(lengths)])
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
