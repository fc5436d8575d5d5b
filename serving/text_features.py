"""Texts -> rows for the features that a request asks for; their states -> features of each text.

Shapes: N texts, U units (a text, its words or its tokens), F feature size, P places, H hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from bert_core.features.extractor import EncodedTexts, Extractor, UnitFeatures
from bert_core.features.units import (
    UnitRows,
    default_pooling,
    words_of,
)
from bert_core.interface import OverflowOrError
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.task import FloatArray
from bert_core.text.rng import IntArray, ragged_arange
from bert_core.tokenizer import SpecialTokenIds, special_token_ids


@dataclass(frozen=True)
class TextFeatures:
    """The features of the units of one text, float32 [U, F].

    `units` are its words or tokens with the characters they stand at; None of a whole text.
    """

    vectors: FloatArray
    units: list[tuple[str, int, int]] | None
    num_tokens: int
    truncated: bool


def encode_ids(
    extractor: Extractor, lists: Sequence[Sequence[int]], overflow: OverflowOrError
) -> EncodedTexts:
    """A row for each list of a text's tokens, as they are: no special tokens are added.

    A cut leaves `[CLS]` at the beginning and `[SEP]` at the end where they are. The unit is a text.
    """
    special = special_token_ids(extractor.tokenizer)
    longest = extractor.max_length
    num_tokens = np.fromiter(map(len, lists), np.int64, len(lists))
    is_cut = overflow in ("left", "right")
    if is_cut:
        lists = [_cut(ids, longest, overflow, special) for ids in lists]
    kept = np.fromiter(map(len, lists), np.int64, len(lists))
    input_ids = np.fromiter(chain.from_iterable(lists), np.int64, int(kept.sum()))
    pooling = extractor.choice.pooling or default_pooling("text")
    counts = np.ones_like(kept) if pooling == "cls" else kept
    rows = EncodedRows(
        input_ids=input_ids,
        lengths=kept,
        first_lengths=kept,
        places=ragged_arange(np.zeros_like(kept), counts),
        place_counts=counts,
        labels=np.empty(0, dtype=np.int64),
        labels_per_item=np.zeros_like(kept),
        rows_per_item=np.ones_like(kept),
        example=np.arange(len(kept)),
        num_tokens=num_tokens,
        truncated=kept < num_tokens,
        notes={},
    )
    units = np.repeat(np.arange(len(kept)), counts)
    of_units = UnitRows(rows, units, np.ones_like(kept), pooling)
    return EncodedTexts([], None, of_units, num_tokens, num_tokens > longest, is_cut)


def _cut(
    ids: Sequence[int], longest: int, side: OverflowOrError, special: SpecialTokenIds
) -> Sequence[int]:
    if len(ids) <= longest:
        return ids
    first = ids[: ids[0] == special.cls]
    last = ids[len(ids) - (ids[-1] == special.sep) :]
    inner = ids[len(first) : len(ids) - len(last)]
    room = longest - len(first) - len(last)
    return [*first, *(inner[-room:] if side == "left" else inner[:room]), *last]


def decode_features(
    extractor: Extractor, encoded: EncodedTexts, states: Sequence[FloatArray]
) -> list[TextFeatures]:
    """The features of each text, of the states [P, H] of each layer that is read."""
    choice, rows = extractor.choice, encoded.rows
    weights = None if choice.layer_weights is None else torch.tensor(choice.layer_weights)
    features = UnitFeatures(rows, extractor.feature_size, torch.device("cpu"))
    combined = choice.strategy.combine([torch.from_numpy(layer) for layer in states], weights)
    features.add(np.arange(len(rows.units)), combined)
    vectors = features.pooled(normalize=choice.normalize)
    return _by_text(encoded, vectors, rows.unit_counts, _units(extractor, encoded))


def decode_states(encoded: EncodedTexts, states: FloatArray) -> list[TextFeatures]:
    """The states [P, H] of the tokens of each text, special ones too, that is one row each."""
    return _by_text(encoded, states, encoded.rows.rows.place_counts, None)


def _by_text(
    encoded: EncodedTexts,
    vectors: FloatArray,
    counts: IntArray,
    units: list[tuple[str, int, int]] | None,
) -> list[TextFeatures]:
    ends = np.cumsum(counts)
    columns = ends - counts, ends, encoded.num_tokens, encoded.too_long
    return [
        TextFeatures(
            vectors[begin:end],
            None if units is None else units[begin:end],
            num_tokens,
            encoded.is_cut and too_long,
        )
        for begin, end, num_tokens, too_long in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]


def _units(extractor: Extractor, encoded: EncodedTexts) -> list[tuple[str, int, int]] | None:
    tokens, texts = encoded.tokens, encoded.texts
    if extractor.choice.unit == "text":
        return None
    assert tokens is not None
    if extractor.choice.unit == "word":
        words, spans = words_of(tokens, texts)
        return [(word, a, b) for word, (a, b) in zip(words, spans.tolist(), strict=True)]
    assert tokens.offsets is not None
    of_token = np.repeat(np.arange(len(texts)), tokens.lengths).tolist()
    return [
        (texts[text][a:b], a, b)
        for text, (a, b) in zip(of_token, tokens.offsets.tolist(), strict=True)
    ]
