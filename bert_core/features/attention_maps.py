"""What each head of each layer looks at, for one text: the probabilities that attention works with.

Shapes: L layers, A heads, n tokens of the text with [CLS] and [SEP], H hidden size.
"""

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from bert_core.config import ModelConfig
from bert_core.errors import UserError
from bert_core.model.encoder import Encoder
from bert_core.model.layout import Packed


@dataclass(frozen=True)
class AttentionMaps:
    """`probabilities` [L, A, n, n]: how much the token of a row looks at that of a column."""

    tokens: list[str]
    probabilities: Tensor


def attention_maps(
    encoder: Encoder, tokenizer: Tokenizer, text: str, second: str | None = None
) -> AttentionMaps:
    """The attention of an encoder on the CPU, without dropout, to one text or pair.

    The fused kernels of the forward pass keep no probabilities; here they are computed once more
    from the states that each layer reads. Raises `UserError` for a text that is too long.
    """
    encoding = tokenizer.encode(text, second)
    longest = encoder.config.max_position_embeddings
    if len(encoding.ids) > longest:
        raise UserError(
            f"a text of {len(encoding.ids)} tokens", text[:40], f"give one of {longest} at most"
        )
    ids = torch.tensor(encoding.ids)
    was_training = encoder.training
    encoder.eval()
    try:
        with torch.inference_mode():
            states = encoder.hidden_states(
                ids,
                torch.tensor(encoding.type_ids),
                torch.arange(len(ids)),
                Packed.from_lengths([len(ids)]),
                layers=range(len(encoder.layers)),
            )
            config = encoder.config
            maps = [
                _probabilities(layer.get_submodule("query_key_value")(state), config)
                for layer, state in zip(encoder.layers, states, strict=True)
            ]
    finally:
        encoder.train(was_training)
    return AttentionMaps(encoding.tokens, torch.stack(maps))


def _probabilities(query_key_value: Tensor, config: ModelConfig) -> Tensor:
    """Softmax of scaled products of queries and keys, [A, n, n], of projections [n, 3H]."""
    count, num_heads = len(query_key_value), config.num_attention_heads
    query, key, _ = query_key_value.view(count, 3, num_heads, -1).unbind(1)
    scores = torch.einsum("iad,jad->aij", query, key) / query.shape[-1] ** 0.5
    if config.is_decoder:
        scores = scores.masked_fill(scores.new_ones(count, count).triu(1).bool(), -torch.inf)
    return scores.softmax(-1)
