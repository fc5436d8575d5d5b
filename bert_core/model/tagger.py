"""The feature-based tagger of section 5.3: frozen features, a BiLSTM over words, a classifier.

Shapes: K layers that are read, P places (first sub-words), R rows, H hidden size, L outputs.
"""

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from bert_core.config import ModelConfig
from bert_core.model.operations import OnDevice
from bert_core.model.strategies import Strategy

FEATURE_TAGGER = "feature_tagger"
"""Its name in `Bert.heads` and in the weights."""


class LayerMix(nn.Module):
    """A learned weighted sum of layers: a softmax over one number for each, times a scale.

    As Peters et al. 2018, equation 1, have it, and the weighted sums of Table 7.
    """

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(num_layers))
        self.scale = nn.Parameter(torch.ones(()))

    @property
    def weights(self) -> Tensor:
        """Returns the weight of each layer, [K]."""
        return self.scale * self.logits.softmax(0)


class FeatureTagger(OnDevice):
    """Tags words by what an encoder that is not trained says of them.

    The weights say all there is to know: `layers` [K] are the layers that are read, 0 being the
    embeddings; a mix stands there where their weights are learned; and one vector or K of them go
    into the LSTM.
    """

    layers: Tensor

    def __init__(
        self,
        strategy: Strategy,
        config: ModelConfig,
        *,
        num_outputs: int,
        lstm_size: int = 768,
        lstm_layers: int = 2,
        dropout_prob: float = 0.0,
    ) -> None:
        super().__init__()
        num_layers = config.num_hidden_layers
        layers = strategy.layers_of(num_layers)
        self.strategy = strategy
        self.register_buffer("layers", torch.tensor(layers))
        self.mix = LayerMix(len(layers)) if strategy.is_learned else None
        self.lstm = nn.LSTM(
            strategy.feature_size(num_layers, config.hidden_size),
            lstm_size,
            lstm_layers,
            bidirectional=True,
        )
        self.linear = nn.Linear(2 * lstm_size, num_outputs)
        self.dropout = dropout_prob

    def forward(self, states: Sequence[Tensor], place_counts: Tensor) -> Tensor:
        """Logits [P, L] of the states [P, H] of each of `layers`; row by row, [R] counts places."""
        weights = None if self.mix is None else self.mix.weights
        features = self.strategy.combine([state.float() for state in states], weights)
        features = self.operations.dropout(features, self.dropout, self.training)
        rows = [row for row in features.split(place_counts.tolist()) if len(row)]
        if not rows:
            return self.linear(features.new_zeros(0, self.linear.in_features))
        read, _ = self.lstm(pack_sequence(rows, enforce_sorted=False))
        words = torch.cat(unpack_sequence(read))
        return self.linear(self.operations.dropout(words, self.dropout, self.training))

    @classmethod
    def from_weights(cls, weights: Mapping[str, Tensor], config: ModelConfig) -> Self:
        """A fresh tagger of the shape that this state dict has, over an encoder of `config`.

        Raises `KeyError` and `ValueError` for weights that are not a tagger's.
        """
        layers = tuple(int(layer) for layer in weights["layers"].tolist())
        if not layers or min(layers) < 0 or max(layers) > config.num_hidden_layers:
            raise ValueError(f"a tagger reads the layers {layers} of {config.num_hidden_layers}")
        inputs, hidden_size = weights["lstm.weight_ih_l0"].shape[1], config.hidden_size
        if "mix.logits" in weights:
            strategy = Strategy("weighted_sum", layers, "weighted_sum")
        elif inputs == hidden_size:
            strategy = Strategy("sum", layers, "sum")
        else:
            strategy = Strategy("concatenate", layers)
        if inputs != strategy.feature_size(config.num_hidden_layers, hidden_size):
            raise ValueError(f"{inputs} inputs of {len(layers)} layers of {hidden_size}")
        return cls(
            strategy,
            config,
            num_outputs=len(weights["linear.weight"]),
            lstm_size=weights["lstm.weight_hh_l0"].shape[1],
            lstm_layers=sum(
                name.startswith("lstm.weight_ih") and not name.endswith("_reverse")
                for name in weights
            ),
        )


def check_tagger(weights: Mapping[str, Tensor]) -> None:
    """Raises `ValueError` or `KeyError` where a tagger would be larger than its weights are."""
    size = weights["lstm.weight_hh_l0"].shape[-1]
    expected: dict[str, tuple[int, ...]] = {
        "linear.weight": (len(weights["linear.weight"]), 2 * size)
    }
    for name, weight in weights.items():
        kind, _, layer = name.removeprefix("lstm.").partition("_l")
        if name.startswith("lstm.weight_ih") and not layer.startswith("0"):
            expected[name] = (4 * size, 2 * size)
        elif name.startswith("lstm."):
            last = weight.shape[1:] if kind == "weight_ih" else (size,)
            expected[name] = (4 * size, *last) if kind.startswith("weight") else (4 * size,)
    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape or 0 in shape:
            raise ValueError(f"{name} of a tagger, of the shape {list(weights[name].shape)}")
