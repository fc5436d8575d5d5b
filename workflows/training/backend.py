"""What computes the steps of a run: PyTorch on CPU or CUDA, or XLA on TPU."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import torch

from bert_core.errors import UserError
from bert_core.machine import processor_name
from bert_core.model.cpu.linear import linear
from bert_core.training.loop import ComputeLoss, StepBatches, StepResult, TrainingState, train
from workflows.clusters.workers import Worker
from workflows.training.run_settings import RunSettings


@dataclass(frozen=True)
class RemainingSteps:
    """What a backend needs to train the steps that are left."""

    state: TrainingState
    batches: Iterator[StepBatches]
    compute_loss: ComputeLoss
    total_steps: int
    schedule: Callable[[int], float]
    """The learning rate of the step after so many finished ones."""
    settings: RunSettings
    should_stop: Callable[[], bool]
    message: Callable[[str], None]
    """Takes a line that the driver prints."""


def autocast_dtype(settings: RunSettings) -> torch.dtype | None:
    """The type of matrix products, None for float32."""
    return None if settings.precision == "float32" else torch.bfloat16


class TorchBackend:
    """PyTorch on CPU or CUDA."""

    def __init__(self, worker: Worker, dtype: torch.dtype | None) -> None:
        self._worker = worker
        self.device = worker.device
        self.autocast_dtype = dtype

    @property
    def results_cost_a_wait(self) -> bool:
        """Whether reading a step's result stops the device: on CUDA."""
        return self.device.type != "cpu"

    @property
    def static_shapes(self) -> bool:
        """Whether batches of the same shape save time: on CUDA, for compiled graphs."""
        return self.device.type != "cpu"

    def share(self) -> tuple[int, int]:
        """Which share of each global batch this worker computes, from 0, and of how many."""
        return self._worker.rank, self._worker.world_size

    def results(self, steps: RemainingSteps) -> Iterator[StepResult]:
        """Trains the steps that are left, each when its result is asked for."""
        return train(
            steps.state,
            steps.batches,
            steps.compute_loss,
            total_steps=steps.total_steps,
            schedule=steps.schedule,
            max_gradient_norm=steps.settings.optimizer.max_gradient_norm,
            device=self.device,
            autocast_dtype=self.autocast_dtype,
            seed=steps.settings.seed,
            should_stop=steps.should_stop,
        )

    def current_state(self, state: TrainingState) -> TrainingState:
        """The state after the last step, as a checkpoint takes it: trained in place."""
        return state

    def evaluation_loss(self, compute_loss: ComputeLoss) -> tuple[ComputeLoss, torch.dtype | None]:
        """The loss function of an evaluation, not compiled, and its autocast type."""
        return compute_loss, self.autocast_dtype

    def description(self) -> dict[str, str]:
        """`device` and `processor`, for the checkpoint."""
        return {"device": self.device.type, "processor": processor_name(self.device)}

    def peak_flops(self) -> float:
        """FLOP/s of a large linear map of random numbers, the best of a few: the base of the MFU.

        In float32 on CPU, else in bfloat16.
        """
        on_cpu = self.device.type == "cpu"
        size, dtype = (1024, torch.float32) if on_cpu else (8192, torch.bfloat16)
        left, right = torch.randn(2, size, size, device=self.device).to(dtype)
        seconds = float("inf")
        for _ in range(8):
            begin = time.perf_counter()
            linear(left, right, None)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            seconds = min(seconds, time.perf_counter() - begin)
        return 2 * size**3 / seconds

    def memory_bytes(self) -> int:
        """The peak memory of a CUDA device; on CPU the present memory of this process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return psutil.Process().memory_info().rss

    @contextmanager
    def out_of_memory(self, remedy: str) -> Iterator[None]:
        """Raises `UserError` with `remedy` where the device's memory does not suffice inside."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise UserError("the device is out of memory", str(self.device), remedy) from error
