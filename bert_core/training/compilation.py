"""A loss function goes in; the same one, compiled for shapes that do not change, comes out."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bert_core.training.loop import ComputeLoss


def compiled(compute_loss: ComputeLoss, *, backend: str | Callable[..., Any] = "inductor") -> Any:  # noqa: ANN401 - called as `compute_loss` is
    """`compute_loss` as one program, forward and backward, for each shape of a micro-batch.

    What cannot be in one program is an error, and so is a shape too many. The counts of the global
    batch change from step to step, and each number would be a program of its own: they come as 0-d
    int64 tensors instead, filled on the device, so that nobody waits for a copy.
    """
    program = torch.compile(compute_loss, fullgraph=True, dynamic=False, backend=backend)

    def with_counts(model: nn.Module, *batch: Any, **counts: int) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        device = next(model.parameters()).device
        filled = {
            name: torch.full((), count, dtype=torch.int64, device=device)
            for name, count in counts.items()
        }
        return program(model, *batch, **filled)

    return with_counts
