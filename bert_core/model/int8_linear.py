"""A linear map in whole numbers of 8 bits, on the CPU, each row with a range of its own.

Shapes: T rows (tokens), I inputs, O outputs.
"""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert_core.errors import UserError
from bert_core.model.row_blocks import in_blocks

_LEVELS = 127
_SMALLEST = 1e-12  # where all values are one, there is no range to divide by


class Int8Linear(nn.Module):
    """What a linear map computes, to about 1 %, from weights and rows of -127 to 127; no training.

    A row's range is from its own smallest value to its own largest: what GELU leaves, and norms
    with an outlier, lie on one side of 0. The weights of each output have a range around 0. So what
    becomes of a row does not depend on the others beside it, to the bit: sums of whole numbers are
    exact in any order. A row with a number that is not finite has none that is.

    Where gradients are asked for, as to explain an answer, they are those of the rounded weights
    with rows that are not rounded.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor
    weight_sums: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        levels = weight_levels()
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(1).clamp_min(_SMALLEST) / levels  # [O]
        whole = (weight / scale.unsqueeze(1)).round().to(torch.int8)
        bias = linear.bias.detach().float().clone() if linear.bias is not None else 0 * scale
        self.register_buffer("weight", whole)  # [O, I]
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)
        self.register_buffer("weight_sums", whole.sum(1).float() * scale)  # [O]

    def forward(self, rows: Tensor) -> Tensor:
        """The outputs [T, O], float32, of rows [T, I]."""
        rows = rows.float()  # in bfloat16 a scaled row would leave the range
        if rows.requires_grad:
            return F.linear(rows, self.weight * self.scale.unsqueeze(1), self.bias)
        return in_blocks(self._outputs, rows, len(self.bias))

    def _outputs(self, rows: Tensor) -> Tensor:
        # Each step by itself: where a vector of the CPU ends, fused ones may round otherwise.
        smallest, largest = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)  # [T, 1]
        middle = (smallest + largest) / 2
        reach = torch.maximum(largest - middle, middle - smallest).clamp_min_(_SMALLEST)
        whole = (rows - middle).mul_(_LEVELS / reach).round_().to(torch.int8)
        outputs = _product(whole, self.weight).float()  # [T, O]
        outputs.mul_(reach / _LEVELS).mul_(self.scale).add_(self.bias)
        return outputs.add_(middle * self.weight_sums)


@cache
def weight_levels() -> int:
    """The largest whole number of a weight with which this CPU's products are exact: 127 or 63.

    CPUs without VNNI add products in pairs of 16 bits, which overflow: there weights get 7 bits.
    Raises `UserError` where those are not exact either.
    """
    for levels in (_LEVELS, 63):
        if _is_exact(levels):
            return levels
    raise UserError(
        "no exact product of 8-bit numbers",
        "int8 on this CPU",
        "compute the float32 model folder instead",
    )


def _is_exact(levels: int) -> bool:
    """Whether the sums are right where they are largest, for one row and for many."""
    signs = torch.ones(4, 256, dtype=torch.int8)
    signs[1] = -1
    signs[2, ::2] = -1
    signs[3, :128] = -1
    rows, weight = _LEVELS * signs.repeat(16, 1), levels * signs.repeat(16, 1)
    for some in (rows[:1], rows):
        right = some.double() @ weight.double().t()
        if not torch.equal(_product(some, weight).double(), right):
            return False
    return True


def _product(rows: Tensor, weight: Tensor) -> Tensor:
    """The sums [T, O], int32, of rows [T, I] and weights [O, I], int8."""
    # torch has no public name for it.
    return torch._int_mm(rows, weight.t())  # pyright: ignore[reportPrivateImportUsage]
