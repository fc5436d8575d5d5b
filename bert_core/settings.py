"""Settings of training rows, batches and the optimizer; importing them loads no torch."""

import math
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

BINS_PER_STEP = 4
"""A bin of packed rows holds at most one part in so many of a global batch."""
BINS_VERSION = 2
"""Version of the packing of rows into bins: a run cannot resume under another one."""
ORDER_VERSION = 2
"""Version of the order of rows where it is not that of one phase: in 1 each phase began anew."""

Objective = Literal["mlm_nsp", "mlm", "left_to_right"]

Recompute = Annotated[
    Literal["nothing", "layers"],
    Field(
        description="layers: compute layers again in the backward pass; the same results with less"
        " memory, a third more work"
    ),
]

_OF_MASKING = ("masked_share", "mask_token_share", "random_token_share", "whole_word")


class RowSettings(BaseModel):
    """How documents become rows and what is hidden in them (Devlin et al. 2018, section 3.1)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    objective: Objective = Field(
        default="mlm_nsp",
        description="mlm_nsp: masked tokens and next sentence (the paper); mlm: masked tokens;"
        " left_to_right: next token, causal attention",
    )
    input_format: Literal["segment_pair", "full_sentences"] = Field(
        default="segment_pair",
        description="segment_pair: two segments (the paper); full_sentences: as many sentences as"
        " fit, without next-sentence prediction (RoBERTa)",
    )
    short_row_share: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="share of rows of a random shorter length (segment_pair)",
    )
    masked_share: float = Field(
        default=0.15,
        gt=0,
        lt=1,
        description="masking rate: share of a row's tokens to predict",
    )
    mask_token_share: float = Field(
        default=0.8, ge=0, le=1, description="share of the predicted tokens replaced by [MASK]"
    )
    random_token_share: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="share of the predicted tokens replaced by a random token; the rest stay",
    )
    whole_word: bool = Field(default=False, description="mask all pieces of a word together")
    static_masks: int | None = Field(
        default=None,
        ge=1,
        description="fixed copies of rows and masks, reused in turn (the paper: 10); by default"
        " every epoch has new ones",
    )

    @model_validator(mode="after")
    def _shares_add_up_to_one(self) -> Self:
        if self.mask_token_share + self.random_token_share > 1 + 1e-9:
            raise ValueError(
                f"mask_token_share {self.mask_token_share:g} and random_token_share "
                f"{self.random_token_share:g} are more than 1 together: with the tokens that stay "
                "the same they make 1"
            )
        return self

    @model_validator(mode="after")
    def _sentences_come_in_pairs(self) -> Self:
        if self.objective == "mlm_nsp" and self.input_format != "segment_pair":
            raise ValueError(
                f"objective mlm_nsp needs pairs of segments, not {self.input_format}: set "
                "objective mlm or input_format segment_pair"
            )
        return self

    @model_validator(mode="after")
    def _no_share_is_ignored(self) -> Self:
        """A sweep would train the same model twice."""
        fields = type(self).model_fields
        changed = [name for name in _OF_MASKING if getattr(self, name) != fields[name].default]
        if self.objective == "left_to_right" and changed:
            raise ValueError(f"left_to_right masks nothing: leave out {', '.join(changed)}")
        shortens = self.short_row_share != fields["short_row_share"].default
        if self.input_format == "full_sentences" and shortens:
            raise ValueError("full_sentences has no short rows: leave out short_row_share")
        return self

    @property
    def described(self) -> str:
        """The objective, and what of rows and masks is other than the paper's, in a line."""
        default, parts = RowSettings(), [str(self.objective)]
        if self.input_format != default.input_format:
            parts.append(self.input_format)
        if self.masked_share != default.masked_share:
            parts.append(f"{self.masked_share:.4g} of the tokens predicted")
        shares = self.mask_token_share, self.random_token_share, self.same_token_share
        if shares[:2] != (default.mask_token_share, default.random_token_share):
            names = ("[MASK]", "random", "the same")
            pairs = zip(shares, names, strict=True)
            parts.append("of these " + " / ".join(f"{share:.4g} {name}" for share, name in pairs))
        if self.whole_word:
            parts.append("whole words")
        return ", ".join(parts)

    @property
    def are_the_papers(self) -> bool:
        """Whether `described` says nothing but the paper's objective."""
        return self.described == RowSettings().objective

    @property
    def same_token_share(self) -> float:
        """Share of the predicted tokens that stay as they are."""
        return max(0.0, 1 - self.mask_token_share - self.random_token_share)


_NEXT_TOKENS = {
    "masked_token_loss": "next_token_loss",
    "masked_token_accuracy": "next_token_accuracy",
    "perplexity": "next_token_perplexity",
}
"""Names of their own: losses of masked and of next tokens, of other questions, must not meet."""


def metric_name(objective: Objective, name: str) -> str:
    """What a figure of masked tokens is called under an objective: left to right, of next ones."""
    return _NEXT_TOKENS.get(name, name) if objective == "left_to_right" else name


def predicted(objective: Objective) -> str:
    """What is predicted, in words: `masked-token` or `next-token`."""
    return "next-token" if objective == "left_to_right" else "masked-token"


class BatchSettings(BaseModel):
    """How many rows make a step, and how they are divided for one forward pass."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    global_batch_size: int = Field(
        default=256, ge=1, description="rows per optimizer step, all workers"
    )
    micro_batch_size: int = Field(default=32, ge=1, description="rows per worker and forward pass")
    packed: bool = Field(
        default=False,
        description="pack rows of any length into bins of micro_batch_size x sequence_length"
        " tokens",
    )

    @property
    def rows_of_a_bin(self) -> int:
        """Rows of full length that a bin of packed rows has room for."""
        return min(self.micro_batch_size, -(-self.global_batch_size // BINS_PER_STEP))

    @property
    def rows_at_once(self) -> int:
        """Rows of full length that a forward pass has room for."""
        return self.rows_of_a_bin if self.packed else self.micro_batch_size


class OptimizerSettings(BaseModel):
    """The optimizer; the defaults are the paper's (Devlin et al. 2018, A.2)."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: Literal["adamw", "lamb", "stableadamw"] = Field(
        default="adamw",
        description="adamw (the paper), lamb for large batches, or stableadamw, whose updates are"
        " clipped where gradients grow at once",
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
        allow_inf_nan=True,  # infinity clips nothing
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


class _Changes(BaseModel):
    """Settings that change nothing by default."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @property
    def changed(self) -> list[str]:
        """The names of those that are other than by default."""
        plain = type(self)()
        return [name for name, value in self if value != getattr(plain, name)]


class LabelLossSettings(_Changes):
    """What the loss of labels makes of those that are rare, easy, or wrong."""

    class_weights: Literal["none", "balanced"] | dict[str, float] = Field(
        default="none",
        description="how much each label's examples count: none: alike; balanced: the labels"
        ' alike, however rare; or JSON, {"spam": 5} (others 1)',
    )
    focal_gamma: float = Field(
        default=0.0,
        ge=0,
        description="above 0, sure decisions count less: (1 - p)^gamma times (focal loss)",
    )
    label_smoothing: float = Field(
        default=0.0, ge=0, lt=1, description="share of the target that all labels have alike"
    )

    @field_validator("class_weights")
    @classmethod
    def _weights_are_positive(cls, given: str | dict[str, float]) -> str | dict[str, float]:
        if isinstance(given, dict) and not all(0 < each < math.inf for each in given.values()):
            raise ValueError("give weights above 0")
        return given


class EvaluationPlan(BaseModel):
    """When a run is measured on dev, and which of its states is the best."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    every_steps: int | None = Field(
        default=None, ge=1, description="steps between evaluations on dev; by default an epoch's"
    )
    metric: str | None = Field(
        default=None,
        description="figure on dev that selects the best state: loss, or any of the task's metrics,"
        " of errors the least; by default the one that the task is measured by",
    )


class DistillationSettings(_Changes):
    """How a student learns from a teacher (Hinton et al. 2015, arXiv 1503.02531)."""

    temperature: float = Field(
        default=2.0, gt=0, description="logits of both are divided by it: above 1 they say more"
    )
    alpha: float = Field(
        default=0.9, ge=0, le=1, description="share of the loss to the teacher; the rest is labels'"
    )


class DecisionSettings(_Changes):
    """What is tuned on dev after the best epoch; it is kept where it helps out of fold."""

    temperature: bool = Field(
        default=False,
        description="divide the logits by a temperature, so that scores are calibrated; no label"
        " of single labels changes",
    )
    thresholds: bool = Field(
        default=False,
        description="choose the probability above which a label is given by the criterion; of two"
        " labels, or several",
    )


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
    layer_decay: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="share of a layer's learning rate that the layer below it has; heads have the"
        " full rate",
    )


_WIDTHS, _RATES = (128, 768), (1e-3, 5e-5)
"""Learning rates that are known to be good at these widths: the demo's, and the paper's (A.3)."""


def rate_for(width: int) -> float:
    """A learning rate of fine-tuning for an encoder so wide: the narrower the larger.

    On the line through two known ones, both axes logarithmic, to one digit; beyond them constant.
    """
    (narrow, wide), (high, low) = _WIDTHS, _RATES
    share = math.log(min(max(width, narrow), wide) / narrow) / math.log(wide / narrow)
    return float(f"{high * (low / high) ** share:.0e}")
