"""The block of ModernBERT (Warner et al. 2024, arXiv 2412.13663): pre-norm, rotary, gated, local.

Shapes: T tokens, A heads of size D, H hidden size, P places to read.
"""

import torch
from torch import Tensor, nn

from bert_core.config import ModelConfig, ModernConfig
from bert_core.model.layout import Layout
from bert_core.model.operations import Linear, OnDevice, Rotations


class ModernEmbeddings(OnDevice):
    """Word embeddings, layer norm and dropout; where a token stands, the layers are told."""

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps, bias=False)
        self.dropout = config.hidden_dropout_prob
        self.make_tables(config)
        draw_within(self.word.weight, config.initializer_range)

    def make_tables(self, config: ModelConfig) -> None:
        """Computes the rates of the rotations, which are no weights."""
        assert isinstance(config, ModernConfig)
        head_size = config.hidden_size // config.num_attention_heads
        self.of_global = RotaryPositions(config.global_rope_theta, head_size)
        self.of_local = RotaryPositions(config.local_rope_theta, head_size)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Embeds tokens, int64 [T]: [T, H]."""
        return self.of_words(self.word(input_ids), token_type_ids, position_ids)

    def of_words(self, words: Tensor, token_type_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Embeds tokens whose words' vectors [T, H] are given."""
        del token_type_ids, position_ids
        return self.operations.dropout(self.norm(words), self.dropout, self.training)

    def rotations(self, position_ids: Tensor) -> tuple[Rotations, Rotations]:
        """The turns of queries and keys at positions [T]: in global layers, in local ones."""
        return self.of_global(position_ids), self.of_local(position_ids)


class RotaryPositions(nn.Module):
    """The angles of rotary positions (Su et al. 2021, arXiv 2104.09864); no parameters."""

    rates: Tensor

    def __init__(self, theta: float, head_size: int) -> None:
        super().__init__()
        rates = torch.empty(head_size // 2, dtype=torch.float)
        self.register_buffer("rates", rates, persistent=False)
        self.set_theta(theta)

    def set_theta(self, theta: float) -> None:
        """Sets the period of the slowest rotation, in place, in 1 / 2 pi tokens."""
        size = 2 * len(self.rates)
        powers = torch.arange(0, size, 2, dtype=torch.float, device=self.rates.device) / size
        self.rates.copy_(1.0 / theta**powers)

    def forward(self, position_ids: Tensor) -> Rotations:
        """Cosines and sines, [T, D / 2] each, for tokens at positions [T]."""
        angles = position_ids.unsqueeze(1) * self.rates
        return angles.cos(), angles.sin()


class ModernLayer(OnDevice):
    """Self-attention, then a gated feed-forward network, each of the normed states.

    Every `global_every`-th layer, from the first, attends to the whole sequence, the others to
    `local_attention` tokens around each. No map has a bias.
    """

    def __init__(self, config: ModernConfig, number: int) -> None:
        super().__init__()
        hidden_size, eps = config.hidden_size, config.layer_norm_eps
        # The embeddings are normed already.
        self.attention_norm = (
            nn.LayerNorm(hidden_size, eps, bias=False) if number else nn.Identity()
        )
        self.query_key_value = Linear(hidden_size, 3 * hidden_size, bias=False)
        self.attention_output = Linear(hidden_size, hidden_size, bias=False)
        self.output_norm = nn.LayerNorm(hidden_size, eps, bias=False)
        self.intermediate = Linear(hidden_size, 2 * config.intermediate_size, bias=False)
        self.output = Linear(config.intermediate_size, hidden_size, bias=False)
        self.num_heads = config.num_attention_heads
        self.dropout = config.hidden_dropout_prob
        self.attention_dropout = config.attention_probs_dropout_prob
        self.is_local = number % config.global_every != 0
        self.reach = config.local_attention // 2 if self.is_local else None
        self.draw(config)

    def forward(
        self,
        hidden_states: Tensor,
        layout: Layout,
        rotations: tuple[Rotations, Rotations],
        places: Tensor | None = None,
    ) -> Tensor:
        """Maps hidden states [T, H] to those of the next layer, [T, H], or [P, H] at `places`."""
        operations = self.operations
        dropout = self.attention_dropout if self.training else 0.0
        query_key_value = self.projections(hidden_states, rotations)
        mixed = operations.attention(
            query_key_value, self.num_heads, layout, dropout, reach=self.reach
        )  # [T, H]
        if places is not None:  # no other token is read: the rest is computed for these alone
            mixed = mixed.index_select(0, places)
            hidden_states = hidden_states.index_select(0, places)
        hidden_states = self._add(hidden_states, self.attention_output(mixed))
        states = operations.gated_feed_forward(
            self.output_norm(hidden_states), self.intermediate, self.output
        )
        return self._add(hidden_states, states)

    def projections(self, hidden_states: Tensor, rotations: tuple[Rotations, Rotations]) -> Tensor:
        """Queries, keys and values, [T, 3H], of hidden states [T, H], turned by their positions."""
        query_key_value = self.query_key_value(self.attention_norm(hidden_states))
        rotation = rotations[int(self.is_local)]
        return self.operations.rotate(query_key_value, self.num_heads, rotation)

    def draw(self, config: ModelConfig) -> None:
        """Draws all weights anew, from torch's generator."""
        for part in (self.query_key_value, self.intermediate):
            draw_within(part.weight, config.initializer_range)
        for part in (self.attention_output, self.output):
            draw_within(part.weight, config.output_range)
        for part in (self.attention_norm, self.output_norm):
            if isinstance(part, nn.LayerNorm):
                nn.init.ones_(part.weight)

    def _add(self, residual: Tensor, states: Tensor) -> Tensor:
        return self.operations.add_dropout(residual, states, self.dropout, self.training)


def draw_within(weight: Tensor, deviation: float) -> None:
    """Draws a weight, in place: normal(0, deviation), truncated at two standard deviations."""
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
