"""Texts -> tokens, and the characters that each token came from.

Shapes: K texts, C their tokens end to end, S spans.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from unicodedata import category

import numpy as np
from tokenizers import Tokenizer

from bert_core.tasks.encoded_rows import concatenated
from bert_core.text.rng import IntArray

_TEXTS_AT_ONCE = 4096


@dataclass(frozen=True)
class AlignedTokens:
    """Texts as tokens, end to end, without special tokens.

    - `input_ids` [C]; `lengths` [K], the tokens of each text
    - `offsets` [C, 2], the first character of each token, and the one after its last, in its text
    """

    input_ids: IntArray
    offsets: IntArray
    lengths: IntArray

    @property
    def first_tokens(self) -> IntArray:
        """Index of each text's first token, [K]."""
        return np.cumsum(self.lengths) - self.lengths

    def token_spans(
        self, texts: IntArray, begins: IntArray, ends: IntArray
    ) -> tuple[IntArray, IntArray]:
        """First and last token, counted within the text, that share a character with each span.

        A span is the text's number, its first character and the one after its last, each [S].
        Where no token has a part in it, the last token stands before the first.
        """
        # Texts follow one another on one line of characters, so one binary search serves all.
        stride = 1 + max(int(self.offsets.max(initial=0)), int(ends.max(initial=0)))
        bases = np.repeat(np.arange(len(self.lengths)), self.lengths) * stride
        first = np.searchsorted(bases + self.offsets[:, 1], texts * stride + begins, side="right")
        after = np.searchsorted(bases + self.offsets[:, 0], texts * stride + ends, side="left")
        starts = self.first_tokens[texts]
        return first - starts, after - 1 - starts


def align(tokenizer: Tokenizer, texts: Sequence[str]) -> AlignedTokens:
    """Tokenizes texts; `tokenizers` keeps track of characters through its normalisation.

    An accent that stands as a character of its own, and was stripped, belongs to its letter's
    token.
    """
    ids, offsets, lengths = [], [], []
    for begin in range(0, len(texts), _TEXTS_AT_ONCE):
        some = list(texts[begin : begin + _TEXTS_AT_ONCE])
        encodings = tokenizer.encode_batch(some, add_special_tokens=False)
        lengths.append([len(each) for each in encodings])
        ids.append(np.fromiter(chain.from_iterable(each.ids for each in encodings), np.int64))
        pairs = chain.from_iterable(each.offsets for each in encodings)
        offsets.append(np.fromiter(chain.from_iterable(pairs), np.int64))
    tokens = AlignedTokens(
        input_ids=concatenated(ids),
        offsets=concatenated(offsets).reshape(-1, 2),
        lengths=concatenated(lengths),
    )
    for text, first, length in zip(texts, tokens.first_tokens, tokens.lengths, strict=True):
        if not text.isascii():
            _take_in_marks(text, tokens.offsets[first : first + length])
    return tokens


def _take_in_marks(text: str, offsets: IntArray) -> None:
    """Moves the ends of tokens [n, 2] behind combining marks that are no token's."""
    marks = [
        place for place, char in enumerate(text) if char >= "\u0300" and category(char) == "Mn"
    ]
    if not marks:
        return
    begins, ends = offsets.T.tolist()
    after = 0
    for place in marks:
        while after < len(ends) and ends[after] <= place:
            after += 1
        is_free = after == len(ends) or begins[after] > place
        if is_free and after and ends[after - 1] == place:
            ends[after - 1] += 1
    offsets[:, 1] = ends
