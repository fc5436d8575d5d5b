"""The operations of a model on a CPU; each falls back to torch's own where it does not apply.

That is inside `torch.compile`, under autocast, and for tensors of another device.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from bert_core.model.attention import attention
from bert_core.model.cpu import dropout as cpu_dropout
from bert_core.model.cpu.attention import attention_in_blocks
from bert_core.model.cpu.linear import filled_up, in_blocks, is_convolution, linear
from bert_core.model.cpu.vocabulary import fused_cross_entropy
from bert_core.model.layout import Layout, Packed
from bert_core.model.vocabulary import vocabulary_cross_entropy


class CpuOperations:
    """Operations for a CPU.

    With `keeps_rows_apart` attention pads no row of a packed batch to the length of another, so
    that what becomes of a text does not depend on the batch it is in: not at all where linear maps
    treat each row alike, as those of inference do by oneDNN and in int8. In int8 it has to be so:
    where a value lies on an edge, rounding makes a whole step of a difference in the last bit.
    """

    def __init__(self, *, keeps_rows_apart: bool = False) -> None:
        self.keeps_rows_apart = keeps_rows_apart

    linear = staticmethod(linear)
    dropout = staticmethod(cpu_dropout.dropout)
    add_dropout = staticmethod(cpu_dropout.add_dropout)

    def feed_forward(self, states: Tensor, intermediate: nn.Module, output: nn.Module) -> Tensor:
        """Applies both maps, GELU in between, to states [P, H]: [P, H]."""
        if isinstance(intermediate, nn.Linear):
            return output(F.gelu(intermediate(states)))  # [P, 4H] within
        # Maps made for inference compute by blocks: between the two a block stays in the cache.
        return in_blocks(lambda rows: output(F.gelu(intermediate(rows))), states, states.shape[-1])

    def attention(
        self,
        query_key_value: Tensor,
        num_heads: int,
        layout: Layout,
        dropout: float = 0.0,
        *,
        causal: bool = False,
    ) -> Tensor:
        """Computes attention as `bert_core.model.attention.attention` does, in blocks."""
        if query_key_value.device.type != "cpu":
            return attention(query_key_value, num_heads, layout, dropout, causal=causal)
        return attention_in_blocks(
            query_key_value, num_heads, layout, dropout, causal=causal, apart=self.keeps_rows_apart
        )

    def vocabulary_cross_entropy(
        self, features: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, count: int | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Computes the function of this name, its gradient along with it."""
        if cpu_dropout.is_eager_cpu(features):
            return fused_cross_entropy(features, weight, bias, labels, int(count))
        return vocabulary_cross_entropy(features, weight, bias, labels, count)

    def filled_up(
        self, states: Tensor, layout: Layout, places: Tensor | None, layers: Sequence[nn.Module]
    ) -> tuple[Tensor, Layout, Tensor | None]:
        """Appends tokens, in a sequence of their own, up to a number that `linear` is fast at.

        States [T, H] of tokens and the places [P] to read, before they go through `layers`.
        """
        output = layers[0].get_submodule("output") if layers else None
        if not isinstance(output, nn.Linear) or not is_convolution(states, output.weight):
            return states, layout, places
        if places is not None:
            places = F.pad(places, (0, filled_up(len(places)) - len(places)))
        missing = filled_up(len(states)) - len(states)
        if missing and isinstance(layout, Packed):
            states, layout = F.pad(states, (0, 0, 0, missing)), layout.with_another(missing)
        return states, layout, places
