"""The pre-training run on TPU: its steps and evaluations are made by XLA, all else as on CPU."""

from collections.abc import Iterator
from typing import Any

import torch

from bert_core.errors import UserError
from bert_core.pretraining import compute_loss
from bert_core.training.loop import ComputeLoss, StepResult, TrainingState
from bert_core.training.xla.compilation import lacks_memory
from bert_core.training.xla.training import XlaTraining
from workflows.pretraining.worker import PretrainingRun
from workflows.training import xla_device


class XlaPretrainingRun(PretrainingRun):
    """What the worker of one host holds while the chips of all hosts train."""

    _training: XlaTraining

    def train(self) -> dict[str, Any]:
        """See `TrainingRun.train`; raises `UserError` where the memory of a chip does not do."""
        import jax

        try:
            return super().train()
        except jax.errors.JaxRuntimeError as error:
            if not lacks_memory(error):
                raise
            raise UserError(
                "the device is out of memory", xla_device.name(), self.out_of_memory_remedy
            ) from error

    def results(self) -> Iterator[StepResult]:
        """The steps that are left; from the first on the weights on the chips are the true ones.

        Says so where the chips have no room for a whole micro-batch.
        """
        settings = self.settings
        self._training = XlaTraining(
            self.state,
            compute_loss,
            max_gradient_norm=settings.optimizer.max_gradient_norm,
            compute_dtype=self.dtype,
            seed=settings.seed,
        )
        results = self._training.train(
            self.batches(self.state.step),
            total_steps=self.total_steps,
            schedule=self.learning_rate,
            should_stop=self.worker.stop_requested,
        )
        parts = 1
        for result in results:
            if self._training.num_parts != parts:
                parts = self._training.num_parts
                self.messages.append(_in_parts(result.step, parts))
            yield result

    def current_state(self) -> TrainingState:
        """Copied from the chips."""
        return self._training.current_state()

    def share(self) -> tuple[int, int]:
        """JAX's own numbers of this process and of all: a TPU may count its hosts otherwise."""
        import jax

        return jax.process_index(), jax.process_count()

    def evaluation_loss(self) -> tuple[ComputeLoss, torch.dtype | None]:
        """On the chips of this host, with the weights that are there."""
        return self._training.evaluation_loss, None


def _in_parts(step: int, parts: int) -> str:
    if parts == 1:
        return f"step {step}: the chips have room for whole micro-batches again"
    return f"step {step}: too little room on a chip, a micro-batch is computed in {parts} parts"
