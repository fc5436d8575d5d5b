"""The settings of a model: a published size and what differs, or the shape of a start model."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bert_core.config import SIZES, ModelConfig

_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")
_OPEN = (*_DROPOUT, "max_position_embeddings")
"""What may differ from a start model."""


def _shape_of(config: ModelConfig) -> tuple[int, int, int, int]:
    """Layers, width, heads and intermediate size."""
    return (
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
    )


class ModelSettings(BaseModel):
    """The encoder: a published size, and what may differ from it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
        description="width of the feed-forward layer, if not 4 x hidden_size",
    )
    hidden_dropout_prob: float = Field(
        default=0.1, ge=0, lt=1, description="dropout on hidden states"
    )
    attention_probs_dropout_prob: float = Field(
        default=0.1, ge=0, lt=1, description="dropout on attention probabilities"
    )
    max_position_embeddings: int = Field(default=512, ge=4, description="longest sequence")
    position_embedding: Literal["learned", "sinusoidal"] = Field(
        default="learned", description="learned (the paper) or sinusoidal"
    )
    position_extension: Literal["cyclic", "interpolate"] = Field(
        default="cyclic",
        description="with --start_from, how a longer position table is made: repeated or stretched",
    )

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        shape = self._shape()
        width, heads = shape["hidden_size"], shape["num_attention_heads"]
        if width % heads:
            raise ValueError(
                f"{heads} attention heads cannot share a width of {width}: set "
                "--model.num_attention_heads to a divisor of --model.hidden_size"
            )
        return self

    @property
    def described(self) -> str:
        """The size, and what of its shape is other than that."""
        own = SIZES[self.size].model_dump()
        shape = self._shape().items()
        other = [f"{name} {value}" for name, value in shape if value != own[name]]
        return f"{self.size} with {', '.join(other)}" if other else self.size

    def config(
        self, vocab_size: int, pad_token_id: int, *, is_decoder: bool = False
    ) -> ModelConfig:
        """The architecture for a vocabulary."""
        values = SIZES[self.size].model_dump()
        own = self.model_dump(exclude={"size", "position_extension"}, exclude_none=True)
        values |= own | self._shape()
        values |= {"vocab_size": vocab_size, "pad_token_id": pad_token_id}
        return ModelConfig.model_validate(values | {"is_decoder": is_decoder})

    def continued_from(self, start: ModelConfig) -> Self:
        """These settings with the shape of a start model, and its dropout where none was given.

        Raises `ValueError` for a field that was given and that the start model contradicts.
        """
        given, shape = self.model_fields_set, self._shape()
        asked = shape | {"position_embedding": self.position_embedding}
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
        extends = self.max_position_embeddings > positions
        if self.position_extension != "cyclic" and not (
            "max_position_embeddings" in given and extends
        ):
            raise ValueError(
                "no position table is extended: raise --model.max_position_embeddings above "
                f"{positions}, or leave out --model.position_extension"
            )
        followed = {*asked, "max_position_embeddings", *_DROPOUT} - ({*_OPEN} & given)
        values = {name: getattr(start, name) for name in followed}
        sizes = (name for name, size in SIZES.items() if _shape_of(size) == _shape_of(start))
        return self.model_copy(update=values | {"size": next(sizes, self.size)})

    def _shape(self) -> dict[str, int]:
        """Layers, width, heads and intermediate size."""
        size = SIZES[self.size]
        width = self.hidden_size or size.hidden_size
        return {
            "num_hidden_layers": self.num_hidden_layers or size.num_hidden_layers,
            "hidden_size": width,
            "num_attention_heads": self.num_attention_heads or max(1, width // 64),
            "intermediate_size": self.intermediate_size or 4 * width,
        }
