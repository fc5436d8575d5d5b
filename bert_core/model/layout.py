"""How the sequences of a batch sit in the flat token dimension: `Packed` or `Padded`.

Every tensor of the model is [tokens, ...]; only attention and the heads that read a sequence's
first token ask the layout where sequences begin and end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import TYPE_CHECKING, Self, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Packed:
    """Sequences end to end, with no padding between them.

    `cu_seqlens` is int32 [sequences + 1]: sequence i holds the tokens from `cu_seqlens[i]` up to
    `cu_seqlens[i + 1]`, and the last offset is the number of tokens: every token belongs to a
    sequence. A repeated offset is an empty sequence, which is how a batch of a fixed number of
    sequences is filled up. `max_length` bounds every length; keep it constant over a run, because
    kernels are built for it. `runs` are (count, length) of consecutive sequences of equal length,
    the host's copy that attention on the CPU follows; it is empty on other devices, where a
    changing tuple would only cause recompilation.
    """

    cu_seqlens: Tensor
    max_length: int
    runs: tuple[tuple[int, int], ...]

    @classmethod
    def from_lengths(cls, lengths: Sequence[int], max_length: int | None = None) -> Self:
        """Lays out sequences of these lengths, in this order, on the CPU.

        Raises `ValueError` where a length is negative or above `max_length`.
        """
        longest = max(lengths, default=0)
        if min(lengths, default=0) < 0 or (max_length is not None and longest > max_length):
            raise ValueError(f"lengths must lie in 0..{max_length}: {list(lengths)}")
        cu_seqlens = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        torch.cumsum(torch.tensor(lengths, dtype=torch.int32), 0, out=cu_seqlens[1:])
        runs = tuple((len(list(group)), length) for length, group in groupby(lengths) if length)
        return cls(cu_seqlens, longest if max_length is None else max_length, runs)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same layout on another device; `runs` stay behind on any but the CPU."""
        cu_seqlens = self.cu_seqlens.to(device, non_blocking=non_blocking)
        runs = self.runs if cu_seqlens.device.type == "cpu" else ()
        return replace(self, cu_seqlens=cu_seqlens, runs=runs)

    def with_another(self, length: int) -> Self:
        """The same layout, on the CPU, with one more sequence of this length after the others."""
        cu_seqlens = torch.cat([self.cu_seqlens, self.cu_seqlens[-1:] + length])
        longest = max(self.max_length, length)
        return replace(
            self, cu_seqlens=cu_seqlens, max_length=longest, runs=(*self.runs, (1, length))
        )

    @property
    def lengths(self) -> Tensor:
        """Number of tokens of each sequence, [sequences]."""
        return self.cu_seqlens.diff()

    @property
    def first_positions(self) -> Tensor:
        """Index of each sequence's first token, int64 [sequences].

        That of an empty sequence points at some token inside the batch; its row carries no label.
        """
        last_token = self.cu_seqlens[-1] - 1
        return torch.minimum(self.cu_seqlens[:-1], last_token).long()


@dataclass(frozen=True)
class Padded:
    """Sequences of equal length, real tokens first, flattened to [batch * seq].

    `mask` is bool [batch, seq], True where a token is real. `is_full` says, from what the host knew
    when it built the batch, that no place is padding, so that attention needs no mask.
    """

    mask: Tensor
    is_full: bool = False

    @classmethod
    def from_lengths(cls, lengths: Sequence[int], sequence_length: int) -> Self:
        """Lays out sequences of these lengths, each filled up to `sequence_length`, on the CPU.

        Raises `ValueError` where a length is negative or above `sequence_length`.
        """
        if lengths and not 0 <= min(lengths) <= max(lengths) <= sequence_length:
            raise ValueError(f"lengths must lie in 0..{sequence_length}: {list(lengths)}")
        mask = torch.arange(sequence_length) < torch.tensor(lengths).unsqueeze(1)
        return cls(mask, is_full=all(length == sequence_length for length in lengths))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same layout on another device."""
        return replace(self, mask=self.mask.to(device, non_blocking=non_blocking))

    @property
    def lengths(self) -> Tensor:
        """Number of real tokens of each sequence, [sequences]."""
        return self.mask.sum(1)

    @property
    def first_positions(self) -> Tensor:
        """Index of each sequence's first token in the flattened batch, int64 [sequences]."""
        batch, seq = self.mask.shape
        return torch.arange(batch, device=self.mask.device) * seq

    @property
    def attended_slots(self) -> Tensor | None:
        """Which slots may be attended to, bool [batch, seq]; None where all may.

        A row that is all padding attends to itself: a softmax over nothing would be NaN.
        """
        if self.is_full:
            return None
        return self.mask | ~self.mask.any(dim=1, keepdim=True)


Layout = Packed | Padded


def within_reach(queries: Tensor, keys: Tensor, reach: int) -> Tensor:
    """Which of the places `keys` (last) those of `queries` may attend to, bool [queries, keys]."""
    return (keys - queries.unsqueeze(1)).abs() <= reach


Batch = TypeVar("Batch", bound="DataclassInstance")


def to_device(batch: Batch, device: torch.device | str, non_blocking: bool = False) -> Batch:
    """A dataclass with its tensors and layouts on another device, all else as it is."""
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    moved = {
        name: value.to(device, non_blocking=non_blocking)
        for name, value in values.items()
        if isinstance(value, Tensor | Packed | Padded)
    }
    return replace(batch, **moved)


def pinned(batch: Batch) -> Batch:
    """A dataclass with its tensors, those of its layouts too, in memory locked for CUDA.

    A copy from there to the device is asynchronous; from elsewhere the host waits for it.
    """
    return _changed(batch, torch.Tensor.pin_memory)


def _changed(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    tensors = {name: change(value) for name, value in values.items() if isinstance(value, Tensor)}
    layouts = {
        name: _changed(value, change)
        for name, value in values.items()
        if isinstance(value, Packed | Padded)
    }
    return replace(batch, **tensors, **layouts)
