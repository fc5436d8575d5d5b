"""A linear map whose weights are laid out once for oneDNN, for inference on CPUs where that pays.

Shapes: T rows (tokens), I inputs, O outputs.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert_core.model.row_blocks import in_blocks


class PrepackedLinear(nn.Module):
    """What a linear map computes, to rounding; no training.

    The weights are kept in oneDNN's layout alone. Under autocast they are laid out in its type too.
    """

    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())
        weight = linear.weight.detach()
        self._packed = {weight.dtype: _laid_out(weight)}

    def forward(self, rows: Tensor) -> Tensor:
        """The outputs [T, O] of rows [T, I]."""
        if rows.requires_grad:
            return F.linear(rows, self.weight, self.bias)
        dtype = rows.dtype
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
        if dtype not in self._packed:
            self._packed[dtype] = _laid_out(self.weight.to(dtype))
        packed = self._packed[dtype]
        bias = None if self.bias is None else self.bias.to(dtype)
        product = torch.ops.mkldnn._linear_pointwise
        return in_blocks(
            lambda some: product(some, packed, bias, "none", [], ""), rows.to(dtype), len(packed)
        )

    @property
    def weight(self) -> Tensor:
        """The weights, [O, I], in their usual layout, of which this makes a copy."""
        return next(iter(self._packed.values())).to_dense()

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight


def _laid_out(weight: Tensor) -> Tensor:
    # Not looked up at import: builds of torch without oneDNN have no such operation.
    return torch.ops.mkldnn._reorder_linear_weight(weight, None)
