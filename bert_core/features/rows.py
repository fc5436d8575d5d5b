"""Rows whose batches have hidden states instead of an encoder to compute them.

Shapes: P places, H hidden size, K layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bert_core.tasks.encoded_rows import EncodedRows, LayoutName, TaskBatch
from bert_core.text.rng import IntArray

States = npt.NDArray[np.float16] | npt.NDArray[np.float32]


@dataclass(frozen=True)
class FeatureBatch(TaskBatch):
    """A micro-batch with what the encoder says at its places: `states` [K, P, H]."""

    states: Tensor


@dataclass(frozen=True)
class FeatureRows(EncodedRows):
    """Rows whose batches have the states of layers, each [P, H], at their places."""

    states: Sequence[States] = ()

    @classmethod
    def of(cls, rows: EncodedRows, states: Sequence[States]) -> Self:
        """The same rows, with states in the order of their places."""
        values: dict[str, Any] = {each.name: getattr(rows, each.name) for each in fields(rows)}
        return cls(**values, states=states)

    def batch(
        self, items: IntArray, layout: LayoutName, *, without_labels: bool = False
    ) -> FeatureBatch:
        """See `EncodedRows.batch`."""
        batch = super().batch(items, layout, without_labels=without_labels)
        values: dict[str, Any] = {each.name: getattr(batch, each.name) for each in fields(batch)}
        places = self.places_of(items)
        states = np.stack([layer[places] for layer in self.states])
        return FeatureBatch(**values, states=torch.from_numpy(states))
