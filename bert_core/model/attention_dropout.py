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


def attention_with_dropout(split: Tensor, dropout: float, blocks: Sequence[Block]) -> Tensor:
    """Mixes values [T, A, D] of `split` [T, 3, A, D]: queries, keys, values, in these blocks."""
    mixed = _AttentionWithDropout.apply(split, dropout, blocks)
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
    ) -> Tensor:
        """See `attention_with_dropout`."""
        ctx.blocks, ctx.scale = blocks, 1 / keep_probability(dropout)
        result = split.new_empty(split.shape[0], *split.shape[2:])  # [T, A, D]
        sizes = [split.shape[2] * block.count * block.width**2 for block in blocks]
        # One mask for all blocks: each draw wakes the helpers of the cores anew.
        masks = keep_mask((sum(sizes),), dropout, split.dtype).split(sizes)
        saved: list[Tensor] = []
        for block, mask in zip(blocks, masks, strict=True):
            slots = block.spread(split[block.start : block.stop])  # [N, n, 3, A, D]
            stacked = slots.permute(2, 0, 3, 1, 4).flatten(1, 2).contiguous()  # [3, N * A, n, D]
            query, key, value = stacked
            scores = _bmm(query, key.mT, query.shape[-1] ** -0.5)  # [N * A, n, n]
            bias = block.bias(scores.dtype)
            if bias is not None:
                scores.view(block.count, -1, block.width, block.width).add_(bias)
            probabilities = torch.softmax(scores, -1)
            kept = mask.view_as(scores).mul_(probabilities)
            mixed = _bmm(kept, value, ctx.scale)  # [N * A, n, D]
            parts = mixed.unflatten(0, (block.count, -1)).transpose(1, 2)  # [N, n, A, D]
            block.gather(parts, out=result[block.start : block.stop])
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
            grad_slots = block.spread(grad_result[block.start : block.stop])  # [N, n, A, D]
            grad_mixed = grad_slots.transpose(1, 2).reshape(mixed.shape)  # [N * A, n, D]
            row_sums = (grad_mixed * mixed).sum(-1, keepdim=True)  # [N * A, n, 1]
            gradient = torch.empty_like(stacked)
            _bmm(kept.mT, grad_mixed, ctx.scale, out=gradient[2])
            grad_scores = _bmm(grad_mixed, value.mT, ctx.scale).mul_(kept)
            grad_scores.addcmul_(probabilities, row_sums, value=-1)
            _bmm(grad_scores, key, size**-0.5, out=gradient[0])
            _bmm(grad_scores.mT, query, size**-0.5, out=gradient[1])
            parts = gradient.unflatten(1, (block.count, heads)).permute(1, 3, 0, 2, 4)
            block.gather(parts, out=result[block.start : block.stop])
        return result, None, None


def _bmm(left: Tensor, right: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """The scaled product of two stacks of matrices."""
    if out is None:
        out = left.new_empty(len(left), left.shape[1], right.shape[2])
    return torch.baddbmm(out, left, right, beta=0, alpha=scale, out=out)
