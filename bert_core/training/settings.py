"""Settings of the optimizer; reading them loads no torch."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class OptimizerSettings(BaseModel):
    """The optimizer; the defaults are the paper's (Devlin et al. 2018, A.2)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["adamw", "lamb"] = Field(
        default="adamw",
        description="adamw (the paper), or lamb for large batches",
    )
    peak_learning_rate: float = Field(
        default=1e-4, gt=0, description="learning rate at the end of the warm-up"
    )
    beta1: float = Field(
        default=0.9, ge=0, lt=1, description="decay of the mean of gradients, per step"
    )
    beta2: float = Field(
        default=0.999,
        ge=0,
        lt=1,
        description="decay of the mean of squared gradients, per step",
    )
    epsilon: float = Field(
        default=1e-6,
        gt=0,
        description="added to the root of the second moment",
    )
    weight_decay: float = Field(
        default=0.01,
        ge=0,
        description="decoupled weight decay, per unit of learning rate",
    )
    max_gradient_norm: float = Field(
        default=1.0,
        gt=0,
        description="global L2 norm above which gradients are clipped",
    )


class PretrainingOptimizerSettings(OptimizerSettings):
    """The optimizer of pre-training, with its warm-up."""

    warmup_steps: int = Field(
        default=10_000,
        ge=0,
        description="linear warm-up of the learning rate",
    )
    warmup_share: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="warm-up as a share of all steps, in the place of warmup_steps",
    )
    schedule: Literal["linear", "wsd"] = Field(
        default="linear",
        description="linear: falls after the warm-up (the paper); wsd: stays, then falls in the"
        " last decay_share",
    )
    decay_share: float = Field(
        default=0.1, gt=0, le=1, description="share of all steps in which wsd falls"
    )

    @model_validator(mode="after")
    def _only_wsd_has_a_decay(self) -> Self:
        default = type(self).model_fields["decay_share"].default
        if self.schedule != "wsd" and self.decay_share != default:
            raise ValueError("a linear schedule has no decay_share: set schedule wsd")
        return self

    def warmup_of(self, total_steps: int) -> int:
        """The steps of the warm-up of a run of so many."""
        if self.warmup_share is None:
            return self.warmup_steps
        return round(self.warmup_share * total_steps)


class FinetuningOptimizerSettings(OptimizerSettings):
    """The optimizer of fine-tuning (Devlin et al. 2018, A.3), its warm-up a share of the run."""

    peak_learning_rate: float = Field(
        default=3e-5, gt=0, description="learning rate at the end of the warm-up"
    )
    warmup_share: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="linear warm-up of the learning rate, as a share of all steps",
    )
