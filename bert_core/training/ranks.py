"""Ranks of data-parallel training: their number, this process's own, and shared gradients."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def world_size() -> int:
    """Number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process among the ranks; 0 without a process group."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def number_of_rank_zero(number: int, device: torch.device) -> int:
    """What rank 0 calls this with; for all ranks at once, `device` is where they meet."""
    if world_size() == 1:
        return number
    shared = torch.tensor(number, device=device)
    dist.broadcast(shared, src=0)
    return int(shared)


class _ModelWithLoss(nn.Module):
    """Model and loss as one forward pass: the whole of what data parallelism must watch."""

    def __init__(
        self, model: nn.Module, compute_loss: Callable[..., tuple[Tensor, Tensor]]
    ) -> None:
        super().__init__()
        self.model = model
        self.compute_loss = compute_loss

    def forward(self, *batch: Any, **counts: int) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        if not batch:
            return self._nothing()
        return self.compute_loss(self.model, *batch, **counts)

    def _nothing(self) -> tuple[Tensor, Tensor]:
        """0, of which every parameter is a part; and no sums."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        parts = [parameter.flatten()[:1].sum() * 0 for parameter in trained]
        return torch.stack(parts).sum(), parts[0].new_zeros(0)


def data_parallel(
    model: nn.Module, compute_loss: Callable[..., tuple[Tensor, Tensor]]
) -> DistributedDataParallel:
    """`compute_loss(model, ...)` whose backward pass averages gradients over the ranks.

    Starts every rank from rank 0's weights. `model` itself stays bare; its gradients are gone.
    Contract: each backward pass gives every parameter a gradient.
    """
    with warnings.catch_warnings():
        # torch 2.13 has another name for `broadcast_buffers`, which 2.11 does not know.
        warnings.simplefilter("ignore", FutureWarning)
        parallel = DistributedDataParallel(
            _ModelWithLoss(model, compute_loss),
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            static_graph=True,
        )
    # A static graph is recorded in the first backward pass. If that were one of `no_sync`, torch
    # 2.11 to 2.13 would stop, or keep the ranks apart from then on without a word (pytorch issue
    # 143580, pull request 187732). So it is this one, which touches every parameter once, as all
    # do, and costs nothing. By its order the second lays the buckets out for good: without it the
    # first step of a run, and of each resumed one, would have other buckets than those behind it.
    for _ in range(2):
        loss, _ = parallel()
        loss.backward()
    model.zero_grad(set_to_none=True)
    return parallel
