"""Texts to features, part by part (`workflows.inference.text_parts`)."""

import functools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from bert_core.features.extractor import Extractor, FeatureChoice, load_extractor
from bert_core.features.output import OutputFormat, write_features
from bert_core.features.states import Precision
from bert_core.text.texts import TextPart, read_texts
from workflows.inference.text_parts import TextJob, worker_device

FEATURES = "features"
"""The folder of the parts."""


@dataclass(frozen=True)
class Extraction(TextJob):
    """What is to be extracted, and how."""

    folder: ClassVar[str] = FEATURES
    label: ClassVar[str] = "extracting"

    model: Path
    choice: FeatureChoice
    text_column: str
    id_column: str | None
    output_format: OutputFormat
    dtype: Precision
    bfloat16: bool
    max_tokens: int

    def write(self, part: TextPart, stem: Path, dropped: Counter[str]) -> dict[str, Any]:
        """Writes the features of a part; `layer_weights` are those of a weighted sum, or None."""
        extractor = _extractor(self.model, self.choice, self.max_tokens, self.bfloat16)
        counts = write_features(
            extractor,
            read_texts(part, dropped, text_column=self.text_column, id_column=self.id_column),
            stem.with_suffix(".parquet"),
            output_format=self.output_format,
            dtype=self.dtype,
        )
        weights = extractor.layer_weights
        return {
            "counts": dict(counts),
            "layer_weights": None if weights is None else list(weights),
        }


def part_path(folder: Path, name: str) -> Path:
    """Where a part lies in the folder of the work, or in the output."""
    return folder / FEATURES / f"{name}.parquet"


@functools.lru_cache(maxsize=1)
def _extractor(model: Path, choice: FeatureChoice, max_tokens: int, bfloat16: bool) -> Extractor:
    return load_extractor(
        model,
        choice,
        device=worker_device(),
        max_tokens=max_tokens,
        autocast_dtype=torch.bfloat16 if bfloat16 else None,
    )
