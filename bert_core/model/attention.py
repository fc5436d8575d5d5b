"""Scaled dot-product attention over a layout: fused projections in, mixed values out.

Shapes: T tokens, A heads, D head size, N sequences of n tokens in one block of equal lengths.
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn

from bert_core.errors import UserError
from bert_core.model.layout import Layout, Packed, Padded


def attention(
    query_key_value: Tensor, num_heads: int, layout: Layout, dropout: float = 0.0
) -> Tensor:
    """Lets every token attend to the real tokens of its own sequence (Vaswani et al. 2017, 3.2).

    `query_key_value` is [T, 3 * A * D], queries first; the result is [T, A * D]. `dropout` acts on
    the attention probabilities and is 0 outside training. What padding holds afterwards means
    nothing. Raises `UserError` for what the packed kernel of CUDA cannot do: dropout, float32.
    """
    tokens = query_key_value.shape[0]
    split = query_key_value.view(tokens, 3, num_heads, -1)  # [T, 3, A, D]
    if isinstance(layout, Padded):
        mixed = _padded(split, layout, dropout)
    elif split.device.type == "cpu":
        mixed = _packed_by_length(split, layout, dropout)
    else:
        mixed = _packed(split, layout, dropout)
    return mixed.reshape(tokens, -1)  # [T, A * D]


def _padded(split: Tensor, layout: Padded, dropout: float) -> Tensor:
    batch, seq = layout.mask.shape
    query, key, value = split.view(batch, seq, *split.shape[1:]).permute(2, 0, 3, 1, 4)
    mask = None
    if not layout.is_full:
        # A row that is all padding attends to itself: a softmax over nothing would be NaN.
        keys = layout.mask | ~layout.mask.any(dim=1, keepdim=True)
        mask = keys[:, None, None, :]  # [batch, 1, 1, seq]
    mixed = F.scaled_dot_product_attention(query, key, value, mask, dropout)
    return mixed.transpose(1, 2)  # [batch, seq, A, D]


def _packed_by_length(split: Tensor, layout: Packed, dropout: float) -> Tensor:
    blocks, start = [], 0
    for count, length in layout.runs:
        block = split[start : start + count * length]
        query, key, value = block.view(count, length, *block.shape[1:]).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, None, dropout)  # [N, A, n, D]
        blocks.append(mixed.transpose(1, 2).flatten(0, 1))
        start += count * length
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)  # [T, A, D]


def _packed(split: Tensor, layout: Packed, dropout: float) -> Tensor:
    if dropout > 0:
        raise UserError(
            "the packed layout has no attention dropout on this device",
            f"attention_probs_dropout_prob={dropout}",
            "set it to 0, or use the padded layout",
        )
    if split.dtype not in (torch.bfloat16, torch.float16):
        raise UserError(
            "the packed layout needs 16-bit attention on this device",
            str(split.dtype),
            "train under bfloat16 autocast, or use the padded layout",
        )
    query, key, value = split.unbind(1)
    offsets, longest = layout.cu_seqlens, layout.max_length
    # Seven positional arguments: the signature that torch 2.10 to 2.13 share.
    mixed = varlen_attn(query, key, value, offsets, offsets, longest, longest)  # [T, A, D]
    assert isinstance(mixed, Tensor)  # it is a pair only where auxiliary output is asked for
    return mixed
