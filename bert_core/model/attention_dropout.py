"""Attention with dropout on its probabilities, for training on the CPU.

torch's own falls back to separate operations there, copies each, and draws its mask serially.
Shapes: T tokens, A heads of size D, N sequences of n slots in one block.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from bert_core.model.attention_blocks import Block
from bert_core.model.dropout import keep_mask, keep_probability


def attention_with_dropout(
    split: Tensor, dropout: float, blocks: Sequence[Block], causal: bool = False
) -> Tensor:
    """Mixes values [T, A, D] of `split` [T, 3, A, D]: queries, keys, values, in these blocks."""
    mixed = _AttentionWithDropout.apply(split, dropout, blocks, causal)
    assert isinstance(mixed, Tensor)
    return mixed


class _AttentionWithDropout(Function):
    """O = c (M * P) V with P = softmax(Q K^T / sqrt(D)), mask M, c = 1 / share kept.

    Backward needs P and M * P only: with dP = c dO V^T and the row sums r of dO * O,
    dS = (M * P) * dP - P r, because r is also the row sum of P * M * dP. Slots without a token
    have no part in it: as keys their P is 0, as queries their dO.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch gives it no public type
        split: Tensor,
        dropout: float,
        blocks: Sequence[Block],
        causal: bool,
    ) -> Tensor:
        """See `attention_with_dropout`."""
        ctx.blocks, ctx.scale = blocks, 1 / keep_probability(dropout)
        result = split.new_empty(split.shape[0], *split.shape[2:])  # [T, A, D]
        sizes = [split.shape[2] * block.count * block.width**2 for block in blocks]
        # One mask for all blocks: each draw wakes the helpers of the cores anew.
        masks = keep_mask((sum(sizes),), dropout, split.dtype).split(sizes)
        saved: list[Tensor] = []
        for block, mask in zip(blocks, masks, strict=True):
            stacked = _stacked(split.permute(1, 2, 0, 3), block)  # [3, A * N, n, D]
            query, key, value = stacked
            scores = _bmm(query, key.mT, query.shape[-1] ** -0.5)  # [A * N, n, n]
            if (hidden := block.hidden(causal)) is not None:
                by_head = scores.view(-1, block.count, block.width, block.width)
                by_head.masked_fill_(hidden, -torch.inf)
            probabilities = torch.softmax(scores, -1)
            kept = mask.view_as(scores).mul_(probabilities)
            mixed = _bmm(kept, value, ctx.scale)  # [A * N, n, D]
            _unstack(mixed.view(split.shape[2], -1, split.shape[3]).transpose(0, 1), block, result)
            saved += [stacked, probabilities, kept, mixed]
        ctx.save_for_backward(*saved)
        return result

    @staticmethod
    @once_differentiable  # it hides the signature from the type checker
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        *grad_outputs: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Gradient of `split`, [T, 3, A, D]."""
        (grad_result,) = grad_outputs
        tokens, heads, size = grad_result.shape
        result = grad_result.new_empty(tokens, 3, heads, size)
        for index, block in enumerate(ctx.blocks):
            stacked, probabilities, kept, mixed = ctx.saved_tensors[4 * index : 4 * index + 4]
            query, key, value = stacked
            grad_mixed = _stacked_gradient(grad_result, block)  # [A * N, n, D]
            row_sums = (grad_mixed * mixed).sum(-1, keepdim=True)  # [A * N, n, 1]
            gradient = torch.empty_like(stacked)
            _bmm(kept.mT, grad_mixed, ctx.scale, out=gradient[2])
            grad_scores = _bmm(grad_mixed, value.mT, ctx.scale).mul_(kept)
            grad_scores.addcmul_(probabilities, row_sums, value=-1)
            _bmm(grad_scores, key, size**-0.5, out=gradient[0])
            _bmm(grad_scores.mT, query, size**-0.5, out=gradient[1])
            _unstack(gradient.view(3, heads, -1, size).permute(2, 0, 1, 3), block, result)
        return result, None, None, None


def _stacked(by_head: Tensor, block: Block) -> Tensor:
    """The block's slots of [3, A, T, D] as stacks of matrices, [3, A * N, n, D]."""
    if block.tokens is None:
        slots = by_head[:, :, block.start : block.stop].contiguous()
    else:
        slots = by_head.index_select(2, block.tokens)
    return slots.view(3, -1, block.width, by_head.shape[-1])


def _stacked_gradient(gradient: Tensor, block: Block) -> Tensor:
    """The block's slots of [T, A, D] as one stack of matrices, [A * N, n, D]; 0 in empty slots."""
    heads, size = gradient.shape[1:]
    part = gradient[block.start : block.stop]
    if block.slots is None:
        slots = part.transpose(0, 1).contiguous()
    else:
        slots = gradient.new_zeros(heads, block.count * block.width, size)
        slots.transpose(0, 1).index_copy_(0, block.slots, part)
    return slots.view(-1, block.width, size)


def _unstack(slots: Tensor, block: Block, result: Tensor) -> None:
    """Writes the block's tokens, out of its slots [N * n, ...], into `result` [T, ...]."""
    out = result[block.start : block.stop]
    if block.slots is None:
        out.copy_(slots)
    else:
        torch.index_select(slots, 0, block.slots, out=out)


def _bmm(left: Tensor, right: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """The scaled product of two stacks of matrices."""
    if out is None:
        out = left.new_empty(len(left), left.shape[1], right.shape[2])
    return torch.baddbmm(out, left, right, beta=0, alpha=scale, out=out)
