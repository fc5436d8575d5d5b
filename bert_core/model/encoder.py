"""The encoder: one hidden state per token from token, segment and position ids.

Shapes: T tokens, real ones only in a packed layout; H hidden size. The layers here are those of the
paper, post-norm; those of the modern block are in `bert_core.model.modern`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bert_core.config import ModelConfig, ModernConfig
from bert_core.model.layout import Layout
from bert_core.model.modern import ModernEmbeddings, ModernLayer
from bert_core.model.operations import Linear, OnDevice


def initialize(module: nn.Module, initializer_range: float) -> None:
    """Draws the parameters of a module tree, in place, from torch's generator.

    - weights of linear layers and embeddings: normal(0, initializer_range), truncated at 2 standard
      deviations (the original implementation of Devlin et al. 2018)
    - biases: 0
    - layer norms: weight 1, bias 0
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            bound = 2 * initializer_range
            nn.init.trunc_normal_(part.weight, std=initializer_range, a=-bound, b=bound)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """`model.eval()` for as long as the block lasts; the mode is then what it was.

    A model that serves is in it already: to say so to each of its parts takes 0.3 ms.
    """
    was_training = model.training
    if was_training:
        model.eval()
    try:
        yield
    finally:
        if was_training:
            model.train()


class SinusoidalPositions(nn.Module):
    """The fixed position encoding of Vaswani et al. 2017, section 3.5; it has no parameters."""

    weight: Tensor

    def __init__(self, num_positions: int, hidden_size: int) -> None:
        super().__init__()
        positions = torch.arange(num_positions, dtype=torch.float64).unsqueeze(1)
        dimensions = torch.arange(0, hidden_size, 2, dtype=torch.float64)
        angles = positions / 10_000 ** (dimensions / hidden_size)  # [positions, hidden / 2]
        table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        self.register_buffer("weight", table[:, :hidden_size].float(), persistent=False)

    def forward(self, position_ids: Tensor) -> Tensor:
        """The encodings [T, H] of positions [T]."""
        return F.embedding(position_ids, self.weight)


class Embeddings(OnDevice):
    """Sums word, segment and position embeddings, then layer norm and dropout (figure 2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden_size = config.hidden_size
        self.word = nn.Embedding(config.vocab_size, hidden_size)
        self.segment = nn.Embedding(config.type_vocab_size, hidden_size)
        self.position: nn.Embedding | SinusoidalPositions
        if config.position_embedding == "learned":
            self.position = nn.Embedding(config.max_position_embeddings, hidden_size)
        self.make_tables(config)
        self.norm = nn.LayerNorm(hidden_size, config.layer_norm_eps)
        self.dropout = config.hidden_dropout_prob

    def make_tables(self, config: ModelConfig) -> None:
        """Computes fixed positions, which are no weights."""
        if config.position_embedding == "sinusoidal":
            self.position = SinusoidalPositions(config.max_position_embeddings, config.hidden_size)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Embeds tokens; all three ids are int64 [T], the result is [T, H]."""
        return self.of_words(self.word(input_ids), token_type_ids, position_ids)

    def rotations(self, position_ids: Tensor) -> None:
        """Nothing: positions are in the embeddings, and layers turn no query."""

    def of_words(self, words: Tensor, token_type_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Embeds tokens whose words' vectors [T, H] are given, whatever they come from.

        With one segment in the table, every token is of that one.
        """
        one = self.segment.num_embeddings == 1
        segment = self.segment.weight if one else self.segment(token_type_ids)
        embedded = words + self.position(position_ids) + segment
        return self.operations.dropout(self.norm(embedded), self.dropout, self.training)


class Layer(OnDevice):
    """One Transformer layer: self-attention, then the feed-forward network, each with its residual.

    Post-norm (Vaswani et al. 2017, section 3.1): norm(states + dropout(sublayer(states))).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden_size, eps = config.hidden_size, config.layer_norm_eps
        self.query_key_value = Linear(hidden_size, 3 * hidden_size)
        self.attention_output = Linear(hidden_size, hidden_size)
        self.attention_norm = nn.LayerNorm(hidden_size, eps)
        self.intermediate = Linear(hidden_size, config.intermediate_size)
        self.output = Linear(config.intermediate_size, hidden_size)
        self.output_norm = nn.LayerNorm(hidden_size, eps)
        self.num_heads = config.num_attention_heads
        self.hidden_dropout = config.hidden_dropout_prob
        self.attention_dropout = config.attention_probs_dropout_prob
        self.is_decoder = config.is_decoder
        self.reach: int | None = None
        """To how many tokens on either side a token attends; None to all."""

    def forward(
        self,
        hidden_states: Tensor,
        layout: Layout,
        rotations: None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """Maps hidden states [T, H] to those of the next layer, [T, H], or [P, H] at `places`."""
        operations = self.operations
        dropout = self.attention_dropout if self.training else 0.0
        query_key_value = self.projections(hidden_states, rotations)
        mixed = operations.attention(
            query_key_value, self.num_heads, layout, dropout, causal=self.is_decoder
        )  # [T, H]
        if places is not None:  # no other token is read: the rest is computed for these alone
            mixed = mixed.index_select(0, places)
            hidden_states = hidden_states.index_select(0, places)
        hidden_states = self.attention_norm(self._add(hidden_states, self.attention_output(mixed)))
        states = operations.feed_forward(hidden_states, self.intermediate, self.output)
        return self.output_norm(self._add(hidden_states, states))

    def projections(self, hidden_states: Tensor, rotations: None = None) -> Tensor:
        """Queries, keys and values, [T, 3H], of hidden states [T, H]."""
        del rotations
        return self.query_key_value(hidden_states)

    def draw(self, config: ModelConfig) -> None:
        """Draws all weights anew, from torch's generator."""
        initialize(self, config.initializer_range)

    def _add(self, residual: Tensor, states: Tensor) -> Tensor:
        return self.operations.add_dropout(residual, states, self.hidden_dropout, self.training)


class Encoder(OnDevice):
    """The stack of layers over the embeddings (Devlin et al. 2018, section 3).

    Where `recomputes_layers` is set, the backward pass computes each layer again instead of keeping
    what is in it: a third more work for the memory of one layer instead of all (Chen et al. 2016,
    arXiv 1604.06174). Dropout is drawn again from the same state, so the gradients are the same.
    """

    recomputes_layers = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings: Embeddings | ModernEmbeddings
        numbers = range(config.num_hidden_layers)
        if isinstance(config, ModernConfig):
            self.embeddings = ModernEmbeddings(config)
            self.layers = nn.ModuleList(ModernLayer(config, number) for number in numbers)
            self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps, bias=False)
        else:
            self.embeddings = Embeddings(config)
            self.layers = nn.ModuleList(Layer(config) for _ in numbers)
            self.norm = nn.Identity()  # each layer's output is normed
            initialize(self, config.initializer_range)

    def keep_layers(self, count: int) -> None:
        """Leaves `count` layers, evenly spaced from the first to the last.

        Of 12 layers 6 are those that DistilBERT starts from (Sanh et al. 2019, arXiv 1910.01108).
        Where layers take turns, global and local ones, they are spaced by whole turns. Raises
        `ValueError` for a count that the encoder does not have.
        """
        present = len(self.layers)
        if not 1 <= count <= present:
            raise ValueError(f"{count} layers of {present}")
        period = self.config.global_every if isinstance(self.config, ModernConfig) else 1
        last_kept = (count - 1) // period
        in_last = count - last_kept * period
        last = (present - in_last) // period  # the last turn with so many layers
        turns = [round(turn * last / max(last_kept, 1)) for turn in range(last_kept + 1)]
        numbers = ((period * turns[each // period] + each % period) for each in range(count))
        self.layers = nn.ModuleList(self.layers[number] for number in numbers)
        self.config = self.config.model_copy(update={"num_hidden_layers": count})

    def set_global_rope_theta(self, global_rope_theta: float) -> None:
        """Gives rotary positions another base in the global layers, in place.

        A higher one tells positions that are further apart: for longer texts than before
        (Xiong et al. 2023, arXiv 2309.16039). Raises `ValueError` for another block.
        """
        if not isinstance(self.embeddings, ModernEmbeddings):
            raise ValueError("the layers of the paper have no rotary positions")
        self.embeddings.of_global.set_theta(global_rope_theta)
        self.config = self.config.model_copy(update={"global_rope_theta": global_rope_theta})

    @property
    def word_embeddings(self) -> Tensor:
        """The table [vocab, H] that the masked-token head shares."""
        return self.embeddings.word.weight

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        position_ids: Tensor,
        layout: Layout,
        places: Tensor | None = None,
    ) -> Tensor:
        """The last layer's hidden states, [T, H], of tokens whose three ids are int64 [T].

        With `places`, indices of tokens, int64 [P], those of these tokens alone, [P, H]: most of
        the last layer is then computed for them alone.
        """
        embedded = self.embeddings(input_ids, token_type_ids, position_ids)
        layers = [len(self.layers)]
        return self.states_of(embedded, layout, position_ids, layers=layers, places=places)[0]

    def hidden_states(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        position_ids: Tensor,
        layout: Layout,
        *,
        layers: Sequence[int],
        places: Tensor | None = None,
    ) -> list[Tensor]:
        """The states after each of `layers`, [T, H] each, in the order asked for.

        Layers count from 1, and 0 are the embeddings; nothing above the highest is computed. With
        `places`, indices of tokens, int64 [P], those of these tokens alone, [P, H].
        """
        embedded = self.embeddings(input_ids, token_type_ids, position_ids)
        return self.states_of(embedded, layout, position_ids, layers=layers, places=places)

    def states_of(
        self,
        embedded: Tensor,
        layout: Layout,
        position_ids: Tensor,
        *,
        layers: Sequence[int],
        places: Tensor | None = None,
    ) -> list[Tensor]:
        """As `hidden_states`, of tokens that are embedded, [T, H], and stand at positions [T]."""
        highest = max(layers)
        states = {0: _at(embedded, places)} if 0 in layers else {}
        # Not `len`: a graph for other programs has any number of tokens.
        count = (embedded if places is None else places).shape[0]
        hidden_states, layout, places = self.operations.filled_up(
            embedded, layout, places, list(self.layers)
        )
        if missing := hidden_states.shape[0] - position_ids.shape[0]:
            position_ids = F.pad(position_ids, (0, missing))
        rotations = self.embeddings.rotations(position_ids)
        for number, layer in enumerate(self.layers[: max(highest - 1, 0)], start=1):
            hidden_states = self._layer(layer, hidden_states, layout, rotations)
            if number in layers:
                states[number] = _at(hidden_states, places)
        if highest > 0:
            last = self.layers[highest - 1]
            states[highest] = self._layer(last, hidden_states, layout, rotations, places)
        if highest == len(self.layers):
            states[highest] = self.norm(states[highest])
        return [states[number][:count] for number in layers]

    def _layer(self, layer: nn.Module, states: Tensor, *more: object) -> Tensor:
        if self.recomputes_layers and torch.is_grad_enabled():
            return cast(Tensor, checkpoint(layer, states, *more, use_reentrant=False))
        return layer(states, *more)


def _at(hidden_states: Tensor, places: Tensor | None) -> Tensor:
    return hidden_states if places is None else hidden_states.index_select(0, places)
