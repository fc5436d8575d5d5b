"""Linear maps on CPUs: convolutions by oneDNN in training, prepacked and int8 maps for inference.

Shapes: T rows (tokens), I inputs, O outputs.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert_core.errors import UserError
from bert_core.model.cpu.dropout import is_eager_cpu

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
    """To how many rows so many are filled up where `linear` is to compute a convolution.

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


def linear_gradients(gradients: Tensor, rows: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """The backward pass of `linear` without a bias, from the gradients [T, O] of its outputs.

    Gives the gradients of rows, [T, I], and writes those of the weights to `out`, [O, I].
    """
    if not _has_its_size(rows) or not is_convolution(rows, weight):
        torch.mm(gradients.t(), rows, out=out)
        return torch.mm(gradients, weight)
    of_rows, of_weight, _ = torch.ops.aten.convolution_backward(
        *(_images(gradients), _images(rows), _filters(weight), None),
        *([1, 1], [0, 0], [1, 1], False, [0, 0], 1),  # stride, padding, dilation, …, groups
        [True, True, False],
    )
    out.copy_(of_weight.view_as(out))
    return _pixels(of_rows)


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


ROWS_AT_ONCE = 256
"""Rows of a block in `in_blocks`."""
_FEW_ROWS = 32
"""Up to so many rows a block may have any size, above it a multiple of 8."""
_ROWS_STEP = 8


def in_blocks(compute: Callable[[Tensor], Tensor], rows: Tensor, num_outputs: int) -> Tensor:
    """Applies `compute` to rows [T, I], each by itself, over blocks of rows of a few sizes: [T, O].

    oneDNN makes and keeps code for every number of rows that it meets, half a megabyte each: packed
    micro-batches, whose number of tokens is never the same, would fill a gigabyte and more.
    """
    count = len(rows)
    if 0 < count <= _FEW_ROWS:
        return compute(rows)
    if not count:
        return rows.new_zeros(0, num_outputs)
    if count <= ROWS_AT_ONCE:
        return _of_a_block(compute, rows)
    return torch.cat([_of_a_block(compute, some) for some in rows.split(ROWS_AT_ONCE)])


def _of_a_block(compute: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    missing = -len(rows) % _ROWS_STEP
    if not missing:
        return compute(rows)
    # Rows of zeros, whose answers are thrown away, cost less than another block of a few rows.
    return compute(F.pad(rows, (0, 0, 0, missing)))[: len(rows)]


class PrepackedLinear(nn.Module):
    """A linear map whose weights are laid out once for oneDNN, to rounding; no training.

    The weights are kept in oneDNN's layout alone. Under autocast they are laid out in its type too;
    where oneDNN has no products of that type on this CPU, as of bfloat16 without AVX-512, they are
    computed in float32 and then rounded.
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
        computed = dtype if _can_be_laid_out(dtype) else torch.float32
        if computed not in self._packed:
            self._packed[computed] = _laid_out(self.weight.to(computed))
        packed = self._packed[computed]
        bias = None if self.bias is None else self.bias.to(computed)
        product = torch.ops.mkldnn._linear_pointwise
        return in_blocks(
            lambda some: product(some, packed, bias, "none", [], ""), rows.to(computed), len(packed)
        ).to(dtype)

    @property
    def weight(self) -> Tensor:
        """The weights, [O, I], in their usual layout, of which this makes a copy."""
        return next(iter(self._packed.values())).to_dense()

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight


def _can_be_laid_out(dtype: torch.dtype) -> bool:
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if dtype == torch.float16:
        return torch.ops.mkldnn._is_mkldnn_fp16_supported()
    return True


def _laid_out(weight: Tensor) -> Tensor:
    # Not looked up at import: builds of torch without oneDNN have no such operation.
    return torch.ops.mkldnn._reorder_linear_weight(weight, None)


_LEVELS = 127
_SMALLEST = 1e-12  # where all values are one, there is no range to divide by


class Int8Linear(nn.Module):
    """A linear map in whole numbers of 8 bits, to about 1 %; no training.

    Weights are whole numbers from -127 to 127, rows from 0 to 254, each with a range of its own.

    A row's range is from its own smallest value to its own largest: what GELU leaves, and norms
    with an outlier, lie on one side of 0. The weights of each output have a range around 0. So what
    becomes of a row does not depend on the other rows, to the bit: sums of whole numbers are
    exact in any order. A row with a number that is not finite has none that is.

    Where gradients are asked for, as to explain an answer, they are those of the rounded weights
    with rows that are not rounded.
    """

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
        self._weight = WholeWeight(whole, scale)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)
        self.register_buffer("weight_sums", whole.sum(1).float() * scale)  # [O]

    @property
    def weight(self) -> Tensor:
        """The whole numbers, int8 [O, I]; a copy, as `PrepackedLinear.weight` is."""
        return self._weight.dense

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight

    def forward(self, rows: Tensor) -> Tensor:
        """The outputs [T, O], float32, of rows [T, I]."""
        rows = rows.float()  # in bfloat16 a scaled row would leave the range
        if rows.requires_grad:
            return F.linear(rows, self.weight * self.scale.unsqueeze(1), self.bias)
        return in_blocks(self._outputs, rows, len(self.bias))

    def _outputs(self, rows: Tensor) -> Tensor:
        # Each step by itself: where a vector of the CPU ends, fused ones may round otherwise.
        smallest, largest = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)  # [T, 1]
        step = (largest - smallest).clamp_min_(_SMALLEST).mul_(0.5 / _LEVELS)
        whole = (rows - smallest).div_(step).round_()  # from 0 to 254
        middle = (step * _LEVELS).add_(smallest)  # the number for which 127 stands
        outputs = self._weight.products(whole).mul_(step).add_(self.bias)  # [T, O]
        return outputs.add_(middle * self.weight_sums)


class WholeWeight:
    """Weights [O, I] of whole numbers of 8 bits, laid out once for oneDNN where torch has it.

    Those of each output are in units of its `scale`, float32 [O].
    """

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        # `torch._int_mm` needs no layout, and on CPUs without VNNI is a loop: 30 times as slow.
        self._is_laid_out = torch.backends.mkldnn.is_available()
        self._weight = (
            torch.ops.onednn.qlinear_prepack(weight, None) if self._is_laid_out else weight
        )
        self._scale = scale
        self._zeros = torch.zeros(len(weight), dtype=torch.int32)

    @property
    def dense(self) -> Tensor:
        """The weights in their usual layout."""
        return self._weight.to_dense().t() if self._is_laid_out else self._weight

    def products(self, rows: Tensor) -> Tensor:
        """The products [T, O] with rows [T, I] of whole numbers, all float32; 127 stands for 0.

        Rows have numbers from 0 to 254: those with a sign cost oneDNN a pass over the weights at
        each call. The sums are exact, then scaled.
        """
        if not self._is_laid_out:
            # torch has no public name for it.
            product = torch._int_mm  # pyright: ignore[reportPrivateImportUsage]
            sums = product((rows - _LEVELS).to(torch.int8), self._weight.t())
            return sums.float().mul_(self._scale)
        return torch.ops.onednn.qlinear_pointwise(
            *(rows.to(torch.uint8), 1.0, _LEVELS),
            *(self._weight, self._scale, self._zeros, None),
            *(1.0, 0, torch.float32, "none", [], ""),
        )


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
    rows, weight = _LEVELS * signs.repeat(16, 1).float(), levels * signs.repeat(16, 1)
    whole = WholeWeight(weight, torch.ones(len(weight)))
    for some in (rows[:1], rows):
        right = some.double() @ weight.double().t()
        if not torch.equal(whole.products(some + _LEVELS).double(), right):
            return False
    return True
