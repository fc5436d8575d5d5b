"""Projection onto the vocabulary, its cross entropy and their gradients in one pass on a CPU.

Shapes: P predicted positions, H hidden size, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from bert_core.config import IGNORE_INDEX
from bert_core.model.cpu.linear import filled_up, is_convolution, linear, linear_gradients

_BLOCK_PLACES = 600_000
"""Logits of one block of the vocabulary: few enough to be worked on in the cache."""

_SAFE_EXPONENT = 40.0
"""exp of it, times any vocabulary or through it, stays far inside float32."""


def fused_cross_entropy(
    features: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Computes `vocabulary_cross_entropy` with its gradient: the logits exist once."""
    kept = (labels != IGNORE_INDEX).nonzero().squeeze(1)
    if len(kept) < len(labels):
        features, labels = features.index_select(0, kept), labels.index_select(0, kept)
    return _FusedCrossEntropy.apply(features, weight, bias, labels, count)


class _FusedCrossEntropy(Function):
    """Loss and gradient in one pass over blocks of the vocabulary.

    A block holds E = exp(logits - shift), where the shift, one per row, is 0 unless exp could
    overflow. The softmax is E * exp(shift - log_sum), and that factor acts on the small matrices:
    features for the gradient of the weights, products for that of the features. So each logit is
    written twice, in the cache, and neither copied nor normalised.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch gives it no public type
        features: Tensor,
        weight: Tensor,
        bias: Tensor,
        labels: Tensor,
        count: int,
    ) -> tuple[Tensor, Tensor]:
        """See `fused_cross_entropy`; every label is a word here."""
        with_gradient = any(ctx.needs_input_grad)
        target_logits, highest = (features.new_full(labels.shape, -torch.inf) for _ in range(2))
        blocks, shifts, sums = [], [], []
        filled = _filled_up(features, weight)  # [Q, H], from P on rows of zeros
        width = max(1024, _BLOCK_PLACES // max(1, len(filled)))
        for rows in _slices(len(weight), width):
            products = linear(filled, weight[rows], bias[rows])  # [Q, width]
            block = products[: len(labels)]  # logits
            _take_targets_(target_logits, block, labels - rows.start)
            shift, block_sums = _exponentiate_(block, highest)
            shifts.append(shift)
            sums.append(block_sums)
            if with_gradient:
                blocks.append((rows, products))
        log_sums = torch.stack(
            [shift + total.log() for shift, total in zip(shifts, sums, strict=True)]
        )
        log_sum = log_sums.logsumexp(0)  # [P]
        hits = (target_logits >= highest).sum()
        ctx.mark_non_differentiable(hits)
        ctx.gradients = ()
        if with_gradient:
            factors = [(shift - log_sum).exp_().div_(count) for shift in shifts]
            ctx.gradients = _gradients(blocks, factors, features, weight, labels, 1 / count)
        return (log_sum - target_logits).sum() / count, hits

    @staticmethod
    @once_differentiable  # it hides the signature from the type checker
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        *grad_outputs: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Hands over the gradients, scaled only where the loss was scaled after us."""
        grad_loss = grad_outputs[0]
        gradients, ctx.gradients = ctx.gradients, ()
        if grad_loss != 1:
            gradients = tuple(gradient.mul_(grad_loss) for gradient in gradients)
        return *gradients, None, None


def _filled_up(features: Tensor, weight: Tensor) -> Tensor:
    """Features and rows of zeros, where `linear` wants them."""
    if not is_convolution(features, weight):
        return features
    missing = filled_up(len(features)) - len(features)
    return F.pad(features, (0, 0, 0, missing)) if missing else features


def _slices(length: int, width: int) -> list[slice]:
    return [slice(start, min(start + width, length)) for start in range(0, length, width)]


def _take_targets_(target_logits: Tensor, block: Tensor, columns: Tensor) -> None:
    """Writes the labels' logits, [P], of those labels whose column lies in the block."""
    inside = (columns >= 0) & (columns < block.shape[1])
    logits = block.gather(1, columns.clamp(0, block.shape[1] - 1).unsqueeze(1)).squeeze(1)
    torch.where(inside, logits, target_logits, out=target_logits)


def _exponentiate_(block: Tensor, highest: Tensor) -> tuple[Tensor, Tensor]:
    """Replaces the logits by exp(logits - shift); gives shift and row sums, both [P].

    `highest`, the highest logit of each row so far, is brought up to date in place.
    """
    block_highest = block.amax(1)
    torch.maximum(highest, block_highest, out=highest)
    shift = block_highest.masked_fill(block_highest.abs() < _SAFE_EXPONENT, 0)
    if shift.any():
        block.sub_(shift.unsqueeze(1))
    return shift, block.exp_().sum(1)


def _gradients(
    blocks: list[tuple[slice, Tensor]],
    factors: list[Tensor],
    features: Tensor,
    weight: Tensor,
    labels: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of features [P, H], weight [V, H] and bias [V] of `scale` times the summed loss."""
    grad_features = torch.zeros_like(features)
    grad_weight = torch.empty_like(weight)
    grad_bias = weight.new_empty(len(weight))
    for (rows, products), factor in zip(blocks, factors, strict=True):
        column = factor.unsqueeze(1)
        scaled = _filled_up(features * column, weight)  # what stands in `products` there is lost
        of_rows = linear_gradients(products, scaled, weight[rows], grad_weight[rows])
        grad_features.addcmul_(of_rows[: len(features)], column)
        torch.mv(products[: len(features)].t(), factor, out=grad_bias[rows])
    grad_features.sub_(weight.index_select(0, labels), alpha=scale)
    grad_weight.index_add_(0, labels, features, alpha=-scale)
    grad_bias.index_add_(0, labels, factors[0].new_full(labels.shape, -scale))
    return grad_features, grad_weight, grad_bias
