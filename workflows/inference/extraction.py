"""Features of texts: the settings of an extraction, and the job that writes each part."""

import functools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from bert_core.command_help import Example, Guide
from bert_core.config import ModelConfig
from bert_core.errors import UserError
from bert_core.features.units import POOLINGS, default_pooling
from bert_core.interface import OutputFormat, Pooling, StoredDtype, Unit
from bert_core.model.strategies import STRATEGIES, Strategy, find_strategy
from bert_core.text.texts import TextPart, read_texts
from workflows.inference.text_parts import TextJob, TextPartsSettings, worker_device
from workflows.settings import MODEL_PLACES

if TYPE_CHECKING:
    from bert_core.features.extractor import Extractor, FeatureChoice

DEFAULT_STRATEGY = "last"
FEATURES = "features"
"""The folder of the parts."""


class ExtractSettings(TextPartsSettings):
    """Writes features of texts: hidden states of an encoder for each text, word or token.

    After a kill the same command resumes.
    """

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example(
                "an embedding of each line of a text file",
                "--model models:/bert/1 --input texts.txt --output features",
            ),
            Example(
                "a vector of each word, from the last four layers",
                "--model models:/bert/1 --input texts.jsonl --output features --unit word"
                " --strategy concat_last_four",
            ),
            Example(
                "normalized vectors in one array of NumPy",
                "--model models:/bert/1 --input texts --output features --normalize --format npy",
            ),
        ),
        common=(
            "model",
            "input",
            "output",
            "strategy",
            "layers",
            "unit",
            "pooling",
            "normalize",
            "format",
            "num_workers",
        ),
    )

    model: str = Field(description=f"encoder: {MODEL_PLACES}")
    output: Path = Field(description="folder of the features, visible to all nodes of a cluster")
    strategy: str | None = Field(
        default=None,
        description=f"the layers read: {', '.join(STRATEGIES)}, or layer_ and its number; by"
        f" default {DEFAULT_STRATEGY}",
    )
    layers: list[int] = Field(
        default=[],
        description="layers to concatenate instead of a strategy: 0 is the embeddings, -1 the last",
    )
    layer_weights: list[float] = Field(
        default=[],
        description="weights of a weighted sum; by default those a tagger in the model folder has"
        " learned, or equal ones",
    )
    unit: Unit = Field(
        default="text",
        description="what gets a vector",
    )
    pooling: Pooling | None = Field(
        default=None,
        description="how tokens become one vector: "
        + "; ".join(f"{unit}: {', '.join(known)}" for unit, known in POOLINGS.items() if known)
        + "; by default the first, of a text what the folder says (sentence-transformers)",
    )
    normalize: bool = Field(default=False, description="scale every vector to length 1")
    prompt_name: str | None = Field(
        default=None,
        description="prompt of the folder that stands before each text, such as document; by"
        " default the folder's default prompt, where it says how a text is pooled",
    )
    max_length: int | None = Field(
        default=None, description="tokens of a row; by default the encoder's positions"
    )
    stride: int | None = Field(
        default=None,
        description="step between windows of a long text; by default half a window",
    )
    text_column: str = Field(
        default="text", description="column of the texts, strings or lists of words"
    )
    format: OutputFormat = Field(
        default="parquet",
        description="parquet, or npy: one array to memory-map, and a table of its rows",
    )
    dtype: StoredDtype | None = Field(
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

    def choice(self, folder: Path, config: ModelConfig) -> "FeatureChoice":
        """Which features of the model in this folder are asked for.

        Raises `UserError` for a prompt it has not, and where it does not say how a text is pooled.
        """
        from bert_core.features.extractor import FeatureChoice
        from bert_core.features.sentence_pooling import SentencePooling, read_sentence_pooling

        said = SentencePooling()
        if self.unit == "text" and (self.pooling is None or self.prompt_name is not None):
            try:
                said = read_sentence_pooling(folder, config.max_position_embeddings)
            except UserError as error:
                if self.prompt_name is not None:
                    raise
                raise UserError(error.what, error.where, "say how: --pooling mean") from error
        elif self.prompt_name is not None:
            what = f"a prompt before a {self.unit}"
            raise UserError(what, "--prompt_name", "leave it out, or take --unit text")
        return FeatureChoice(
            strategy=self.chosen_strategy(),
            unit=self.unit,
            pooling=self.pooling or (said.pooling if self.unit == "text" else None),
            prompt=said.prompt(self.prompt_name),
            normalize=self.normalize,
            max_length=self.max_length,
            stride=self.stride,
            layer_weights=tuple(self.layer_weights) or None,
        )

    def resolved(self, choice: "FeatureChoice", num_hidden_layers: int) -> dict[str, str | None]:
        """The settings that have a default of their own, as they are for this encoder."""
        pooling = choice.pooling or default_pooling(self.unit)
        dtype = self.numbers(num_hidden_layers)
        return {"strategy": choice.strategy.name, "pooling": pooling, "dtype": dtype}

    def numbers(self, num_hidden_layers: int) -> StoredDtype:
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

    choice: "FeatureChoice"
    text_column: str
    output_format: OutputFormat
    dtype: StoredDtype

    def write(self, part: TextPart, stem: Path, dropped: Counter[str]) -> dict[str, Any]:
        """Writes the features of a part; `layer_weights` are those of a weighted sum, or None."""
        from bert_core.features.output import write_features

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
def _extractor(
    model: Path, choice: "FeatureChoice", max_tokens: int, bfloat16: bool
) -> "Extractor":
    import torch

    from bert_core.features.extractor import load_extractor

    return load_extractor(
        model,
        choice,
        device=worker_device(),
        max_tokens=max_tokens,
        autocast_dtype=torch.bfloat16 if bfloat16 else None,
    )
