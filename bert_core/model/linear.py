"""The linear maps of a layer, on some CPUs computed as a convolution, in training and without.

Shapes: T rows (tokens), I inputs, O outputs.
"""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert_core.model.dropout import is_eager_cpu

_FEWEST = 256
_STEP = 64
_IMAGES = 16
"""From so many images on, torch gives oneDNN a convolution on one thread too; divides `_STEP`."""


@cache
def onednn_is_faster_here() -> bool:
    """Whether this CPU computes float32 products faster by oneDNN: AMD's, where with AVX-512.

    `F.linear` computes by MKL, which on those leaves half of each vector unused
    (docs/speed_log.md). A rule and not a measurement, so that processes on a machine agree to the
    bit.
    """
    known = getattr(torch.cpu, "get_capabilities", dict)()
    name, has_avx512 = str(known.get("cpu_name", "")), bool(known.get("avx512_f"))
    has_both = torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()
    return name.startswith("AMD") and has_avx512 and has_both


def filled_up(count: int) -> int:
    """To how many rows so many are filled up where `Linear` is to compute a convolution.

    oneDNN makes and keeps code for every number of rows that it meets, nine megabytes for a layer's
    forward and backward pass, so there are few such numbers. Below 256 rows it is not worth it.
    """
    if count < _FEWEST:
        return count
    step = max(_STEP, 1 << count.bit_length() - 6)  # 3 % at most, from 2,048 rows on
    return -(-count // step) * step


class Linear(nn.Linear):
    """`nn.Linear`, by oneDNN where that is faster and the number of rows is one of `filled_up`'s.

    A convolution of 1 x 1 is the one product of torch's that oneDNN computes in float32 forward and
    backward. It is what `F.linear` computes, to rounding.
    """

    def forward(self, rows: Tensor) -> Tensor:
        """The outputs [T, O] of rows [T, I]."""
        if self.is_convolution(rows) and filled_up(len(rows)) == len(rows) >= _FEWEST:
            return as_convolution(rows, self.weight, self.bias)
        return F.linear(rows, self.weight, self.bias)

    def is_convolution(self, rows: Tensor) -> bool:
        """Whether these rows, were they as many as `filled_up` says, make a convolution."""
        is_float32 = rows.dtype == self.weight.dtype == torch.float32
        return is_float32 and is_eager_cpu(rows) and onednn_is_faster_here()


def as_convolution(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear` of rows [T, I] with weights [O, I], as a convolution of T pixels in 16 images.

    Raises `RuntimeError` where T is no multiple of 16.
    """
    count, inputs = rows.shape
    images = rows.reshape(_IMAGES, count // _IMAGES, 1, inputs).permute(0, 3, 1, 2)
    found = F.conv2d(images, weight.view(*weight.shape, 1, 1), bias)  # [16, O, T / 16, 1]
    return found.permute(0, 2, 3, 1).reshape(count, -1)  # its pixels lie end to end: no copy
