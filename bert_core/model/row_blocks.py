"""Linear maps by oneDNN, over blocks of rows of a few sizes.

oneDNN makes and keeps code for every number of rows that it meets, half a megabyte each: packed
micro-batches, whose number of tokens is never the same, would fill a gigabyte and more.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

ROWS_AT_ONCE = 256
_ANY_SIZE = 32
"""Up to so many rows a block may have any size, above it a multiple of 8."""
_STEP = 8


def in_blocks(compute: Callable[[Tensor], Tensor], rows: Tensor, num_outputs: int) -> Tensor:
    """What `compute` makes of rows [T, I], each by itself: [T, O]."""
    count = len(rows)
    if 0 < count <= _ANY_SIZE:
        return compute(rows)
    if not count:
        return rows.new_zeros(0, num_outputs)
    if count <= ROWS_AT_ONCE:
        return _of_a_block(compute, rows)
    return torch.cat([_of_a_block(compute, some) for some in rows.split(ROWS_AT_ONCE)])


def _of_a_block(compute: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    missing = -len(rows) % _STEP
    if not missing:
        return compute(rows)
    # Rows of zeros, whose answers are thrown away, cost less than another block of a few rows.
    return compute(F.pad(rows, (0, 0, 0, missing)))[: len(rows)]
