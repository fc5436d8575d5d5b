"""What an encoder does with a text: attention maps, attributions, and neighbours of words.

Shapes: L layers, A heads, n tokens of a text with [CLS] and [SEP], P places, H hidden size,
U words of all texts, K layers that are read.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import log
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from bert_core.config import ModelConfig
from bert_core.errors import UserError
from bert_core.features.extractor import Extractor
from bert_core.features.units import cut_texts, cut_words, words_of
from bert_core.model.bert import Bert
from bert_core.model.encoder import Encoder, Layer, without_dropout
from bert_core.model.layout import Packed, within_reach
from bert_core.model.modern import ModernLayer
from bert_core.tasks.encoded_rows import TaskBatch, concatenated
from bert_core.tasks.task import FloatArray, head_answers, layers_read, places_read
from bert_core.text.rng import IntArray


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
    positions = torch.arange(len(ids))
    with without_dropout(encoder), torch.inference_mode():
        states = encoder.hidden_states(
            ids,
            torch.tensor(encoding.type_ids),
            positions,
            Packed.from_lengths([len(ids)]),
            layers=range(len(encoder.layers)),
        )
        rotations: Any = encoder.embeddings.rotations(positions)
        maps = []
        for layer, state in zip(encoder.layers, states, strict=True):
            assert isinstance(layer, Layer | ModernLayer)
            projections = layer.projections(state, rotations)
            maps.append(_probabilities(projections, encoder.config, layer.reach))
    return AttentionMaps(encoding.tokens, torch.stack(maps))


def _probabilities(query_key_value: Tensor, config: ModelConfig, reach: int | None) -> Tensor:
    """Softmax of scaled products of queries and keys, [A, n, n], of projections [n, 3H]."""
    count, num_heads = len(query_key_value), config.num_attention_heads
    query, key, _ = query_key_value.view(count, 3, num_heads, -1).unbind(1)
    scores = torch.einsum("iad,jad->aij", query, key) / query.shape[-1] ** 0.5
    if config.is_decoder:
        scores = scores.masked_fill(scores.new_ones(count, count).triu(1).bool(), -torch.inf)
    if reach is not None:
        places = torch.arange(count)
        near = within_reach(places, places, reach)
        scores = scores.masked_fill(~near, -torch.inf)
    return scores.softmax(-1)


def gradient_times_input(
    model: Bert, batch: TaskBatch, chosen: Callable[[Tensor], Tensor]
) -> Tensor:
    """How much each token's word adds to an output, to first order, [n] (Shrikumar et al. 2016).

    `batch` is one row, in the packed layout; `chosen` picks a number, 0-d, from the head's outputs
    [P, L]. The model is left as it is: neither its gradients nor its weights are touched, so that
    others may compute with it meanwhile.
    """
    encoder = model.encoder
    with torch.enable_grad():
        words = encoder.word_embeddings.detach()[batch.input_ids].requires_grad_()
        states = encoder.states_of(
            encoder.embeddings.of_words(words, batch.token_type_ids, batch.position_ids),
            batch.layout,
            batch.position_ids,
            layers=layers_read(model),
            places=places_read(encoder, batch),
        )
        output = chosen(head_answers(model, states, batch.place_counts))
        (gradient,) = torch.autograd.grad(output, words)
    return (gradient * words.detach()).sum(-1)


_SHORTEST_WORD = 3
_FEWEST_CONTEXTS = 4


@dataclass(frozen=True)
class WordsInContext:
    """Holds the words of texts, and the encoder's states for each of them in its context.

    `words` [U], end to end; `texts` [U], the text of each; `states` [U, F]; `labels` [U], where
    they are known.
    """

    words: list[str]
    texts: IntArray
    states: FloatArray
    labels: list[str] | None = None

    def around(self, index: int, width: int) -> tuple[str, str]:
        """Up to `width` words of its text on either side of a word."""
        first, last = np.searchsorted(self.texts, [self.texts[index], self.texts[index] + 1])
        before = self.words[max(int(first), index - width) : index]
        return " ".join(before), " ".join(self.words[index + 1 : min(int(last), index + 1 + width)])

    def occurrences(self, word: str) -> IntArray:
        """Returns the positions of a word, ignoring case."""
        wanted = word.casefold()
        found = [index for index, each in enumerate(self.words) if each.casefold() == wanted]
        return np.array(found, dtype=np.int64)


def read_words(
    extractor: Extractor,
    texts: Sequence[str] | Sequence[Sequence[str]],
    labels: Sequence[Sequence[str]] | None = None,
) -> WordsInContext:
    """The words of texts, strings or lists of words, as an extractor whose unit is a word has them.

    `labels` are those of each word of the lists.
    """
    assert extractor.choice.unit == "word"
    strings = [text for text in texts if isinstance(text, str)]
    if len(strings) == len(texts):
        tokens = cut_texts(extractor.tokenizer, strings)
        words, _ = words_of(tokens, strings)
    else:
        tokens = cut_words(extractor.tokenizer, texts)
        words = list(chain.from_iterable(texts))
    return WordsInContext(
        words,
        np.repeat(np.arange(len(texts)), tokens.word_counts),
        extractor.of_rows(extractor.rows(tokens)),
        None if labels is None else list(chain.from_iterable(labels)),
    )


@dataclass(frozen=True)
class Neighbour:
    """A word in its text, by its index, and its cosine with the one that was asked about."""

    index: int
    cosine: float


def nearest_words(found: WordsInContext, index: int, count: int) -> list[Neighbour]:
    """The words of other texts whose states point most in the direction of a word's, near first."""
    cosines = _directions(found.states) @ _directions(found.states[index : index + 1])[0]
    cosines[found.texts == found.texts[index]] = -np.inf
    order = np.argsort(-cosines, kind="stable")[:count].tolist()
    return [Neighbour(each, float(cosines[each])) for each in order if np.isfinite(cosines[each])]


def ambiguous_words(found: WordsInContext, count: int) -> list[str]:
    """Words that mean most different things in different texts, most of all first.

    With labels those that are labelled most evenly in several ways (the entropy of their labels,
    times the logarithm of their frequency), otherwise those whose states lie furthest apart
    (one less the length of the mean direction), both for words that occur four times or more.
    """
    places: dict[str, list[int]] = {}
    for index, word in enumerate(found.words):
        if len(word) >= _SHORTEST_WORD and word.isalpha():
            places.setdefault(word.casefold(), []).append(index)
    often = {word: where for word, where in places.items() if len(where) >= _FEWEST_CONTEXTS}
    if found.labels is None:
        scores = {
            word: 1 - float(np.linalg.norm(_directions(found.states[where]).mean(0)))
            for word, where in often.items()
        }
    else:
        labels = found.labels
        scores = {
            word: _entropy([labels[index] for index in where]) * log(len(where))
            for word, where in often.items()
        }
    return sorted((word for word in scores if scores[word] > 0), key=lambda w: (-scores[w], w))[
        :count
    ]


def different_contexts(found: WordsInContext, word: str, count: int) -> list[int]:
    """Places of a word, one for each of its labels, the frequent ones first.

    Without labels the two that lie furthest apart.
    """
    where = found.occurrences(word)
    if found.labels is not None:
        labels = [found.labels[index] for index in where]
        firsts = [labels.index(label) for label, _ in Counter(labels).most_common(count)]
        return where[firsts].tolist()
    if len(where) < 2:
        return where.tolist()
    directions = _directions(found.states[where])
    cosines = directions @ directions.T
    left, right = np.unravel_index(np.argmin(cosines), cosines.shape)
    return where[sorted({int(left), int(right)})].tolist()[:count]


def evenly_drawn(labels: Sequence[str], count: int, seed: int) -> IntArray:
    """Indices of at most `count` items, of each label as many as of any other where it has them."""
    draw = np.random.default_rng(seed)
    groups: dict[str, list[int]] = {}
    for index, label in enumerate(labels):
        groups.setdefault(label, []).append(index)
    chosen: list[IntArray] = []
    for number, label in enumerate(sorted(groups, key=lambda label: (len(groups[label]), label))):
        share = (count - sum(map(len, chosen))) // (len(groups) - number)
        chosen.append(draw.permutation(groups[label])[:share])
    return np.sort(concatenated(chosen))


def _directions(states: FloatArray) -> FloatArray:
    """The states with the length 1; those of words without tokens stay zeros."""
    lengths = np.linalg.norm(states, axis=1, keepdims=True)
    return (states / np.where(lengths == 0, 1, lengths)).astype(np.float32)


def _entropy(labels: Sequence[str]) -> float:
    shares = np.array(list(Counter(labels).values())) / len(labels)
    return float(-(shares * np.log(shares)).sum())
