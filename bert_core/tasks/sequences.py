"""Texts -> rows of `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, truncated to a length."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from bert_core.tasks.encoded_rows import concatenated
from bert_core.text.rows.counter_hash import IntArray, ragged_arange
from bert_core.tokenizer import special_token_ids

_TEXTS_AT_ONCE = 4096


@dataclass(frozen=True)
class Sequences:
    """Rows end to end; `truncated` says which of them lost tokens to the length."""

    input_ids: IntArray
    lengths: IntArray
    first_lengths: IntArray
    truncated: npt.NDArray[np.bool_]

    @property
    def num_truncated(self) -> int:
        """How many rows lost tokens."""
        return int(self.truncated.sum())


def encode_sequences(
    tokenizer: Tokenizer, first: Sequence[str], second: Sequence[str] | None, max_length: int
) -> Sequences:
    """One row for each text of `first`, or for each pair with `second`, of at most `max_length`.

    Pairs lose tokens from the longer text first, as the fast tokenizers of Hugging Face do.
    """
    ids = special_token_ids(tokenizer)
    a_ids = token_ids(tokenizer, first)
    a_lengths = np.array([len(each) for each in a_ids], dtype=np.int64)
    b_ids = None if second is None else token_ids(tokenizer, second)
    if b_ids is None:
        kept_a, kept_b = np.minimum(a_lengths, max_length - 2), None
        truncated = kept_a < a_lengths
    else:
        b_lengths = np.array([len(each) for each in b_ids], dtype=np.int64)
        kept_a, kept_b = truncate_pairs(a_lengths, b_lengths, max_length - 3)
        truncated = (kept_a < a_lengths) | (kept_b < b_lengths)
    parts: list[list[int]] = []
    for row, a_length in enumerate(kept_a.tolist()):
        parts += [[ids.cls], a_ids[row][:a_length], [ids.sep]]
        if b_ids is not None and kept_b is not None:
            parts += [b_ids[row][: kept_b[row]], [ids.sep]]
    return Sequences(
        input_ids=np.array([token for part in parts for token in part], dtype=np.int64),
        lengths=kept_a + 2 + (0 if kept_b is None else kept_b + 1),
        first_lengths=kept_a + 2,
        truncated=truncated,
    )


def token_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text, without special tokens."""
    found: list[list[int]] = []
    for begin in range(0, len(texts), _TEXTS_AT_ONCE):
        some = list(texts[begin : begin + _TEXTS_AT_ONCE])
        encodings = tokenizer.encode_batch_fast(some, add_special_tokens=False)
        found += [encoding.ids for encoding in encodings]
    return found


@dataclass(frozen=True)
class WordPieces:
    """Words as tokens; `sizes` [W] are how many each word has, 0 where nothing is left of it.

    `tokens` are those of the different words, end to end, and `first_tokens` [W] says where those
    of each word begin.
    """

    sizes: IntArray
    tokens: IntArray
    first_tokens: IntArray

    def ids(self, words: IntArray, sizes: IntArray) -> IntArray:
        """The first `sizes` tokens of each of these words, end to end."""
        return self.tokens[ragged_arange(self.first_tokens[words], sizes)]


def word_pieces(tokenizer: Tokenizer, words: Iterable[str]) -> WordPieces:
    """Cuts words up, each different one once: BERT's tokenizer looks at one word at a time."""
    vocabulary: dict[str, int] = {}
    types = concatenated([[vocabulary.setdefault(word, len(vocabulary)) for word in words]])
    pieces = token_ids(tokenizer, list(vocabulary))
    counts = concatenated([[len(each) for each in pieces]])
    return WordPieces(
        sizes=counts[types],
        tokens=concatenated([list(chain.from_iterable(pieces))]),
        first_tokens=(np.cumsum(counts) - counts)[types],
    )


def truncate_pairs(first: IntArray, second: IntArray, room: int) -> tuple[IntArray, IntArray]:
    """What is kept of pairs of these lengths: the longer gives way until both are equal.

    Where both are cut and `room` is odd, the longer keeps one token more, of equals the second.
    """
    shorter, longer = np.minimum(first, second), np.maximum(first, second)
    fits = shorter + longer <= room
    both = 2 * shorter > room
    kept_shorter = np.where(fits | ~both, shorter, room // 2)
    kept_longer = np.where(fits, longer, room - kept_shorter)
    first_is_longer = first > second
    return (
        np.where(first_is_longer, kept_longer, kept_shorter),
        np.where(first_is_longer, kept_shorter, kept_longer),
    )
