"""The phases of pre-training: stretches of one sequence length, and what else differs in each.

By phases texts grow longer (Devlin et al. 2018, A.2: 128, then 512 tokens), batches larger
(Warner et al. 2024, arXiv 2412.13663), and masks fewer (Ankner et al. 2023, arXiv 2305.15096).
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


def _is_none(value: object) -> bool:
    """Whether a phase has a setting not for itself; older recipes do not have it."""
    return value is None


class Phase(BaseModel):
    """A stretch of training at one sequence length, and what else differs in it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sequence_length: int = Field(ge=8, description="longest row")
    steps: int = Field(ge=1, description="optimizer steps")
    trains: Literal["all", "new_pieces"] = Field(
        default="all",
        exclude_if=lambda trains: trains == "all",  # older recipes do not have it
        description="new_pieces, with --vocabulary extend: rows of the new word pieces, and heads"
        " that the start model lacks",
    )
    global_batch_size: int | None = Field(
        default=None, exclude_if=_is_none, ge=1, description="rows per step, if not --batch's"
    )
    micro_batch_size: int | None = Field(
        default=None, exclude_if=_is_none, ge=1, description="rows per pass, if not --batch's"
    )
    masked_share: float | None = Field(
        default=None, exclude_if=_is_none, gt=0, lt=1, description="masking rate, if not --rows'"
    )
    global_rope_theta: float | None = Field(
        default=None,
        exclude_if=_is_none,
        gt=1,
        description="base of the rotary positions of global layers, if not --model's",
    )


def described(phases: Sequence[Phase], *, times: str = " x ") -> str:
    """Steps and length of each phase, and what else is its own: `900 x 128, 100 x 512`."""
    texts = []
    for phase in phases:
        own = phase.model_dump(exclude={"steps", "sequence_length"})
        more = ", ".join(f"{name} {value}" for name, value in own.items())
        texts.append(f"{phase.steps:,}{times}{phase.sequence_length}" + (more and f" ({more})"))
    return ", ".join(texts)
