"""The settings of a pre-training run, each with its unit; the defaults are the paper's base."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bert_core.config import SIZES, ModelConfig
from bert_core.text.rows.settings import BatchSettings, RowSettings
from bert_core.training.settings import PretrainingOptimizerSettings
from workflows.run_settings import RunSettings


class ModelSettings(BaseModel):
    """The encoder: a published size, and what may differ from it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = Field(
        default="base", description="layers and width (2/128, 4/256, 4/512, 8/512, 12/768, 24/1024)"
    )
    num_hidden_layers: int | None = Field(
        default=None, ge=1, description="layers, if not the size's"
    )
    hidden_dropout_prob: float = Field(
        default=0.1, ge=0, lt=1, description="dropout on hidden states"
    )
    attention_probs_dropout_prob: float = Field(
        default=0.1, ge=0, lt=1, description="dropout on attention probabilities"
    )
    max_position_embeddings: int = Field(
        default=512, ge=4, description="longest sequence, in tokens"
    )
    position_embedding: Literal["learned", "sinusoidal"] = Field(
        default="learned", description="learned (the paper) or sinusoidal"
    )

    def config(self, vocab_size: int, pad_token_id: int) -> ModelConfig:
        """The architecture for a vocabulary."""
        values = SIZES[self.size].model_dump()
        values |= self.model_dump(exclude={"size"}, exclude_none=True)
        values |= {"vocab_size": vocab_size, "pad_token_id": pad_token_id}
        return ModelConfig.model_validate(values)


class Phase(BaseModel):
    """A stretch of training at one sequence length."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sequence_length: int = Field(ge=8, description="longest row, in tokens")
    steps: int = Field(ge=1, description="optimizer steps")


class EvaluationSettings(BaseModel):
    """When and on how much the model is measured on held-out documents."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    every_steps: int = Field(
        default=10_000, ge=1, description="steps between evaluations; also at the end"
    )
    num_rows: int = Field(
        default=2048, ge=1, description="held-out rows an evaluation reads, at most"
    )


class PretrainSettings(RunSettings):
    """Pre-trains a BERT encoder on token shards and registers it in MLflow.

    Without arguments: the quickstart, on the documentation that is on this machine.
    """

    machine_fields = RunSettings.machine_fields | {"preset", "shards"}

    preset: str = Field(
        default="quickstart", description="what to train: a preset's name, or a YAML file"
    )
    shards: Path | None = Field(
        default=None,
        description="folder of token shards from workflows/prepare.py; without it `text` is"
        " prepared first",
    )
    text: list[str] = Field(
        default=["docs://"], description="text to prepare when no shards are given (see prepare.py)"
    )
    vocabulary_size: int = Field(
        default=30_000, ge=100, description="word pieces to train when no shards are given"
    )
    heldout_share: float = Field(
        default=0.01, gt=0, lt=1, description="share of the documents of `text` kept for evaluation"
    )
    model: ModelSettings = Field(default_factory=ModelSettings)
    rows: RowSettings = Field(default_factory=RowSettings)
    batch: BatchSettings = Field(default_factory=BatchSettings)
    phases: list[Phase] = Field(
        default=[
            Phase(sequence_length=128, steps=900_000),
            Phase(sequence_length=512, steps=100_000),
        ],
        description="stretches of training, one schedule over all: a JSON list",
    )
    optimizer: PretrainingOptimizerSettings = Field(  # pyright: ignore - frozen, so it may narrow
        default_factory=PretrainingOptimizerSettings
    )
    compile: bool = Field(default=False, description="torch.compile the forward pass (GPU)")
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)

    @model_validator(mode="after")
    def _rows_fit_the_positions(self) -> Self:
        longest = max(phase.sequence_length for phase in self.phases)
        if longest > self.model.max_position_embeddings:
            raise ValueError(
                f"a phase of {longest} tokens is longer than the position table: raise "
                f"--model.max_position_embeddings from {self.model.max_position_embeddings}"
            )
        return self

    @model_validator(mode="after")
    def _every_worker_has_rows(self) -> Self:
        workers, rows = self.cluster.fewest_workers, self.batch.global_batch_size
        if workers > rows:
            raise ValueError(
                f"{workers} workers cannot share {rows} rows a step: raise "
                "--batch.global_batch_size or lower --cluster.num_workers"
            )
        return self

    @model_validator(mode="after")
    def _packed_attention_exists(self) -> Self:
        """The kernel for packed rows on GPU works in 16 bits and has no dropout."""
        if self.batch.packed and self.cluster.use_gpu:
            if self.model.attention_probs_dropout_prob:
                raise ValueError(
                    "packed rows have no attention dropout on GPU: set "
                    "--model.attention_probs_dropout_prob 0 or --batch.packed false"
                )
            if self.precision == "float32":
                raise ValueError(
                    "packed rows need 16 bits on GPU: set --precision bfloat16 or "
                    "--batch.packed false"
                )
        return self

    @property
    def total_steps(self) -> int:
        """Optimizer steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    def phase_at(self, step: int) -> tuple[int, int]:
        """The number of the phase that step (from 0) falls into, and its first step."""
        first = 0
        for number, phase in enumerate(self.phases):
            if step < first + phase.steps:
                return number, first
            first += phase.steps
        raise ValueError(f"step {step} is beyond the last of {first}")

    def recipe(self) -> dict[str, object]:
        """What decides the weights that come out: a run may only go on under the same."""
        changeable = {"preset", "profile", "name", "storage", "fresh", "shards", "text"}
        changeable |= {
            "vocabulary_size",
            "heldout_share",
            "tracking",
            "cluster",
            "checkpoint",
            "evaluation",
        }
        return self.model_dump(mode="json", exclude=changeable)
