"""What a user may set about rows and batches.

Apart from what acts on it, so that a command line is read without loading torch.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class RowSettings(BaseModel):
    """How documents become rows and what is hidden in them (Devlin et al. 2018, section 3.1)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    objective: Literal["mlm_nsp", "mlm"] = Field(
        default="mlm_nsp",
        description="mlm_nsp: pairs of segments (the paper); mlm: full sentences without "
        "next-sentence prediction (RoBERTa)",
    )
    short_row_share: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="share of rows planned for a random shorter length (mlm_nsp)",
    )
    masked_share: float = Field(
        default=0.15, gt=0, lt=1, description="share of a row's tokens to predict"
    )
    mask_token_share: float = Field(
        default=0.8, ge=0, le=1, description="share of the predicted tokens replaced by [MASK]"
    )
    random_token_share: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="share of the predicted tokens replaced by a random token",
    )
    whole_word: bool = Field(default=False, description="mask all pieces of a word together")
    static_masks: int | None = Field(
        default=None,
        ge=1,
        description="number of fixed copies of rows and masks that the epochs go round (the "
        "paper: 10); without it every epoch has rows and masks of its own",
    )


class BatchSettings(BaseModel):
    """How many rows make a step, and how they are divided for one forward pass."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    global_batch_size: int = Field(
        default=256, ge=1, description="rows per optimizer step, all workers"
    )
    micro_batch_size: int = Field(default=32, ge=1, description="rows per worker and forward pass")
    packed: bool = Field(
        default=False,
        description="pack rows of any length into bins of micro_batch_size x sequence_length "
        "tokens instead of counting rows (a step then has about global_batch_size rows)",
    )
