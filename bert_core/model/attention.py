"""Scaled dot-product attention over a layout: fused projections in, mixed values out.

Shapes: T tokens, A heads, D head size, N sequences of n slots.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from bert_core.errors import UserError
from bert_core.model.layout import Layout, Packed, Padded


def attention(
    query_key_value: Tensor,
    num_heads: int,
    layout: Layout,
    dropout: float = 0.0,
    *,
    causal: bool = False,
) -> Tensor:
    """Lets every token attend to the real tokens of its own sequence (Vaswani et al. 2017, 3.2).

    `query_key_value` is [T, 3 * A * D], queries first; the result is [T, A * D]. `dropout` acts on
    the attention probabilities and is 0 outside training. The output at padding means nothing. With
    `causal` a token attends to itself and those before it (3.2.3).

    Raises `UserError` for what the packed kernel of CUDA cannot do: dropout, float32.
    """
    tokens = query_key_value.shape[0]
    split = query_key_value.view(tokens, 3, num_heads, -1)  # [T, 3, A, D]
    if isinstance(layout, Padded):
        mixed = _padded(split, layout, dropout, causal)
    else:
        mixed = _packed(split, layout, dropout, causal)
    return mixed.reshape(tokens, -1)  # [T, A * D]


def attended_slots(layout: Padded) -> Tensor | None:
    """Which slots may be attended to, bool [N, n]; None where all may.

    A row that is all padding attends to itself: a softmax over nothing would be NaN.
    """
    if layout.is_full:
        return None
    return layout.mask | ~layout.mask.any(dim=1, keepdim=True)


def _padded(split: Tensor, layout: Padded, dropout: float, causal: bool) -> Tensor:
    by_row = split.view(*layout.mask.shape, *split.shape[1:])  # [N, n, 3, A, D]
    query, key, value = by_row.permute(2, 0, 3, 1, 4)  # [N, A, n, D]
    # Real tokens come first in a row: one that looks to the left sees no padding.
    slots = None if causal else attended_slots(layout)
    keys = None if slots is None else slots[:, None, None, :]
    mixed = F.scaled_dot_product_attention(query, key, value, keys, dropout, causal)
    return mixed.transpose(1, 2)  # [N, n, A, D]


def _packed(split: Tensor, layout: Packed, dropout: float, causal: bool) -> Tensor:
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
    # Seven positional arguments: the signature that torch 2.10 to 2.13 share. How far to the left
    # and to the right a token sees, -1 being all the way, came with 2.11.
    given = query, key, value, offsets, offsets, longest, longest
    mixed = varlen_attn(*given, window_size=(-1, 0)) if causal else varlen_attn(*given)
    assert isinstance(mixed, Tensor)  # it is a pair only where auxiliary output is asked for
    return mixed  # [T, A, D]
