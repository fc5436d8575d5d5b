"""FLOPs of BERT, computed from its shape: for real tokens only, never padding.

A multiply-add counts as 2. Dropout, norms, activations, embeddings and the optimizer are ignored.
"""

from typing import Any

from bert_core.config import ModelConfig


def forward_flops(
    config: ModelConfig,
    *,
    num_tokens: int,
    sum_of_squared_lengths: float,
    num_predictions: int,
    num_rows: int,
    num_read: int,
) -> float:
    """FLOPs of one forward pass with both pre-training heads.

    `sum_of_squared_lengths` is the sum over sequences of length squared, which attention costs; in
    a decoder a token meets itself and those before it, about half as many pairs.
    `num_predictions` are the masked or next tokens projected to the vocabulary. `num_read` are the
    tokens whose last state a head reads: behind its attention the last layer is computed for these
    alone.
    """
    layers, hidden = config.num_hidden_layers, config.hidden_size
    behind_attention = 2 * hidden**2 + 4 * hidden * config.intermediate_size
    pairs = sum_of_squared_lengths
    if config.is_decoder:
        pairs = (sum_of_squared_lengths + num_tokens) / 2
    return (
        num_tokens * layers * (6 * hidden**2 + behind_attention)
        - (num_tokens - num_read) * behind_attention
        + 4 * hidden * layers * pairs
        + num_predictions * 2 * (hidden**2 + hidden * config.vocab_size)
        + num_rows * (2 * hidden**2 + 4 * hidden)
    )


def training_flops(config: ModelConfig, **counts: Any) -> float:  # noqa: ANN401 - typed above
    """FLOPs of a forward and a backward pass: three times those of `forward_flops`."""
    return 3 * forward_flops(config, **counts)
