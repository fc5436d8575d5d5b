"""Which layers' states make a feature, and how: Table 7 of the paper, and any layers by number.

Shapes: K layers that are read, P places (tokens that are asked for), H hidden size, F feature size.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bert_core.errors import UserError, nearest

if TYPE_CHECKING:
    from torch import Tensor

# --help names the strategies: torch is loaded within functions.

_LAYER = "layer_"
_NUMBERED = re.compile(_LAYER + r"([0-9]{1,9})")

ALL_LAYERS = "all"
"""Every layer of the encoder, without its embeddings."""


@dataclass(frozen=True)
class Strategy:
    """A way to read features off an encoder.

    `layers` count from 1, and 0 are the embeddings; negative ones count from the top, -1 being the
    last layer. `combination` says how the states of several become one vector.
    """

    name: str
    layers: tuple[int, ...] | Literal["all"]
    combination: Literal["concatenate", "sum", "weighted_sum"] = "concatenate"

    @property
    def is_learned(self) -> bool:
        """Whether the layers' weights are learned with a task."""
        return self.combination == "weighted_sum"

    def layers_of(self, num_hidden_layers: int) -> tuple[int, ...]:
        """Returns the layers to read of an encoder with this many, 0 being its embeddings.

        Raises `UserError` where it has too few.
        """
        if self.layers == ALL_LAYERS:
            return tuple(range(1, num_hidden_layers + 1))
        needed = max(-layer if layer < 0 else layer for layer in self.layers)
        if needed > num_hidden_layers:
            have = f"the model has {num_hidden_layers}"
            raise UserError(
                f"{self.name} needs {needed} layers", have, "take last, or lower layers"
            )
        return tuple(layer + num_hidden_layers + 1 if layer < 0 else layer for layer in self.layers)

    def feature_size(self, num_hidden_layers: int, hidden_size: int) -> int:
        """F, the numbers of one feature."""
        layers = self.layers_of(num_hidden_layers)
        return hidden_size * (len(layers) if self.combination == "concatenate" else 1)

    def combine(self, states: "Sequence[Tensor]", weights: "Tensor | None" = None) -> "Tensor":
        """The features [P, F] of the states [P, H] of the layers that are read.

        `weights` [K] are those of a weighted sum, by default equal ones that add up to 1, which is
        what `bert_core.model.tagger.LayerMix` starts from.
        """
        if len(states) == 1 and weights is None:
            return states[0]
        if self.combination == "concatenate":
            import torch

            return torch.cat(list(states), dim=1)
        if self.combination == "sum":
            weights = states[0].new_ones(len(states))
        elif weights is None:
            weights = states[0].new_full((len(states),), 1 / len(states))
        total = states[0] * weights[0]
        for state, weight in zip(states[1:], weights[1:], strict=True):
            total = total + state * weight
        return total


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy("embeddings", (0,)),
        Strategy("second_to_last", (-2,)),
        Strategy("last", (-1,)),
        Strategy("sum_last_four", (-4, -3, -2, -1), "sum"),
        Strategy("weighted_sum_last_four", (-4, -3, -2, -1), "weighted_sum"),
        Strategy("concat_last_four", (-4, -3, -2, -1)),
        Strategy("weighted_sum_all", ALL_LAYERS, "weighted_sum"),
    )
}
"""The strategies by name: the six of Table 7, and the plain sum of four."""


def single_layer(layer: int) -> Strategy:
    """The states after one layer by its number, 0 being the embeddings: `layer_3`."""
    return Strategy(f"{_LAYER}{layer}", (layer,))


def find_strategy(name: str) -> Strategy:
    """The strategy of this name, or of one layer, `layer_3`.

    Raises `UserError`, with the nearest name, for an unknown one.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    if numbered := _NUMBERED.fullmatch(name):
        return single_layer(int(numbered.group(1)))
    known = f"there are {', '.join(STRATEGIES)}, and {_LAYER}0, {_LAYER}1, …"
    raise UserError(f"unknown strategy{nearest(name, STRATEGIES)}", name, known)
