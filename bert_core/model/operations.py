"""The operations that devices compute in different ways, and the choice among them.

A model on a CPU uses `CpuOperations`; on any other device it uses torch's own. Moving a model
chooses anew, so `forward` names no device.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

from torch import Tensor, nn
from torch.nn import functional as F

from bert_core.model.attention import attention
from bert_core.model.cpu.operations import CpuOperations
from bert_core.model.layout import Layout
from bert_core.model.vocabulary import vocabulary_cross_entropy


class TorchOperations:
    """Operations as torch has them."""

    linear = staticmethod(F.linear)
    attention = staticmethod(attention)
    vocabulary_cross_entropy = staticmethod(vocabulary_cross_entropy)

    def dropout(self, states: Tensor, probability: float, training: bool) -> Tensor:
        """Zeroes places with this probability and scales the rest so that the mean stays."""
        return F.dropout(states, probability) if training and probability > 0 else states

    def add_dropout(
        self, residual: Tensor, states: Tensor, probability: float, training: bool
    ) -> Tensor:
        """`residual + dropout(states)`."""
        return residual + self.dropout(states, probability, training)

    def feed_forward(self, states: Tensor, intermediate: nn.Module, output: nn.Module) -> Tensor:
        """Applies both maps, GELU in between, to states [P, H]: [P, H]."""
        return output(F.gelu(intermediate(states)))  # [P, 4H] within

    def filled_up(
        self, states: Tensor, layout: Layout, places: Tensor | None, layers: Sequence[nn.Module]
    ) -> tuple[Tensor, Layout, Tensor | None]:
        """Gives states, layout and places back: any number of tokens will do."""
        del layers
        return states, layout, places


Operations = TorchOperations | CpuOperations


class OnDevice(nn.Module):
    """A module whose operations are chosen when it is moved to a device."""

    operations: Operations = CpuOperations()  # a module is made on the CPU

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        moved = super()._apply(fn, recurse)
        parameter = next(self.parameters(), None)
        if parameter is not None:
            on_cpu = parameter.device.type == "cpu"
            if on_cpu != isinstance(self.operations, CpuOperations):
                self.operations = CpuOperations() if on_cpu else TorchOperations()
        return moved


class Linear(OnDevice, nn.Linear):
    """A linear map of the encoder, [T, I] to [T, O]."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name for it
        """The outputs [T, O] of rows [T, I]."""
        return self.operations.linear(input, self.weight, self.bias)


def use_operations(model: nn.Module, operations: Operations) -> None:
    """Has every part of a model compute with these operations from now on."""
    for part in model.modules():
        if isinstance(part, OnDevice):
            part.operations = operations
