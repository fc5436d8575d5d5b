"""The sections of pre-training's settings: the model, the phases, and the evaluation.

A model is a published size and what differs, or has the shape of a start model. By phases texts
grow longer (Devlin et al. 2018, A.2: 128, then 512 tokens), batches larger (Warner et al. 2024,
arXiv 2412.13663), and masks fewer (Ankner et al. 2023, arXiv 2305.15096).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bert_core.config import (
    LARGEST_ROPE_THETA,
    MODERN_SIZES,
    SIZES,
    ModelConfig,
    ModernConfig,
    gated_size,
)
from bert_core.strict_files import first_fault

DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")
_OPEN = (*DROPOUT, "max_position_embeddings", "global_rope_theta")
"""What may differ from a start model."""

_SHAPE = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
MODERN_FIELDS = ("local_attention", "global_every", "global_rope_theta")
"""What the modern block alone has."""


def _published(size: str, block: str) -> dict[str, int]:
    """The shape of a published size, in a block."""
    config = SIZES[size] if block == "bert" else MODERN_SIZES[size]
    return {name: getattr(config, name) for name in _SHAPE}


class ModelSettings(BaseModel):
    """The encoder: a published size, and what may differ from it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    block: Literal["bert", "modern"] = Field(
        default="bert",
        description="bert (the paper), or modern (ModernBERT): pre-norm, rotary positions, gated"
        " feed-forward network, no biases, local and global attention, no dropout",
    )
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = Field(
        default="base", description="layers/width 2/128, 4/256, 4/512, 8/512, 12/768, 24/1024"
    )
    num_hidden_layers: int | None = Field(
        default=None, ge=1, description="layers, if not the size's"
    )
    hidden_size: int | None = Field(
        default=None,
        ge=1,
        description="width of the hidden states, if not the size's; heads and intermediate_size"
        " follow it",
    )
    num_attention_heads: int | None = Field(
        default=None, ge=1, description="attention heads, if not one for 64 of the width"
    )
    intermediate_size: int | None = Field(
        default=None,
        ge=1,
        description="width of the feed-forward layer, if not 4 x hidden_size; in the modern block"
        " 8/3 x hidden_size, the same number of parameters",
    )
    hidden_dropout_prob: float = Field(
        default=0.1, ge=0, lt=1, description="dropout on hidden states"
    )
    attention_probs_dropout_prob: float = Field(
        default=0.1, ge=0, lt=1, description="dropout on attention probabilities"
    )
    max_position_embeddings: int = Field(default=512, ge=4, description="longest sequence")
    position_embedding: Literal["learned", "sinusoidal", "rotary"] = Field(
        default="learned",
        description="learned (the paper) or sinusoidal; in the modern block rotary",
    )
    position_extension: Literal["cyclic", "interpolate"] = Field(
        default="cyclic",
        description="with --start_from, how a longer position table is made: repeated or stretched",
    )

    local_attention: int = Field(
        default=128, ge=2, description="tokens that a local layer of the modern block sees"
    )
    global_every: int = Field(
        default=3,
        ge=1,
        description="in the modern block, of so many layers the first attends to all tokens",
    )
    global_rope_theta: float = Field(
        default=10_000.0,
        gt=1,
        description="base of the rotary positions of the modern block's global layers; 160000 for"
        " texts of 8192 tokens",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _the_block_has_defaults(cls, values: Any, build: Any) -> Self:  # noqa: ANN401 - of pydantic
        if not isinstance(values, dict) or values.get("block") != "modern":
            return build(values)
        usual = dict.fromkeys(DROPOUT, 0.0) | {"position_embedding": "rotary"}
        settings = build(usual | values)
        settings.model_fields_set.intersection_update(values)  # a start model has its own
        return settings

    @model_validator(mode="after")
    def _the_block_has_these(self) -> Self:
        if (self.position_embedding == "rotary") != (self.block == "modern"):
            raise ValueError(
                f"the {self.block} block has no {self.position_embedding} positions: leave out "
                "--model.position_embedding"
            )
        fields = type(self).model_fields
        given = [name for name in MODERN_FIELDS if getattr(self, name) != fields[name].default]
        if self.block == "bert" and given:
            raise ValueError(f"{given[0]} is of another block: add --model.block modern")
        return self

    @model_validator(mode="after")
    def _sizes_are_an_encoders(self) -> Self:
        shape = self._shape()
        width, heads = shape["hidden_size"], shape["num_attention_heads"]
        if width % heads:
            raise ValueError(
                f"{heads} attention heads cannot share a width of {width}: set "
                "--model.num_attention_heads to a divisor of --model.hidden_size"
            )
        try:
            self.config(vocab_size=30_000, pad_token_id=0)
        except ValidationError as error:
            raise ValueError(first_fault(error).removeprefix("Value error, ")) from error
        return self

    @property
    def described(self) -> str:
        """The size, and what of its shape is other than that."""
        published = _published(self.size, self.block)
        shape = self._shape().items()
        other = [f"{name} {value}" for name, value in shape if value != published[name]]
        name = f"modern {self.size}" if self.block == "modern" else self.size
        return f"{name} with {', '.join(other)}" if other else name

    def config(
        self, vocab_size: int, pad_token_id: int, *, is_decoder: bool = False
    ) -> ModelConfig:
        """The architecture for a vocabulary."""
        is_modern = self.block == "modern"
        kept = {*type(self).model_fields} - {"size", "block", "position_extension"}
        kept -= set() if is_modern else {*MODERN_FIELDS}
        values = self.model_dump(include=kept) | self._shape()
        values |= {"vocab_size": vocab_size, "pad_token_id": pad_token_id, "is_decoder": is_decoder}
        return (ModernConfig if is_modern else ModelConfig).model_validate(values)

    def continued_from(self, start: ModelConfig) -> Self:
        """These settings with the shape of a start model, and its dropout where none was given.

        Raises `ValueError` for a field that was given and that the start model contradicts.
        """
        given, shape = self.model_fields_set, self._shape()
        block = "modern" if isinstance(start, ModernConfig) else "bert"
        if "block" in given and block != self.block:
            raise ValueError(
                f"the start model has the {block} block, not the {self.block} one: leave out "
                "--model.block"
            )
        own = MODERN_FIELDS if block == "modern" else ()
        names = ("position_embedding", *(name for name in own if name not in _OPEN))
        asked = shape | {name: getattr(self, name) for name in names}
        for name, value in asked.items():
            option = "size" if name in shape and "size" in given else name
            if option in given and value != getattr(start, name):
                raise ValueError(
                    f"the start model has {name} {getattr(start, name)}, not {value}: leave out "
                    f"--model.{name if name in given else option}, or, if the preset sets it, "
                    "take --preset adapt"
                )
        positions = start.max_position_embeddings
        if "max_position_embeddings" in given and self.max_position_embeddings < positions:
            raise ValueError(
                f"the start model has {positions} positions, not {self.max_position_embeddings}: "
                "leave out --model.max_position_embeddings, or raise it"
            )
        extends = "max_position_embeddings" in given and self.max_position_embeddings > positions
        has_table = start.position_embedding == "learned"
        if self.position_extension != "cyclic" and not has_table:
            raise ValueError(
                f"the start model's positions are {start.position_embedding}, in no table: leave "
                "out --model.position_extension"
            )
        if self.position_extension != "cyclic" and not extends:
            raise ValueError(
                "no position table is extended: raise --model.max_position_embeddings above "
                f"{positions}, or leave out --model.position_extension"
            )
        followed = {*asked, *own, "max_position_embeddings", *DROPOUT} - ({*_OPEN} & given)
        values = {name: getattr(start, name) for name in followed} | {"block": block}
        shape = {name: getattr(start, name) for name in _SHAPE}
        sizes = (size for size in SIZES if _published(size, block) == shape)
        return self.model_copy(update=values | {"size": next(sizes, self.size)})

    @property
    def changes(self) -> dict[str, float]:
        """What a start model computes otherwise than its folder says."""
        names = DROPOUT if self.block == "bert" else (*DROPOUT, "global_rope_theta")
        return {name: getattr(self, name) for name in names}

    def _shape(self) -> dict[str, int]:
        """Layers, width, heads and intermediate size."""
        size = SIZES[self.size]
        width = self.hidden_size or size.hidden_size
        inner = 4 * width if self.block == "bert" else gated_size(width)
        return {
            "num_hidden_layers": self.num_hidden_layers or size.num_hidden_layers,
            "hidden_size": width,
            "num_attention_heads": self.num_attention_heads or max(1, width // 64),
            "intermediate_size": self.intermediate_size or inner,
        }


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
        le=LARGEST_ROPE_THETA,
        description="base of the rotary positions of global layers, if not --model's",
    )


def described_phases(phases: Sequence[Phase], *, times: str = " x ") -> str:
    """Steps and length of each phase, and what else is its own: `900 x 128, 100 x 512`."""
    texts = []
    for phase in phases:
        own = phase.model_dump(exclude={"steps", "sequence_length"})
        more = ", ".join(f"{name} {value}" for name, value in own.items())
        texts.append(f"{phase.steps:,}{times}{phase.sequence_length}" + (more and f" ({more})"))
    return ", ".join(texts)


class EvaluationSettings(BaseModel):
    """When and on how much the model is measured on held-out documents."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    every_steps: int = Field(
        default=10_000,
        ge=1,
        description="steps between evaluations, also at the end",
    )
    num_rows: int = Field(
        default=2048, ge=1, description="held-out rows an evaluation reads, at most"
    )
    masked_share: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="masking rate of held-out rows; by default that of --rows, in all phases",
    )
    other: Path | None = Field(
        default=None,
        description="token shards of other text, such as general one, whose held-out rows are"
        " measured too, as other/…",
    )
