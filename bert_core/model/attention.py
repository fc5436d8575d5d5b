"""Scaled dot-product attention over a layout: fused projections in, mixed values out.

Shapes: T tokens, A heads, D head size, N sequences of n slots in one block.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from bert_core.errors import UserError
from bert_core.model.attention_blocks import Block, blocks_of
from bert_core.model.attention_dropout import attention_with_dropout
from bert_core.model.dropout import is_eager_cpu
from bert_core.model.layout import Layout, Packed, Padded


def attention(
    query_key_value: Tensor,
    num_heads: int,
    layout: Layout,
    dropout: float = 0.0,
    *,
    causal: bool = False,
    apart: bool = False,
) -> Tensor:
    """Lets every token attend to the real tokens of its own sequence (Vaswani et al. 2017, 3.2).

    `query_key_value` is [T, 3 * A * D], queries first; the result is [T, A * D]. `dropout` acts on
    the attention probabilities and is 0 outside training. What padding holds afterwards means
    nothing. With `causal` a token attends to itself and those before it (3.2.3). `apart` is for
    packed rows on a CPU, see `blocks_of`.

    Raises `UserError` for what the packed kernel of CUDA cannot do: dropout, float32.
    """
    tokens = query_key_value.shape[0]
    split = query_key_value.view(tokens, 3, num_heads, -1)  # [T, 3, A, D]
    if isinstance(layout, Padded):
        mixed = _padded(split, layout, dropout, causal)
    elif split.device.type == "cpu":
        mixed = _in_blocks(split, blocks_of(layout.runs, num_heads, apart), dropout, causal)
    else:
        mixed = _packed(split, layout, dropout, causal)
    return mixed.reshape(tokens, -1)  # [T, A * D]


def _padded(split: Tensor, layout: Padded, dropout: float, causal: bool) -> Tensor:
    keys = None
    if not layout.is_full and not causal:
        # A row that is all padding attends to itself: a softmax over nothing would be NaN.
        keys = layout.mask | ~layout.mask.any(dim=1, keepdim=True)
    count, width = layout.mask.shape
    return _in_blocks(split, (Block(0, count * width, count, width, keys),), dropout, causal)


def _in_blocks(split: Tensor, blocks: Sequence[Block], dropout: float, causal: bool) -> Tensor:
    """Attention in the blocks of `split`, [T, 3, A, D] to [T, A, D]."""
    if dropout > 0 and is_eager_cpu(split):
        return attention_with_dropout(split, dropout, blocks, causal)
    parts = split.split([block.stop - block.start for block in blocks])
    pairs = zip(parts, blocks, strict=True)
    mixed = [_block(part, block, dropout, causal) for part, block in pairs]
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _block(split: Tensor, block: Block, dropout: float, causal: bool) -> Tensor:
    query, key, value = block.spread(split).permute(2, 0, 3, 1, 4)  # [N, A, n, D]
    # Real tokens come first in a sequence: one that looks to the left sees no empty slot.
    keys = None if causal or block.keys is None else block.keys[:, None, None, :]
    mixed = F.scaled_dot_product_attention(query, key, value, keys, dropout, causal)
    return block.gather(mixed.transpose(1, 2))  # [T of the block, A, D]


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
