"""What a device's memory holds in a training step of ours under bfloat16 autocast, uncompiled.

`torch.compile` keeps less, for it computes cheap things again; so this is an upper bound for it.
Legend: T tokens, H hidden size, A heads, R places whose last state a head reads, P predictions.
"""

from dataclasses import dataclass

from benchmarks.scaling.model import MASKED_SHARE, num_parameters
from bert_core.config import ModelConfig

WEIGHT_BYTES = 16
"""Float32 weight, gradient (the buckets are the gradients) and two moments, for AdamW and LAMB."""

CAST_BYTES = 2
"""The bfloat16 copy of a weight that autocast keeps for the backward pass."""

FRAMEWORK_BYTES = 2e9
"""CUDA context, cuBLAS workspaces, NCCL buffers. Assumed."""

KEPT_LOGIT_BYTES = 4
"""Of one logit: the float32 logarithm of its probability."""

LOGIT_BYTES = 12
"""Of one logit at the peak, early in the backward pass: that and two float32 gradients."""


@dataclass(frozen=True)
class Kept:
    """What devices differ in, in bytes; these are CUDA's.

    A dropout mask's place is a boolean, on a CPU a number of the states' type. The head's norm
    reads float32, on a CPU bfloat16: `head` is for each predicted position and unit of H.
    """

    embedding_mask: int = 1
    layer_mask: int = 1
    head: int = 10


def activation_bytes(
    config: ModelConfig, tokens: int, predictions: int, rows: int, kept: Kept | None = None
) -> float:
    """What the forward pass keeps for the backward pass, logits and casts of weights left out.

    A layer's attention keeps 10H + 4A per token: the input as bfloat16, the fused projections, the
    mixed values and the softmax's sums; what follows keeps 26H + 16 and two dropout masks: the
    inputs of two norms and their statistics, GELU's input and output, one cast. In the last layer
    that is for the places that are read alone, with a copy of their mixed values. Attention has no
    dropout.
    """
    kept = kept or Kept()
    hidden, layers = config.hidden_size, config.num_hidden_layers
    places = predictions + rows
    attention = 10 * hidden + 4 * config.num_attention_heads
    behind = 26 * hidden + 16 + 2 * kept.layer_mask * hidden
    embeddings = 4 * hidden + 8 + kept.embedding_mask * hidden + 3 * 8
    return (
        tokens * (embeddings + layers * attention + (layers - 1) * behind)
        + places * (behind + 2 * hidden + 8)
        + predictions * (kept.head * hidden + 16)
    )


def logit_bytes(config: ModelConfig, predictions: int, *, at_peak: bool = True) -> float:
    """The logits of the predicted positions, with their gradients or as they are kept."""
    return predictions * config.vocab_size * (LOGIT_BYTES if at_peak else KEPT_LOGIT_BYTES)


def device_bytes(config: ModelConfig, rows: int, sequence_length: int) -> float:
    """The peak on a device for a micro-batch of so many full rows."""
    tokens = rows * sequence_length
    predictions = round(MASKED_SHARE * tokens)
    return (
        (WEIGHT_BYTES + CAST_BYTES) * num_parameters(config)
        + activation_bytes(config, tokens, predictions, rows)
        + logit_bytes(config, predictions)
        + FRAMEWORK_BYTES
    )


def most_rows(config: ModelConfig, sequence_length: int, memory_bytes: float) -> int:
    """The largest micro-batch that fits, in rows; 0 where not even one does."""
    fixed = device_bytes(config, 0, sequence_length)
    of_row = (device_bytes(config, 1_000, sequence_length) - fixed) / 1_000
    return max(0, int((memory_bytes - fixed) / of_row))
