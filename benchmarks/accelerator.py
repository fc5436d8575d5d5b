"""A device by its name, and how much of its memory an arm takes beside others in one process."""

from itertools import chain

import torch
from torch import nn

from bert_core.errors import UserError


def device_named(name: str) -> torch.device:
    """The device of this name; raises `UserError` where there is none."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("torch sees no GPU here", "--device cuda", "take --device cpu")
    return torch.device(name)


class MemoryWatch:
    """The most memory of a device since this began, above what lay there then."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            self._before = torch.cuda.memory_allocated(device)

    def peak_bytes(self) -> int | None:
        """Bytes of tensors; None on a CPU, which is not asked."""
        if self._device.type != "cuda":
            return None
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - self._before


def weight_bytes(model: nn.Module) -> int:
    """Bytes of a model's parameters and buffers."""
    weights = chain(model.parameters(), model.buffers())
    return sum(each.numel() * each.element_size() for each in weights)
