"""Features of texts: the settings of an extraction, and the job that writes each part."""

import functools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from pydantic import Field, model_validator

from bert_core.errors import UserError
from bert_core.features.extractor import Extractor, FeatureChoice, load_extractor
from bert_core.features.output import OutputFormat, write_features
from bert_core.features.states import Precision
from bert_core.features.units import POOLINGS, Pooling, Unit, default_pooling
from bert_core.model.strategies import STRATEGIES, Strategy, find_strategy
from bert_core.text.texts import TextPart, read_texts
from workflows.inference.text_input import TextPartsSettings
from workflows.inference.text_parts import TextJob, worker_device

DEFAULT_STRATEGY = "last"
FEATURES = "features"
"""The folder of the parts."""


class ExtractSettings(TextPartsSettings):
    """Features of texts: hidden states of an encoder for each text, word or token.

    Killed at any moment, the same command finishes the rest.
    """

    model: str = Field(
        description="encoder, fine-tuned or not: a model folder, models:/NAME@ALIAS, or the name of"
        " a run"
    )
    output: Path = Field(description="folder of the features; all nodes of a cluster must see it")
    strategy: str | None = Field(
        default=None,
        description=f"the layers read: {', '.join(STRATEGIES)}, or layer_ and its number; by"
        f" default {DEFAULT_STRATEGY}",
    )
    layers: list[int] = Field(
        default=[],
        description="layers by number, end to end, instead of a strategy: 0 are the embeddings,"
        " negative ones count from the top",
    )
    layer_weights: list[float] = Field(
        default=[],
        description="weights of a weighted sum; by default those that a tagger in the folder of the"
        " model has learned for these layers, otherwise equal ones that add up to 1",
    )
    unit: Unit = Field(
        default="text",
        description="what gets a vector: text; or each word, or token, of it, without [CLS] and"
        " [SEP]: then a row has a list of vectors, beside the words and their characters",
    )
    pooling: Pooling | None = Field(
        default=None,
        description="how tokens become one vector: "
        + "; ".join(f"{unit}: {', '.join(known)}" for unit, known in POOLINGS.items() if known)
        + " (the first is the default)",
    )
    normalize: bool = Field(default=False, description="give every vector the length 1")
    max_length: int | None = Field(
        default=None, description="tokens of a row; by default the encoder's positions"
    )
    stride: int | None = Field(
        default=None,
        description="tokens from one window of a long text to the next; by default half a window",
    )
    text_column: str = Field(
        default="text", description="column of the texts, strings or lists of words"
    )
    format: OutputFormat = Field(
        default="parquet",
        description="parquet; or npy: features.npy, one array that can be memory-mapped, and"
        " features.parquet, whose rows say whose vectors they are, num_units of each text in turn",
    )
    dtype: Precision | None = Field(
        default=None, description="numbers on disk; by default float16 for several layers, else 32"
    )

    @model_validator(mode="after")
    def _one_way_to_name_layers(self) -> Self:
        if self.strategy is not None and self.layers:
            raise UserError("a strategy and layers", "--layers", "give one of the two")
        self.chosen_strategy()
        return self

    def chosen_strategy(self) -> Strategy:
        """The strategy; raises `UserError`, with the nearest name, for an unknown one."""
        if self.layers:
            name = f"--layers {','.join(map(str, self.layers))}"
            return Strategy(name, tuple(self.layers))
        return find_strategy(self.strategy or DEFAULT_STRATEGY)

    def choice(self) -> FeatureChoice:
        """Which features are asked for."""
        return FeatureChoice(
            strategy=self.chosen_strategy(),
            unit=self.unit,
            pooling=self.pooling,
            normalize=self.normalize,
            max_length=self.max_length,
            stride=self.stride,
            layer_weights=tuple(self.layer_weights) or None,
        )

    def resolved(self, num_hidden_layers: int) -> dict[str, str | None]:
        """The settings that have a default of their own, as they are for this encoder."""
        pooling = self.pooling or default_pooling(self.unit)
        strategy, dtype = self.chosen_strategy().name, self.numbers(num_hidden_layers)
        return {"strategy": strategy, "pooling": pooling, "dtype": dtype}

    def numbers(self, num_hidden_layers: int) -> Precision:
        """The type of the numbers on disk."""
        if self.dtype is not None:
            return self.dtype
        strategy = self.chosen_strategy()
        several = len(strategy.layers_of(num_hidden_layers)) > 1
        return "float16" if several and strategy.combination == "concatenate" else "float32"


@dataclass(frozen=True)
class Extraction(TextJob):
    """What is to be extracted, and how."""

    folder: ClassVar[str] = FEATURES
    label: ClassVar[str] = "extracting"

    choice: FeatureChoice
    text_column: str
    output_format: OutputFormat
    dtype: Precision

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
