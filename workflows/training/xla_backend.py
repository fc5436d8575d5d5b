"""XLA as the backend of a TPU worker, which has all chips of its host.

JAX comes with the extra `tpu` and takes the chips when it is imported, so `backend` imports this
module only in workers of a TPU.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import jax
import jax.numpy as jnp
import psutil
import torch

from bert_core.errors import UserError
from bert_core.text.batches import StepBatches as PretrainingSteps
from bert_core.training.loop import ComputeLoss, StepResult, TrainingState
from bert_core.training.xla.program import lacks_memory
from bert_core.training.xla.training import XlaTraining
from workflows.training.backend import RemainingSteps


class XlaBackend:
    """XLA on the chips of this host, of a slice together with those of the others."""

    results_cost_a_wait = True
    static_shapes = True
    _training: XlaTraining

    def __init__(self, dtype: torch.dtype | None) -> None:
        self.autocast_dtype = dtype

    def share(self) -> tuple[int, int]:
        """JAX's number of this process and of all: Ray may count the hosts in another order."""
        return jax.process_index(), jax.process_count()

    def results(self, steps: RemainingSteps) -> Iterator[StepResult]:
        """The steps that are left; from the first on the chips hold the current weights."""
        self._training = XlaTraining(
            steps.state,
            steps.compute_loss,
            max_gradient_norm=steps.settings.optimizer.max_gradient_norm,
            compute_dtype=self.autocast_dtype,
            seed=steps.settings.seed,
        )
        results = self._training.train(
            # Only pre-training has a TPU profile.
            cast("Iterator[PretrainingSteps]", steps.batches),
            total_steps=steps.total_steps,
            schedule=steps.schedule,
            should_stop=steps.should_stop,
        )
        parts = 1
        for result in results:
            if self._training.num_parts != parts:
                parts = self._training.num_parts
                steps.message(_parts_message(result.step, parts))
            yield result

    def current_state(self, state: TrainingState) -> TrainingState:
        """Copied from the chips."""
        del state
        return self._training.current_state()

    def evaluation_loss(self, compute_loss: ComputeLoss) -> tuple[ComputeLoss, torch.dtype | None]:
        """On the chips of this host, with the weights that are there."""
        del compute_loss
        return self._training.evaluation_loss, None

    def description(self) -> dict[str, str]:
        """`device` and `processor`, for the checkpoint."""
        return {"device": jax.default_backend(), "processor": chip_name()}

    def peak_flops(self) -> float:
        """FLOP/s of a large matrix product on all chips of this worker, the best of a few.

        In bfloat16 on TPU, in float32 on CPU.
        """
        on_cpu = jax.default_backend() == "cpu"
        size, dtype = (1024, jnp.float32) if on_cpu else (8192, jnp.bfloat16)
        numbers = jax.random.normal(jax.random.key(0), (2, size, size), dtype)
        left, right = jax.device_put(numbers, jax.local_devices()[0])
        product = jax.jit(jnp.matmul)
        product(left, right).block_until_ready()
        seconds = float("inf")
        for _ in range(8):
            begin = time.perf_counter()
            product(left, right).block_until_ready()
            seconds = min(seconds, time.perf_counter() - begin)
        # Devices that are made of one CPU share its cores.
        return 2 * size**3 / seconds * (1 if on_cpu else jax.local_device_count())

    def memory_bytes(self) -> int:
        """The peak memory of a chip; that of this process where the chip does not say."""
        used = jax.local_devices()[0].memory_stats() or {}
        return int(used.get("peak_bytes_in_use", psutil.Process().memory_info().rss))

    @contextmanager
    def out_of_memory(self, remedy: str) -> Iterator[None]:
        """Raises `UserError` with `remedy` where the memory of a chip does not suffice inside."""
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            if not lacks_memory(error):
                raise
            raise UserError("the device is out of memory", chip_name(), remedy) from error


def chip_name() -> str:
    """The kind of chip, such as `TPU v5 lite`."""
    return jax.local_devices()[0].device_kind


def _parts_message(step: int, parts: int) -> str:
    if parts == 1:
        return f"step {step}: the chips have room for whole micro-batches again"
    return f"step {step}: too little room on a chip, a micro-batch is computed in {parts} parts"
