"""The shape of a BERT encoder, the published sizes by name, and the FLOPs that a shape costs.

Field names are those of Hugging Face's config.json, so that a model folder needs no renaming.
"""

import math
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

IGNORE_INDEX = -100
"""The label of a place that carries no loss, as in `torch.nn.functional.cross_entropy`."""

LARGEST_ROPE_THETA = 1e12

VocabSize = Annotated[
    int, Field(ge=5, le=10_000_000, description="entries of the word-piece vocabulary")
]
NumLayers = Annotated[int, Field(ge=1, le=1_000, description="encoder layers, L in the paper")]
IntermediateSize = Annotated[
    int, Field(ge=1, le=1_048_576, description="width of the feed-forward layer")
]
NumPositions = Annotated[int, Field(ge=4, le=1_048_576, description="longest sequence")]
HiddenDropout = Annotated[float, Field(ge=0, lt=1, description="dropout on hidden states")]
AttentionDropout = Annotated[
    float, Field(ge=0, lt=1, description="dropout on attention probabilities")
]
Epsilon = Annotated[float, Field(gt=0, le=1, description="epsilon of every layer norm")]
TokenId = Annotated[int, Field(ge=0, le=10_000_000, description="id of [PAD]")]
PositionKind = Annotated[
    Literal["learned", "sinusoidal", "rotary"],
    Field(
        description="learned (the paper), sinusoidal (the original Transformer), or rotary, which"
        " the modern block has and no other"
    ),
]


class ModelConfig(BaseModel):
    """The architecture of one encoder; the defaults are BERT base (Devlin et al. 2018, section 3).

    Raises `pydantic.ValidationError` for an unknown field or sizes that do not fit together.

        config = ModelConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4)
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    has_biases: ClassVar[bool] = True
    """Whether maps and norms add a bias."""

    transforms_every_state: ClassVar[bool] = False
    """Whether each head of a task reads states through the pooler, those of single tokens too."""

    vocab_size: VocabSize = 30_522
    hidden_size: int = Field(
        default=768, ge=1, le=65_536, description="width of the hidden states, H in the paper"
    )
    num_hidden_layers: NumLayers = 12
    num_attention_heads: int = Field(
        default=12, ge=1, le=65_536, description="attention heads, A in the paper"
    )
    intermediate_size: IntermediateSize = 3072
    max_position_embeddings: NumPositions = 512
    type_vocab_size: int = Field(
        default=2, ge=1, le=65_536, description="number of segments (A and B)"
    )
    hidden_dropout_prob: HiddenDropout = 0.1
    attention_probs_dropout_prob: AttentionDropout = 0.1
    initializer_range: float = Field(
        default=0.02,
        gt=0,
        le=1,
        description="standard deviation of the truncated normal initialisation",
    )
    layer_norm_eps: Epsilon = 1e-12
    position_embedding: PositionKind = "learned"
    pad_token_id: TokenId = 0
    is_decoder: bool = Field(
        default=False,
        description="whether a token attends to itself and those before it only, left to right",
    )

    @property
    def output_range(self) -> float:
        """The initial standard deviation of the maps that a head begins with."""
        return self.initializer_range

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )
        if self.position_embedding == "rotary" and not isinstance(self, ModernConfig):
            raise ValueError("the layers of the paper have no rotary positions")
        return self

    @model_validator(mode="after")
    def _padding_is_a_token(self) -> Self:
        if self.pad_token_id >= self.vocab_size:
            raise ValueError(
                f"pad_token_id {self.pad_token_id} is not below vocab_size {self.vocab_size}"
            )
        return self


class ModernConfig(ModelConfig):
    """The architecture of an encoder of the modern block; the defaults are ModernBERT base.

    Warner et al. 2024, arXiv 2412.13663. It has one segment, and reads in both directions.
    """

    has_biases: ClassVar[bool] = False
    transforms_every_state: ClassVar[bool] = True

    vocab_size: VocabSize = 50_368
    num_hidden_layers: NumLayers = 22
    intermediate_size: IntermediateSize = 1152
    max_position_embeddings: NumPositions = 8192
    type_vocab_size: int = Field(default=1, ge=1, le=1, description="number of segments")
    hidden_dropout_prob: HiddenDropout = 0.0
    attention_probs_dropout_prob: AttentionDropout = 0.0
    layer_norm_eps: Epsilon = 1e-5
    position_embedding: PositionKind = "rotary"
    pad_token_id: TokenId = 50_283
    local_attention: int = Field(
        default=128, ge=2, le=1_048_576, description="tokens that a local layer sees around each"
    )
    global_every: int = Field(
        default=3, ge=1, le=1_000, description="of so many layers the first attends to all tokens"
    )
    global_rope_theta: float = Field(
        default=160_000.0,
        gt=1,
        le=LARGEST_ROPE_THETA,
        description="slowest rotation's period in global layers",
    )
    local_rope_theta: float = Field(
        default=10_000.0,
        gt=1,
        le=LARGEST_ROPE_THETA,
        description="slowest rotation's period in local layers",
    )

    @property
    def output_range(self) -> float:
        """The initial standard deviation of maps that end a residual branch or precede a head."""
        return self.initializer_range / math.sqrt(2 * self.num_hidden_layers)

    @model_validator(mode="after")
    def _heads_turn_in_pairs(self) -> Self:
        if self.hidden_size // self.num_attention_heads % 2:
            raise ValueError("rotary positions need heads of an even size")
        if self.is_decoder or self.position_embedding != "rotary":
            raise ValueError("the modern block reads in both directions, with rotary positions")
        return self


def _size(num_hidden_layers: int, hidden_size: int) -> ModelConfig:
    return ModelConfig(
        num_hidden_layers=num_hidden_layers,
        hidden_size=hidden_size,
        num_attention_heads=hidden_size // 64,
        intermediate_size=4 * hidden_size,
    )


SIZES: dict[str, ModelConfig] = {
    "tiny": _size(2, 128),
    "mini": _size(4, 256),
    "small": _size(4, 512),
    "medium": _size(8, 512),
    "base": _size(12, 768),
    "large": _size(24, 1024),
}
"""Base and large of the paper, and the compact models of Turc et al. 2019 (arXiv 1908.08962)."""


def gated_size(width: int) -> int:
    """The width of a gated feed-forward layer with as many parameters as the paper's 4 x width.

    It has three maps for two; a multiple of 64.
    """
    return max(64, round(width / 24) * 64)


MODERN_SIZES: dict[str, ModernConfig] = {
    name: ModernConfig(
        num_hidden_layers=size.num_hidden_layers,
        hidden_size=size.hidden_size,
        num_attention_heads=size.num_attention_heads,
        intermediate_size=gated_size(size.hidden_size),
        global_rope_theta=10_000.0,
    )
    for name, size in SIZES.items()
}
"""The same sizes in the modern block."""


def forward_flops(
    config: ModelConfig,
    *,
    num_tokens: int,
    sum_of_squared_lengths: float,
    num_predictions: int,
    num_rows: int,
    num_read: int,
) -> float:
    """FLOPs of one forward pass with both pre-training heads: for real tokens only, never padding.

    A multiply-add counts as 2. Dropout, norms, activations, embeddings and the optimizer are
    ignored.

    `sum_of_squared_lengths` is the sum over sequences of length squared, which attention costs; in
    a decoder a token meets itself and those before it, about half as many pairs, in a local layer
    those in its reach.
    `num_predictions` are the masked or next tokens projected to the vocabulary. `num_read` are the
    tokens whose last state a head reads: behind its attention the last layer is computed for these
    alone.
    """
    layers, hidden = config.num_hidden_layers, config.hidden_size
    maps = 2  # of the feed-forward network; gated, its first one is two
    pairs = layers * sum_of_squared_lengths
    if config.is_decoder:
        pairs = layers * (sum_of_squared_lengths + num_tokens) / 2
    if isinstance(config, ModernConfig):
        maps, of_all = 3, -(-layers // config.global_every)
        nearby = min(sum_of_squared_lengths, num_tokens * (config.local_attention + 1))
        pairs = of_all * sum_of_squared_lengths + (layers - of_all) * nearby
    behind_attention = 2 * hidden**2 + 2 * maps * hidden * config.intermediate_size
    return (
        num_tokens * layers * (6 * hidden**2 + behind_attention)
        - (num_tokens - num_read) * behind_attention
        + 4 * hidden * pairs
        + num_predictions * 2 * (hidden**2 + hidden * config.vocab_size)
        + num_rows * (2 * hidden**2 + 4 * hidden)
    )


def training_flops(config: ModelConfig, **counts: Any) -> float:  # noqa: ANN401 - typed above
    """FLOPs of a forward and a backward pass: three times those of `forward_flops`."""
    return 3 * forward_flops(config, **counts)
