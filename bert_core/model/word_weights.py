"""How much each word of the vocabulary says of a text: the sparse vectors of SPLADE.

log(1 + relu(logit)) of the masked-token head, the largest over the tokens of a text (Formal et al.
2021, arXiv 2109.10086). Shapes: P tokens, N texts, H hidden size, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_TOKENS_AT_ONCE = 512
"""Of which there are logits: 62 MB with 30,522 words."""


def word_weights(features: Tensor, table: Tensor, bias: Tensor, counts: Sequence[int]) -> Tensor:
    """The weights of all words for each text, float32 [N, V], 0 or more.

    `features` [P, H] are those that the head multiplies with the `table` [V, H]; each text has
    `counts` tokens of them, one at least. The logits [P, V] never exist at once: only the token
    that says a word loudest passes its gradient on, and that is one for each text and word.
    """
    return _WordWeights.apply(features, table, bias, list(counts))  # pyright: ignore[reportReturnType] - torch does not type it


class _WordWeights(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's
        features: Tensor,
        table: Tensor,
        bias: Tensor,
        counts: list[int],
    ) -> Tensor:
        size = len(counts), len(table)
        largest = torch.empty(size, dtype=torch.float32, device=features.device)
        loudest = torch.empty(size, dtype=torch.int64, device=features.device)
        for texts, first, last in _blocks(counts):
            logits = F.linear(features[first:last], table)
            begin = 0
            for text in texts:
                end = begin + counts[text]
                found, where = logits[begin:end].max(0)
                largest[text], loudest[text] = found, where + (first + begin)
                begin = end
        weights = largest.add_(bias).relu_().log1p_()
        ctx.save_for_backward(features, table, weights, loudest)
        return weights

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # noqa: ANN401
        features, table, weights, loudest = ctx.saved_tensors
        # The derivative of log(1 + x) is 1 / (1 + x); below 0 there is none.
        of_logits = gradients[0] * torch.exp(-weights) * (weights > 0)
        of_features = torch.zeros_like(features, dtype=torch.float32)
        of_table = torch.zeros_like(table, dtype=torch.float32)
        for gradient, tokens in zip(of_logits, loudest, strict=True):
            (words,) = gradient.nonzero(as_tuple=True)
            told = gradient[words].unsqueeze(1)
            of_features.index_add_(0, tokens[words], told * table[words])
            of_table.index_add_(0, words, told * features[tokens[words]])
        of_bias = of_logits.sum(0)
        return of_features.to(features.dtype), of_table.to(table.dtype), of_bias, None


def _blocks(counts: Sequence[int]) -> Iterator[tuple[range, int, int]]:
    """Texts one after another, with their first token and the one after their last."""
    first_text = first = last = 0
    for text, count in enumerate(counts):
        if last > first and last + count - first > _TOKENS_AT_ONCE:
            yield range(first_text, text), first, last
            first_text, first = text, last
        last += count
    if last > first:
        yield range(first_text, len(counts)), first, last
