"""Attention with dropout on its probabilities, for training on the CPU.

torch's own falls back to separate operations there, copies each, and draws its mask serially.
Shapes: N sequences of n tokens, A heads of size D.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from bert_core.model.dropout import keep_mask, keep_probability


def attention_with_dropout(split: Tensor, dropout: float, bias: Tensor | None = None) -> Tensor:
    """Mixes values [N, n, A, D] of `split` [N, n, 3, A, D]: queries, keys, values.

    `bias`, [N, 1, 1, n], is added to the scores: -inf at keys that must not be seen.
    """
    return _AttentionWithDropout.apply(split, dropout, bias)


class _AttentionWithDropout(Function):
    """O = c (M * P) V with P = softmax(Q K^T / sqrt(D)), mask M, c = 1 / share kept.

    Backward needs P and M * P only: with dP = c dO V^T and the row sums r of dO * O,
    dS = (M * P) * dP - P r, because r is also the row sum of P * M * dP.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch gives it no public type
        split: Tensor,
        dropout: float,
        bias: Tensor | None,
    ) -> Tensor:
        """See `attention_with_dropout`."""
        num, seq, _, heads, size = split.shape
        stacked = split.permute(2, 0, 3, 1, 4).reshape(3, num * heads, seq, size)
        query, key, value = stacked
        scores = _bmm(query, key.mT, size**-0.5)  # [N * A, n, n]
        if bias is not None:
            scores.view(num, heads, seq, seq).add_(bias)
        probabilities = torch.softmax(scores, -1)
        kept = keep_mask(tuple(scores.shape), dropout, scores.dtype).mul_(probabilities)
        ctx.scale = 1 / keep_probability(dropout)
        mixed = _bmm(kept, value, ctx.scale)  # [N * A, n, D]
        ctx.save_for_backward(stacked, probabilities, kept, mixed)
        ctx.shape = split.shape
        return mixed.view(num, heads, seq, size).transpose(1, 2)  # [N, n, A, D]

    @staticmethod
    @once_differentiable  # it hides the signature from the type checker
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        *grad_outputs: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Gradient of `split`, [N, n, 3, A, D]."""
        stacked, probabilities, kept, mixed = ctx.saved_tensors
        num, seq, _, heads, size = ctx.shape
        query, key, value = stacked
        grad_mixed = grad_outputs[0].transpose(1, 2).reshape(mixed.shape)  # [N * A, n, D]
        row_sums = (grad_mixed * mixed).sum(-1, keepdim=True)  # [N * A, n, 1]
        gradient = torch.empty_like(stacked)
        _bmm(kept.mT, grad_mixed, ctx.scale, out=gradient[2])
        grad_scores = _bmm(grad_mixed, value.mT, ctx.scale).mul_(kept)
        grad_scores.addcmul_(probabilities, row_sums, value=-1)
        _bmm(grad_scores, key, size**-0.5, out=gradient[0])
        _bmm(grad_scores.mT, query, size**-0.5, out=gradient[1])
        gradient = gradient.view(3, num, heads, seq, size).permute(1, 3, 0, 2, 4)
        return gradient.contiguous(), None, None


def _bmm(left: Tensor, right: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """The scaled product of two stacks of matrices."""
    if out is None:
        out = left.new_empty(len(left), left.shape[1], right.shape[2])
    return torch.baddbmm(out, left, right, beta=0, alpha=scale, out=out)
