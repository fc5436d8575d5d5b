"""Rotary positions on a CPU: in place, block by block, with a backward pass that does the same.

Shapes: T tokens, A heads of size D.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

_ROWS = 256
"""So many rows of a base model, and what is made of them, stay in the cache."""


def rotated(query_key_value: Tensor, num_heads: int, cosines: Tensor, sines: Tensor) -> Tensor:
    """`bert_core.model.operations.rotate` of [T, 3 * A * D], which is written over.

    `cosines` and `sines` are [T, D / 2].
    """
    if torch.is_grad_enabled() and query_key_value.requires_grad:
        found = _Rotation.apply(query_key_value, num_heads, cosines, sines)
        assert isinstance(found, Tensor)
        return found
    return _rotate(query_key_value, num_heads, cosines, sines)


def _rotate(query_key_value: Tensor, num_heads: int, cosines: Tensor, sines: Tensor) -> Tensor:
    turned = query_key_value.unflatten(1, (3, num_heads, -1))[:, :2]  # queries and keys
    blocks = (each.split(_ROWS) for each in (turned, cosines, sines))
    for states, *angles in zip(*blocks, strict=True):
        first, second = states.chunk(2, dim=-1)
        cosine, sine = (each[:, None, None] for each in angles)
        turned_first = first * cosine - second * sine
        second.copy_(second * cosine + first * sine)
        first.copy_(turned_first)
    return query_key_value


class _Rotation(Function):
    """The gradient of a rotation is turned back."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch gives it no public type
        query_key_value: Tensor,
        num_heads: int,
        cosines: Tensor,
        sines: Tensor,
    ) -> Tensor:
        """See `rotated`."""
        ctx.mark_dirty(query_key_value)
        ctx.save_for_backward(cosines, sines)
        ctx.num_heads = num_heads
        return _rotate(query_key_value, num_heads, cosines, sines)

    @staticmethod
    @once_differentiable  # it hides the signature from the type checker
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        *grad_outputs: Tensor,
    ) -> tuple[Tensor, None, None, None]:
        """Of the queries, keys and values before they were turned."""
        cosines, sines = ctx.saved_tensors
        # Somebody else may hold the gradient.
        turned = grad_outputs[0].clone(memory_format=torch.contiguous_format)
        return _rotate(turned, ctx.num_heads, cosines, -sines), None, None, None
