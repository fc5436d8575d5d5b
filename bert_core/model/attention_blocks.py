"""Sequences of a packed batch -> the blocks in which a CPU computes their attention.

A block of sequences of one length needs no padding, but a batch of short texts has as many lengths
as sequences, and many small products cost more than a few with some padding in them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

BLOCK_COST = 24_000
"""What a block costs besides its scores, in scores: measured, see docs/speed_log.md."""


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

    def hidden(self, causal: bool) -> Tensor | None:
        """Which slots (last) a slot must not attend to, bool [1 or count, 1 or width, width].

        None that it may to all. With `causal` those after it: a token comes before all the empty
        slots of its sequence, and what these attend to means nothing.
        """
        if causal:
            return torch.ones(1, self.width, self.width, dtype=torch.bool).triu_(1)
        return None if self.keys is None else ~self.keys.unsqueeze(1)

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

    With `apart` never: padding changes the order of sums, so that what becomes of a row differs by
    rounding in other company.
    """
    blocks, start = [], 0
    cheapest = _cheapest_division(runs, BLOCK_COST / num_heads)
    for first, stop in ((n, n + 1) for n in range(len(runs))) if apart else cheapest:
        lengths = [length for count, length in runs[first:stop] for _ in range(count)]
        with torch.inference_mode(mode=False):  # what evaluation asks for first serves training too
            blocks.append(_block(start, lengths))
        start = blocks[-1].stop
    return tuple(blocks)


def _block(start: int, lengths: Sequence[int]) -> Block:
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
