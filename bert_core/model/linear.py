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


def is_convolution(rows: Tensor, weight: Tensor) -> bool:
    """Whether `linear` computes these rows as a convolution if they are as many as `filled_up`."""
    is_float32 = rows.dtype == weight.dtype == torch.float32
    return is_float32 and is_eager_cpu(rows) and onednn_is_faster_here()


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear` of rows [T, I] with weights [O, I], to rounding, by oneDNN where that is faster.

    That is where the number of rows is one of `filled_up`'s. A convolution of 1 x 1 is the one
    product of torch's that oneDNN computes in float32 forward and backward.
    """
    if _has_its_size(rows) and is_convolution(rows, weight):
        return as_convolution(rows, weight, bias)
    return F.linear(rows, weight, bias)


class Linear(nn.Linear):
    """`nn.Linear`, computed by `linear`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name for it
        """The outputs [T, O] of rows [T, I]."""
        return linear(input, self.weight, self.bias)


def linear_gradients(gradients: Tensor, rows: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """The backward pass of `linear` without a bias, from the gradients [T, O] of its outputs.

    Gives the gradients of rows, [T, I], and writes those of the weights to `out`, [O, I].
    """
    if not _has_its_size(rows) or not is_convolution(rows, weight):
        torch.mm(gradients.t(), rows, out=out)
        return torch.mm(gradients, weight)
    found, of_weight, _ = torch.ops.aten.convolution_backward(
        *(_images(gradients), _images(rows), _filters(weight), None),
        *([1, 1], [0, 0], [1, 1], False, [0, 0], 1),  # stride, padding, dilation, …, groups
        [True, True, False],
    )
    out.copy_(of_weight.view_as(out))
    return _pixels(found)


def as_convolution(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear` of rows [T, I] with weights [O, I], as a convolution of T pixels in 16 images.

    Raises `RuntimeError` where T is no multiple of 16.
    """
    return _pixels(F.conv2d(_images(rows), _filters(weight), bias))


def _has_its_size(rows: Tensor) -> bool:
    return filled_up(len(rows)) == len(rows) >= _FEWEST


def _images(rows: Tensor) -> Tensor:
    """Rows [T, I] as images [16, I, T / 16, 1], whose pixels lie end to end."""
    return rows.reshape(_IMAGES, len(rows) // _IMAGES, 1, -1).permute(0, 3, 1, 2)


def _filters(weight: Tensor) -> Tensor:
    return weight.view(*weight.shape, 1, 1)


def _pixels(images: Tensor) -> Tensor:
    """Images as rows again; no copy."""
    return images.permute(0, 2, 3, 1).flatten(0, 2)
