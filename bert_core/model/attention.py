"""Scaled dot-product attention over a layout: fused projections in, mixed values out.

Shapes: T tokens, A heads, D head size, N sequences of n tokens in one block of equal lengths.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from bert_core.errors import UserError
from bert_core.model.attention_dropout import attention_with_dropout
from bert_core.model.dropout import is_eager_cpu
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
    block = split.view(*layout.mask.shape, *split.shape[1:])  # [batch, seq, 3, A, D]
    if layout.is_full:
        return _block(block, None, dropout)
    # A row that is all padding attends to itself: a softmax over nothing would be NaN.
    keys = layout.mask | ~layout.mask.any(dim=1, keepdim=True)
    return _block(block, keys[:, None, None, :], dropout)  # [batch, seq, A, D]


def _packed_by_length(split: Tensor, layout: Packed, dropout: float) -> Tensor:
    blocks, start = [], 0
    for count, length in layout.runs:
        tokens = split[start : start + count * length]
        mixed = _block(tokens.view(count, length, *split.shape[1:]), None, dropout)
        blocks.append(mixed.flatten(0, 1))  # [N * n, A, D]
        start += count * length
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)  # [T, A, D]


def _block(block: Tensor, keys: Tensor | None, dropout: float) -> Tensor:
    """Attention in sequences of equal length, [N, n, 3, A, D] to [N, n, A, D].

    `keys`, bool [N, 1, 1, n], are the keys to see; None stands for all.
    """
    if dropout > 0 and is_eager_cpu(block):
        bias = None
        if keys is not None:
            bias = torch.zeros(keys.shape, dtype=block.dtype).masked_fill_(~keys, -torch.inf)
        return attention_with_dropout(block, dropout, bias)
    query, key, value = block.permute(2, 0, 3, 1, 4)  # [N, A, n, D]
    mixed = F.scaled_dot_product_attention(query, key, value, keys, dropout)
    return mixed.transpose(1, 2)


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
    # Not at the top: it brings the compiler along, seconds that only this kernel's users wait for.
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = split.unbind(1)
    offsets, longest = layout.cu_seqlens, layout.max_length
    # Seven positional arguments: the signature that torch 2.10 to 2.13 share.
    mixed = varlen_attn(query, key, value, offsets, offsets, longest, longest)  # [T, A, D]
    assert isinstance(mixed, Tensor)  # it is a pair only where auxiliary output is asked for
    return mixed
