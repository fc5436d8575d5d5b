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
        known = -1
        for block in _blocks(counts):
            (_, first, _), (_, _, last) = block[0], block[-1]
            logits = F.linear(features[first:last], table)
            for text, begin, end in block:
                found, where = logits[begin - first : end - first].max(0)
                where += begin
                if text == known:  # its later pieces; the earlier of two equal tokens stays
                    is_less = found <= largest[text]
                    found = torch.where(is_less, largest[text], found)
                    where = torch.where(is_less, loudest[text], where)
                largest[text], loudest[text], known = found, where, text
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


def _blocks(counts: Sequence[int]) -> Iterator[list[tuple[int, int, int]]]:
    """Pieces of texts one after another, so many that their logits fit: text, first and last token.

    A long text is several pieces, which begin blocks of their own.
    """
    block: list[tuple[int, int, int]] = []
    first = 0
    for text, count in enumerate(counts):
        for begin in range(first, first + count, _TOKENS_AT_ONCE):
            end = min(begin + _TOKENS_AT_ONCE, first + count)
            if block and end - block[0][1] > _TOKENS_AT_ONCE:
                yield block
                block = []
            block.append((text, begin, end))
        first += count
    if block:
        yield block
