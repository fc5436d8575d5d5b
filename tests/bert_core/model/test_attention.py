import pytest
import torch

from bert_core.errors import UserError
from bert_core.model import attention_blocks
from bert_core.model.attention import attention
from bert_core.model.layout import Packed, Padded

HEADS, SIZE = 3, 8


def by_hand(query_key_value):
    """Equation 1 of Vaswani et al. 2017 for one sequence, head by head."""
    query, key, value = query_key_value.view(-1, 3, HEADS, SIZE).unbind(1)
    mixed = []
    for head in range(HEADS):
        scores = query[:, head] @ key[:, head].T / SIZE**0.5
        mixed.append(scores.softmax(-1) @ value[:, head])
    return torch.stack(mixed, 1).flatten(1)


def projections(tokens):
    return torch.randn(tokens, 3 * HEADS * SIZE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("lengths", [[5], [4, 4, 4], [4, 4, 1, 6, 0]])
@pytest.mark.parametrize("cost", [0, 10**6])
def test_packed_is_the_equation_in_each_sequence(lengths, cost, monkeypatch):
    """In blocks of one length, and all in one block."""
    monkeypatch.setattr(attention_blocks, "BLOCK_COST", cost)
    attention_blocks.blocks_of.cache_clear()
    packed = projections(sum(lengths))
    expected = torch.cat([by_hand(part) for part in packed.split(lengths)])
    found = attention(packed, HEADS, Packed.from_lengths(lengths))
    torch.testing.assert_close(found, expected)


def test_what_evaluation_has_seen_serves_training():
    layout = Packed.from_lengths([4, 3])
    with torch.inference_mode():
        attention(projections(7), HEADS, layout)
    packed = projections(7).requires_grad_()
    for dropout in (0.0, 0.1):
        attention(packed, HEADS, layout, dropout).sum().backward()
    assert packed.grad.isfinite().all()


@pytest.mark.parametrize("lengths", [[6, 6], [6, 2, 1]])
def test_padded_is_the_equation_over_real_tokens(lengths):
    layout = Padded.from_lengths(lengths, 6)
    padded = projections(6 * len(lengths))
    expected = torch.cat([by_hand(padded[6 * i : 6 * i + n]) for i, n in enumerate(lengths)])
    found = attention(padded, HEADS, layout)[layout.mask.flatten()]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_row_of_padding_alone_spoils_nothing(dropout):
    padded = projections(12).requires_grad_()
    mixed = attention(padded, HEADS, Padded.from_lengths([6, 0], 6), dropout)
    mixed[:6].sum().backward()
    assert mixed.isfinite().all()
    assert padded.grad.isfinite().all()
    assert (padded.grad[6:] == 0).all()


def test_dropout_zeroes_no_sequence_and_keeps_the_mean():
    torch.manual_seed(0)
    lengths = [5, 5, 3]
    packed = projections(13)
    plain = attention(packed, HEADS, Packed.from_lengths(lengths))
    samples = torch.stack(
        [attention(packed, HEADS, Packed.from_lengths(lengths), 0.2) for _ in range(2000)]
    )
    assert not torch.equal(samples[0], samples[1])
    torch.testing.assert_close(samples.mean(0), plain, atol=0.08, rtol=0)


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
    mixed = compiled(packed, HEADS, layout)
    assert mixed.shape == (7, HEADS * SIZE)
    mixed.sum().backward()
    assert packed.grad.shape == packed.shape
