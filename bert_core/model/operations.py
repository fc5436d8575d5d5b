"""The operations that devices compute in different ways, and the choice among them.

A model on a CPU uses `CpuOperations`; on any other device it uses torch's own. Moving a model
chooses anew, so `forward` names no device.

Shapes: T tokens, A heads, D head size, N sequences of n slots, H hidden size; P predicted
positions, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert_core.config import IGNORE_INDEX
from bert_core.errors import UserError
from bert_core.model.cpu import dropout as cpu_dropout
from bert_core.model.cpu.attention import attention_in_blocks, rotated
from bert_core.model.cpu.linear import filled_up, in_blocks, is_convolution, linear
from bert_core.model.cpu.vocabulary import fused_cross_entropy
from bert_core.model.layout import Layout, Packed, Padded, within_reach

Rotations = tuple[Tensor, Tensor]
"""Cosines and sines of the angles by which queries and keys turn, [T, D / 2] each."""

_TENSOR_CORE_COLUMNS = 64
"""CUDA multiplies matrices fastest where their sides are multiples of it."""


def attention(
    query_key_value: Tensor,
    num_heads: int,
    layout: Layout,
    dropout: float = 0.0,
    *,
    causal: bool = False,
    reach: int | None = None,
) -> Tensor:
    """Lets every token attend to the real tokens of its own sequence (Vaswani et al. 2017, 3.2).

    `query_key_value` is [T, 3 * A * D], queries first; the result is [T, A * D]. `dropout` acts on
    the attention probabilities and is 0 outside training. The output at padding means nothing. With
    `causal` a token attends to itself and those before it (3.2.3), with `reach` to so many on
    either side.

    Raises `UserError` for what the packed kernel of CUDA cannot do: dropout, float32.
    """
    tokens = query_key_value.shape[0]
    split = query_key_value.view(tokens, 3, num_heads, -1)  # [T, 3, A, D]
    if isinstance(layout, Padded):
        mixed = _padded(split, layout, dropout, causal, reach)
    else:
        mixed = _packed(split, layout, dropout, causal, reach)
    return mixed.reshape(tokens, -1)  # [T, A * D]


def _padded(
    split: Tensor, layout: Padded, dropout: float, causal: bool, reach: int | None
) -> Tensor:
    by_row = split.view(*layout.mask.shape, *split.shape[1:])  # [N, n, 3, A, D]
    query, key, value = by_row.permute(2, 0, 3, 1, 4)  # [N, A, n, D]
    # Real tokens come first in a row: one that looks to the left sees no padding.
    slots = None if causal else layout.attended_slots
    keys = None if slots is None else slots[:, None, None, :]
    if reach is not None:
        slots_of_row = torch.arange(layout.mask.shape[1], device=split.device)
        near = within_reach(slots_of_row, slots_of_row, reach)
        # Padding out of everybody's reach looks at itself.
        keys = near if keys is None else near & (keys | ~keys.mT)
    mixed = F.scaled_dot_product_attention(query, key, value, keys, dropout, causal)
    return mixed.transpose(1, 2)  # [N, n, A, D]


def _packed(
    split: Tensor, layout: Packed, dropout: float, causal: bool, reach: int | None
) -> Tensor:
    if dropout > 0:
        raise UserError(
            "the packed layout has no attention dropout on this device",
            f"attention_probs_dropout_prob={dropout}",
            "set it to 0, or use the padded layout",
        )
    if split.dtype not in (torch.bfloat16, torch.float16):
        raise UserError(
            "the packed layout needs 16-bit attention on this device",
            str(split.dtype),
            "train under bfloat16 autocast, or use the padded layout",
        )
    # Not at the top: it brings the compiler along, seconds that only this kernel's users wait for.
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = split.unbind(1)
    offsets, longest = layout.cu_seqlens, layout.max_length
    # Seven positional arguments: the signature that torch 2.10 to 2.13 share. How far to the left
    # and to the right a token sees, -1 being all the way, came with 2.11.
    given = query, key, value, offsets, offsets, longest, longest
    seen = (-1, 0) if causal else None if reach is None else (reach, reach)
    mixed = varlen_attn(*given) if seen is None else varlen_attn(*given, window_size=seen)
    assert isinstance(mixed, Tensor)  # it is a pair only where auxiliary output is asked for
    return mixed  # [T, A, D]


def rotate(query_key_value: Tensor, num_heads: int, rotation: Rotations) -> Tensor:
    """Turns queries and keys of [T, 3 * A * D] by the angles of their positions, two by two.

    Number i of a head goes with number i + D / 2. `rotation` are cosines and sines, [T, D / 2].
    """
    turned, values = query_key_value.unflatten(1, (3, num_heads, -1)).split((2, 1), dim=1)
    cosines, sines = (each[:, None, None] for each in rotation)
    first, second = turned.chunk(2, dim=-1)
    halves = first * cosines - second * sines, second * cosines + first * sines
    return torch.cat([torch.cat(halves, dim=-1).to(values.dtype), values], dim=1).flatten(1)


def vocabulary_cross_entropy(
    features: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, count: int | Tensor
) -> tuple[Tensor, Tensor]:
    """Cross entropy of `features @ weight.T + bias` against `labels`, and how many are right.

    `features` is [P, H], `weight` [V, H], `bias` [V], `labels` int64 [P] with IGNORE_INDEX where a
    place carries none. Gives the sum over labels divided by `count`, and the number of labels
    that have the highest logit.
    """
    multiple = _TENSOR_CORE_COLUMNS if features.device.type == "cuda" else 1
    logits = project(features, weight, bias, multiple)
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum") / count
    return loss, (logits.detach().argmax(-1) == labels).sum()


def project(features: Tensor, weight: Tensor, bias: Tensor, multiple: int) -> Tensor:
    """Logits [P, V], computed with words of zeros after the last up to a multiple of so many."""
    missing = -weight.shape[0] % multiple
    if not missing:
        return F.linear(features, weight, bias)
    padded = F.linear(features, F.pad(weight, (0, 0, 0, missing)), F.pad(bias, (0, missing)))
    return padded.narrow(1, 0, weight.shape[0])


def gated(states: Tensor) -> Tensor:
    """GeGLU (Shazeer 2020, arXiv 2002.05202): [P, 2I] to [P, I]."""
    first, gate = states.chunk(2, dim=-1)
    return F.gelu(first) * gate


class TorchOperations:
    """Operations as torch has them."""

    linear = staticmethod(F.linear)
    attention = staticmethod(attention)
    rotate = staticmethod(rotate)
    vocabulary_cross_entropy = staticmethod(vocabulary_cross_entropy)

    def dropout(self, states: Tensor, probability: float, training: bool) -> Tensor:
        """Zeroes places with this probability and scales the rest so that the mean stays."""
        return F.dropout(states, probability) if training and probability > 0 else states

    def add_dropout(
        self, residual: Tensor, states: Tensor, probability: float, training: bool
    ) -> Tensor:
        """`residual + dropout(states)`."""
        return residual + self.dropout(states, probability, training)

    def feed_forward(self, states: Tensor, intermediate: nn.Module, output: nn.Module) -> Tensor:
        """Applies both maps, GELU in between, to states [P, H]: [P, H]."""
        return output(F.gelu(intermediate(states)))  # [P, 4H] within

    def gated_feed_forward(
        self, states: Tensor, intermediate: nn.Module, output: nn.Module
    ) -> Tensor:
        """As `feed_forward`, where GELU of one half of what is within gates the other."""
        return output(gated(intermediate(states)))

    def filled_up(
        self, states: Tensor, layout: Layout, places: Tensor | None, layers: Sequence[nn.Module]
    ) -> tuple[Tensor, Layout, Tensor | None]:
        """Gives states, layout and places back: any number of tokens will do."""
        del layers
        return states, layout, places


class CpuOperations:
    """Operations for a CPU; each falls back to torch's own where it does not apply.

    That is inside `torch.compile`, under autocast, and for tensors of another device.

    With `keeps_rows_apart` attention pads no row of a packed batch to the length of another, so
    that what becomes of a text does not depend on the batch it is in: not at all where linear maps
    treat each row alike, as those of inference do by oneDNN and in int8. In int8 it has to be so:
    where a value lies on an edge, rounding makes a whole step of a difference in the last bit.
    """

    def __init__(self, *, keeps_rows_apart: bool = False) -> None:
        self.keeps_rows_apart = keeps_rows_apart

    linear = staticmethod(linear)
    dropout = staticmethod(cpu_dropout.dropout)
    add_dropout = staticmethod(cpu_dropout.add_dropout)

    def rotate(self, query_key_value: Tensor, num_heads: int, rotation: Rotations) -> Tensor:
        """Computes the function of this name in place: nothing else needs what was there."""
        if not cpu_dropout.is_eager_cpu(query_key_value):
            return rotate(query_key_value, num_heads, rotation)
        return rotated(query_key_value, num_heads, *rotation)

    def feed_forward(self, states: Tensor, intermediate: nn.Module, output: nn.Module) -> Tensor:
        """Applies both maps, GELU in between, to states [P, H]: [P, H]."""
        if isinstance(intermediate, nn.Linear):
            return output(F.gelu(intermediate(states)))  # [P, 4H] within
        # Maps made for inference compute by blocks: between the two a block stays in the cache.
        return in_blocks(lambda rows: output(F.gelu(intermediate(rows))), states, states.shape[-1])

    def gated_feed_forward(
        self, states: Tensor, intermediate: nn.Module, output: nn.Module
    ) -> Tensor:
        """As `feed_forward`, where GELU of one half of what is within gates the other."""
        if isinstance(intermediate, nn.Linear):
            return output(gated(intermediate(states)))
        return in_blocks(lambda rows: output(gated(intermediate(rows))), states, states.shape[-1])

    def attention(
        self,
        query_key_value: Tensor,
        num_heads: int,
        layout: Layout,
        dropout: float = 0.0,
        *,
        causal: bool = False,
        reach: int | None = None,
    ) -> Tensor:
        """Computes what the function `attention` does, in blocks."""
        if query_key_value.device.type != "cpu":
            return attention(
                query_key_value, num_heads, layout, dropout, causal=causal, reach=reach
            )
        return attention_in_blocks(
            *(query_key_value, num_heads, layout, dropout),
            causal=causal,
            reach=reach,
            apart=self.keeps_rows_apart,
        )

    def vocabulary_cross_entropy(
        self, features: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, count: int | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Computes the function of this name, its gradient along with it."""
        if cpu_dropout.is_eager_cpu(features):
            return fused_cross_entropy(features, weight, bias, labels, int(count))
        return vocabulary_cross_entropy(features, weight, bias, labels, count)

    def filled_up(
        self, states: Tensor, layout: Layout, places: Tensor | None, layers: Sequence[nn.Module]
    ) -> tuple[Tensor, Layout, Tensor | None]:
        """Appends tokens, in a sequence of their own, up to a number that `linear` is fast at.

        States [T, H] of tokens and the places [P] to read, before they go through `layers`.
        """
        output = layers[0].get_submodule("output") if layers else None
        if not isinstance(output, nn.Linear) or not is_convolution(states, output.weight):
            return states, layout, places
        if places is not None:
            places = F.pad(places, (0, filled_up(len(places)) - len(places)))
        missing = filled_up(len(states)) - len(states)
        if missing and isinstance(layout, Packed):
            states, layout = F.pad(states, (0, 0, 0, missing)), layout.with_another(missing)
        return states, layout, places


Operations = TorchOperations | CpuOperations


class OnDevice(nn.Module):
    """A module whose operations are chosen when it is moved to a device."""

    operations: Operations = CpuOperations()  # a module is made on the CPU

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        moved = super()._apply(fn, recurse)
        parameter = next(self.parameters(), None)
        if parameter is not None:
            on_cpu = parameter.device.type == "cpu"
            if on_cpu != isinstance(self.operations, CpuOperations):
                self.operations = CpuOperations() if on_cpu else TorchOperations()
        return moved


class Linear(OnDevice, nn.Linear):
    """A linear map of the encoder, [T, I] to [T, O]."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name for it
        """The outputs [T, O] of rows [T, I]."""
        return self.operations.linear(input, self.weight, self.bias)


def use_operations(model: nn.Module, operations: Operations) -> None:
    """Has every part of a model compute with these operations from now on."""
    for part in model.modules():
        if isinstance(part, OnDevice):
            part.operations = operations
