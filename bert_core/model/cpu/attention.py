"""Attention on CPUs: sequences of a batch computed in blocks, with dropout in one pass.

A block of sequences of one length needs no padding, but a batch of short texts has as many lengths
as sequences, and many small products cost more than a few with some padding in them. For dropout
torch's own attention falls back to separate operations, copies each, and draws its mask serially.
Rotary positions turn queries and keys in place, some rows after the others, and so does their
gradient. Shapes: T tokens, A heads of size D, N sequences of n slots in one block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from bert_core.model.cpu.dropout import is_eager_cpu, keep_mask, keep_probability
from bert_core.model.layout import Layout, Packed, within_reach

BLOCK_COST = 24_000
"""What a block costs besides its scores, in scores: measured, see docs/speed_log.md."""

_ROTATED_ROWS = 256
"""So many rows of a base model, and what is made of them, stay in the cache."""


@dataclass(frozen=True)
class Block:
    """`count` sequences, each in `width` slots, that are the tokens from `start` to `stop`.

    `keys`, bool [count, width], says which slots may be attended to, None that all may. `slots`,
    int64 [stop - start], says in which of the count * width slots each token stands, None that they
    are the slots in their order; `tokens`, int64 [count * width], which token of the batch stands
    in each slot, any in an empty one.
    """

    start: int
    stop: int
    count: int
    width: int
    keys: Tensor | None = None
    slots: Tensor | None = None
    tokens: Tensor | None = None

    def hidden(self, causal: bool, reach: int | None = None) -> Tensor | None:
        """Which slots (last) a slot must not attend to, bool [1 or count, 1 or width, width].

        None that it may to all. With `causal` those after it: a token comes before all the empty
        slots of its sequence, and what these attend to means nothing. With `reach` those further
        away on either side.
        """
        if causal:
            return torch.ones(1, self.width, self.width, dtype=torch.bool).triu_(1)
        if self.is_local(reach):
            return ~self.near(0, self.width, 0, self.width, reach).squeeze(1)
        return None if self.keys is None else ~self.keys.unsqueeze(1)

    def is_local(self, reach: int | None) -> TypeGuard[int]:
        """Whether some slot is out of the reach of another."""
        return reach is not None and reach < self.width - 1

    def near(self, start: int, stop: int, first: int, last: int, reach: int) -> Tensor:
        """Which of the slots from `first` to `last` those from `start` to `stop` may attend to.

        Bool [1 or count, 1, stop - start, last - first]. An empty slot may to all in its reach: a
        softmax over nothing would be NaN.
        """
        near = within_reach(torch.arange(start, stop), torch.arange(first, last), reach)[None, None]
        if self.keys is None:
            return near
        keys = self.keys[:, None]
        return near & (keys[..., None, first:last] | ~keys[..., start:stop, None])

    def spread(self, tokens: Tensor) -> Tensor:
        """The block's tokens, [stop - start, ...], in their slots, [count, width, ...]; else 0."""
        shape = (self.count, self.width, *tokens.shape[1:])
        if self.slots is None:
            return tokens.view(shape)
        empty = tokens.new_zeros(self.count * self.width, *tokens.shape[1:])
        return empty.index_copy_(0, self.slots, tokens).view(shape)

    def gather(self, slots: Tensor) -> Tensor:
        """The block's tokens, [stop - start, ...], from its slots, [count, width, ...]."""
        flat = slots.flatten(0, 1)
        return flat if self.slots is None else flat.index_select(0, self.slots)


@lru_cache(maxsize=16)  # all layers ask for the same
def blocks_of(
    runs: tuple[tuple[int, int], ...], num_heads: int, apart: bool = False
) -> tuple[Block, ...]:
    """Blocks for runs of (count, length), neighbours together where that is cheaper in all.

    With `apart` never: padding changes the order of sums, so that a row's output differs by
    rounding from batch to batch.
    """
    blocks, start = [], 0
    cheapest = _cheapest_division(runs, BLOCK_COST / num_heads)
    for first, stop in ((n, n + 1) for n in range(len(runs))) if apart else cheapest:
        lengths = [length for count, length in runs[first:stop] for _ in range(count)]
        with torch.inference_mode(mode=False):  # what evaluation asks for first serves training too
            blocks.append(_block_of(start, lengths))
        start = blocks[-1].stop
    return tuple(blocks)


def _block_of(start: int, lengths: Sequence[int]) -> Block:
    count, width, stop = len(lengths), max(lengths), start + sum(lengths)
    if stop - start == count * width:
        return Block(start, stop, count, width)
    keys = torch.arange(width) < torch.tensor(lengths).unsqueeze(1)
    slots = keys.flatten().nonzero().squeeze(1)
    tokens = torch.full((count * width,), start).index_copy_(0, slots, torch.arange(start, stop))
    return Block(start, stop, count, width, keys, slots, tokens)


def _cheapest_division(
    runs: Sequence[tuple[int, int]], block_cost: float
) -> Iterator[tuple[int, int]]:
    """The division of runs into blocks, (first, stop), with the least cost in all.

    A block costs the scores of one head in all its slots, and `block_cost`. `cheapest[i]` is the
    cost of the runs from i on, `stops[i]` where the first block of these ends.
    """
    cheapest, stops = [0.0] * (len(runs) + 1), [0] * len(runs)
    for first in reversed(range(len(runs))):
        counts = accumulate(count for count, _ in runs[first:])
        widths = accumulate((length for _, length in runs[first:]), max)
        cheapest[first], stops[first] = min(
            (block_cost + count * width**2 + cheapest[stop], stop)
            for stop, (count, width) in enumerate(zip(counts, widths, strict=True), first + 1)
        )
    first = 0
    while first < len(runs):
        yield first, stops[first]
        first = stops[first]


def attention_in_blocks(
    query_key_value: Tensor,
    num_heads: int,
    layout: Layout,
    dropout: float,
    *,
    causal: bool,
    apart: bool,
    reach: int | None = None,
) -> Tensor:
    """Computes `bert_core.model.operations.attention` on a CPU; `apart` is that of `blocks_of`."""
    tokens = query_key_value.shape[0]
    split = query_key_value.view(tokens, 3, num_heads, -1)  # [T, 3, A, D]
    if isinstance(layout, Packed):
        blocks = blocks_of(layout.runs, num_heads, apart)
    else:
        count, width = layout.mask.shape
        keys = None if causal else layout.attended_slots
        blocks = (Block(0, count * width, count, width, keys),)
    if dropout > 0 and is_eager_cpu(split):
        mixed = attention_with_dropout(split, dropout, blocks, causal, reach)
    else:
        parts = split.split([block.stop - block.start for block in blocks])
        pairs = zip(parts, blocks, strict=True)
        outputs = [
            _local_attention_of_block(part, block, dropout, reach)
            if block.is_local(reach)
            else _attention_of_block(part, block, dropout, causal)
            for part, block in pairs
        ]
        mixed = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return mixed.reshape(tokens, -1)  # [T, A * D]


def _attention_of_block(split: Tensor, block: Block, dropout: float, causal: bool) -> Tensor:
    query, key, value = block.spread(split).permute(2, 0, 3, 1, 4)  # [N, A, n, D]
    # Real tokens come first in a sequence: one that looks to the left sees no empty slot.
    keys = None if causal or block.keys is None else block.keys[:, None, None, :]
    mixed = F.scaled_dot_product_attention(query, key, value, keys, dropout, causal)
    return block.gather(mixed.transpose(1, 2))  # [T of the block, A, D]


def _local_attention_of_block(split: Tensor, block: Block, dropout: float, reach: int) -> Tensor:
    """As `_attention_of_block`, some queries after the others, each with the keys they reach.

    So time and memory grow with a sequence's length and not with its square.
    """
    query, key, value = block.spread(split).permute(2, 0, 3, 1, 4)  # [N, A, n, D]
    outputs = []
    for start in range(0, block.width, 2 * reach):
        stop = min(start + 2 * reach, block.width)
        first, last = max(start - reach, 0), min(stop + reach, block.width)
        near = block.near(start, stop, first, last, reach)
        keys, values = key[:, :, first:last], value[:, :, first:last]
        outputs.append(
            F.scaled_dot_product_attention(query[:, :, start:stop], keys, values, near, dropout)
        )
    return block.gather(torch.cat(outputs, dim=2).transpose(1, 2))  # [T of the block, A, D]


def attention_with_dropout(
    split: Tensor,
    dropout: float,
    blocks: Sequence[Block],
    causal: bool = False,
    reach: int | None = None,
) -> Tensor:
    """Mixes values [T, A, D] of `split` [T, 3, A, D]: queries, keys, values, in these blocks."""
    mixed = _AttentionWithDropout.apply(split, dropout, blocks, causal, reach)
    assert isinstance(mixed, Tensor)
    return mixed


class _AttentionWithDropout(Function):
    """O = c (M * P) V with P = softmax(Q K^T / sqrt(D)), mask M, c = 1 / share kept.

    Backward needs P and M * P only: with dP = c dO V^T and the row sums r of dO * O,
    dS = (M * P) * dP - P r, because r is also the row sum of P * M * dP. Slots without a token
    have no part in it: as keys their P is 0, as queries their dO.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch gives it no public type
        split: Tensor,
        dropout: float,
        blocks: Sequence[Block],
        causal: bool,
        reach: int | None,
    ) -> Tensor:
        """See `attention_with_dropout`."""
        ctx.blocks, ctx.scale = blocks, 1 / keep_probability(dropout)
        result = split.new_empty(split.shape[0], *split.shape[2:])  # [T, A, D]
        sizes = [split.shape[2] * block.count * block.width**2 for block in blocks]
        # One mask for all blocks: each draw wakes the helpers of the cores anew.
        masks = keep_mask((sum(sizes),), dropout, split.dtype).split(sizes)
        saved: list[Tensor] = []
        for block, mask in zip(blocks, masks, strict=True):
            stacked = _stacked(split.permute(1, 2, 0, 3), block)  # [3, A * N, n, D]
            query, key, value = stacked
            scores = _bmm(query, key.mT, query.shape[-1] ** -0.5)  # [A * N, n, n]
            if (hidden := block.hidden(causal, reach)) is not None:
                by_head = scores.view(-1, block.count, block.width, block.width)
                by_head.masked_fill_(hidden, -torch.inf)
            probabilities = torch.softmax(scores, -1)
            kept = mask.view_as(scores).mul_(probabilities)
            mixed = _bmm(kept, value, ctx.scale)  # [A * N, n, D]
            _unstack(mixed.view(split.shape[2], -1, split.shape[3]).transpose(0, 1), block, result)
            saved += [stacked, probabilities, kept, mixed]
        ctx.save_for_backward(*saved)
        return result

    @staticmethod
    @once_differentiable  # it hides the signature from the type checker
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        *grad_outputs: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Gradient of `split`, [T, 3, A, D]."""
        (grad_result,) = grad_outputs
        tokens, heads, size = grad_result.shape
        result = grad_result.new_empty(tokens, 3, heads, size)
        for index, block in enumerate(ctx.blocks):
            stacked, probabilities, kept, mixed = ctx.saved_tensors[4 * index : 4 * index + 4]
            query, key, value = stacked
            grad_mixed = _stacked_gradient(grad_result, block)  # [A * N, n, D]
            row_sums = (grad_mixed * mixed).sum(-1, keepdim=True)  # [A * N, n, 1]
            gradient = torch.empty_like(stacked)
            _bmm(kept.mT, grad_mixed, ctx.scale, out=gradient[2])
            grad_scores = _bmm(grad_mixed, value.mT, ctx.scale).mul_(kept)
            grad_scores.addcmul_(probabilities, row_sums, value=-1)
            _bmm(grad_scores, key, size**-0.5, out=gradient[0])
            _bmm(grad_scores.mT, query, size**-0.5, out=gradient[1])
            _unstack(gradient.view(3, heads, -1, size).permute(2, 0, 1, 3), block, result)
        return result, None, None, None, None


def _stacked(by_head: Tensor, block: Block) -> Tensor:
    """The block's slots of [3, A, T, D] as stacks of matrices, [3, A * N, n, D]."""
    if block.tokens is None:
        slots = by_head[:, :, block.start : block.stop].contiguous()
    else:
        slots = by_head.index_select(2, block.tokens)
    return slots.view(3, -1, block.width, by_head.shape[-1])


def _stacked_gradient(gradient: Tensor, block: Block) -> Tensor:
    """The block's slots of [T, A, D] as one stack of matrices, [A * N, n, D]; 0 in empty slots."""
    heads, size = gradient.shape[1:]
    part = gradient[block.start : block.stop]
    if block.slots is None:
        slots = part.transpose(0, 1).contiguous()
    else:
        slots = gradient.new_zeros(heads, block.count * block.width, size)
        slots.transpose(0, 1).index_copy_(0, block.slots, part)
    return slots.view(-1, block.width, size)


def _unstack(slots: Tensor, block: Block, result: Tensor) -> None:
    """Writes the block's tokens, out of its slots [N * n, ...], into `result` [T, ...]."""
    out = result[block.start : block.stop]
    if block.slots is None:
        out.copy_(slots)
    else:
        torch.index_select(slots, 0, block.slots, out=out)


def _bmm(left: Tensor, right: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """The scaled product of two stacks of matrices."""
    if out is None:
        out = left.new_empty(len(left), left.shape[1], right.shape[2])
    return torch.baddbmm(out, left, right, beta=0, alpha=scale, out=out)


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
    blocks = (each.split(_ROTATED_ROWS) for each in (turned, cosines, sines))
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
