"""transformers' model in a loop as one writes it by hand, for where its Trainer is missing.

The Trainer needs accelerate. The loop has the Trainer's batches, alike in length and padded to the
longest row by transformers' own collator, its AdamW in the fused form, its clipping and its linear
schedule, and none of its bookkeeping.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.finetuning.arms import Recipe, their_collator, their_features, their_model
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.task import Task
from bert_core.training.loop import autocast
from bert_core.training.optimization import linear_schedule, parameter_groups


class PlainLoop:
    """Trains transformers' model; `step` is one step of it."""

    def __init__(self, task: Task, rows: EncodedRows, folder: Path, recipe: Recipe) -> None:
        """Starts from the model folder that ours starts from."""
        optimizer = recipe.optimizer
        self.model = nn.Module.to(their_model(task, folder), recipe.device).train()
        self.data_collator = their_collator(task, folder)
        self.optimizer = torch.optim.AdamW(
            parameter_groups(self.model, optimizer.weight_decay),
            lr=optimizer.peak_learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.epsilon,
            fused=True,
        )
        self.finished_steps = 0
        self._recipe = recipe
        self._features = their_features(task, rows)
        self._batches = self._endless_batches()

    def step(self) -> None:
        """One step, from collating its examples to the optimizer; waits for nothing on a GPU."""
        recipe = self._recipe
        batch = self._on_device(self.data_collator(next(self._batches)))
        with autocast(recipe.device, recipe.dtype):
            loss = self.model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), recipe.optimizer.max_gradient_norm)
        share = linear_schedule(
            self.finished_steps, total_steps=recipe.total_steps, warmup_steps=recipe.warmup_steps
        )
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.optimizer.peak_learning_rate * share
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.finished_steps += 1

    def _on_device(self, batch: dict[str, Any]) -> dict[str, Any]:
        if self._recipe.device.type != "cuda":
            return dict(batch)
        device = self._recipe.device
        return {
            name: each.pin_memory().to(device, non_blocking=True) for name, each in batch.items()
        }

    def _endless_batches(self) -> Iterator[list[dict[str, Any]]]:
        """Features of a step; each epoch grouped by length anew, as the Trainer does it."""
        from transformers.trainer_pt_utils import get_length_grouped_indices

        lengths = [len(each["input_ids"]) for each in self._features]
        size, random = self._recipe.batch_size, torch.Generator().manual_seed(self._recipe.seed)
        while True:
            order = get_length_grouped_indices(lengths, size, generator=random)
            for first in range(0, len(order), size):
                yield [self._features[index] for index in order[first : first + size]]
