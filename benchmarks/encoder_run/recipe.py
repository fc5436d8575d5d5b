"""Recipes that train an encoder in minutes, and the clock of a call."""

import time
from dataclasses import dataclass
from typing import Any

from bert_core.config import SIZES, ModelConfig
from bert_core.settings import BatchSettings, RowSettings
from bert_core.text.batches import BatchSource
from bert_core.text.masking import Vocabulary
from bert_core.text.shards import TokenShards

ROWS_AT_ONCE = 64
"""Per forward pass on the CPU; it does not affect results."""


@dataclass(frozen=True)
class Recipe:
    """The settings of both stages; `step_slots` are the token slots of an optimizer step.

    Attention dropout is 0: the packed attention of CUDA has none. `dropout` is that of hidden
    states in pre-training; fine-tuning has `finetuning_dropout`.
    """

    size: str
    step_slots: int
    peak_learning_rate: float
    warmup_share: float
    dropout: float
    finetuning_learning_rate: float
    finetuning_dropout: float = 0.1
    finetuning_rows: int = 32
    sequence_length: int = 128
    seed: int = 0

    def architecture(self, vocabulary: Vocabulary) -> ModelConfig:
        """The encoder's configuration for a vocabulary, with one position per slot of a row."""
        values = SIZES[self.size].model_dump() | {
            "vocab_size": vocabulary.size,
            "pad_token_id": vocabulary.pad_id,
            "max_position_embeddings": self.sequence_length,
            "hidden_dropout_prob": self.dropout,
            "attention_probs_dropout_prob": 0.0,
        }
        return ModelConfig.model_validate(values)

    def source(
        self, shards: TokenShards, vocabulary: Vocabulary, *, batch: BatchSettings, static: bool
    ) -> BatchSource:
        """The batches of shards; `static` ones have the same shapes in every step."""
        return BatchSource(
            shards,
            vocabulary,
            rows=RowSettings(),
            batch=batch,
            sequence_length=self.sequence_length,
            seed=self.seed,
            phase=0,
            static_shapes=static,
        )

    def batch(self, *, packed: bool) -> BatchSettings:
        """The rows of a step: as many as fill its slots if all are full.

        Packed rows leave a few slots empty, and each step has as many micro-batches as they fill.
        """
        rows = self.step_slots // self.sequence_length
        at_once = rows if packed else min(rows, ROWS_AT_ONCE)
        return BatchSettings(global_batch_size=rows, micro_batch_size=at_once, packed=packed)


RECIPES: dict[str, Recipe] = {
    "tiny": Recipe("tiny", 2048, 2e-3, 0.05, 0.0, 3e-4),
    "mini": Recipe("mini", 2048, 1e-3, 0.05, 0.0, 2e-4),
    "small": Recipe("small", 131_072, 1e-3, 0.05, 0.0, 1e-4),
    "base": Recipe("base", 65_536, 3e-4, 0.1, 0.1, 5e-5),
}
"""By preset; `base` has the shape of `base-fast`, with smaller steps, which suit AdamW in minutes.

Small encoders see so few tokens in that time that dropout would only slow them.
"""


def chosen_recipe(preset: str, changes: dict[str, Any]) -> Recipe:
    """The recipe of a preset with the changes that are not None."""
    given = {name: value for name, value in changes.items() if value is not None}
    return Recipe(**(vars(RECIPES[preset]) | given))


SAID_SECONDS = 5.0
"""Between two lines of progress."""


class Clock:
    """The time of one call, from its start, and its lines of progress."""

    def __init__(self, minutes: float, pretraining_minutes: float) -> None:
        """Start the clock: `minutes` in all, the first `pretraining_minutes` for pre-training."""
        self._begin = time.monotonic()
        self._end = self._begin + 60 * minutes
        self._pretraining_end = self._begin + 60 * min(pretraining_minutes, minutes)
        self._said = 0.0

    def is_over(self) -> bool:
        """Return whether the call should end."""
        return time.monotonic() >= self._end

    def pretraining_seconds(self) -> float:
        """Return the seconds left for pre-training."""
        return self._pretraining_end - time.monotonic()

    def say(self, line: str) -> None:
        """Print a line of progress after the elapsed minutes, unless one was printed just now."""
        now = time.monotonic()
        if now - self._said >= SAID_SECONDS:
            self._said = now
            print(f"{(now - self._begin) / 60:5.1f} min  {line}", flush=True)


def duration(seconds: float) -> str:
    """Format a duration: 45 s, 12 min 30 s."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"
