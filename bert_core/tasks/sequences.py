"""Texts -> rows of `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]` of at most a length.

Shapes: N texts or pairs, R rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from bert_core.tasks.encoded_rows import concatenated
from bert_core.tasks.windows import Overflow, slide
from bert_core.text.rng import IntArray, ragged_arange
from bert_core.tokenizer import special_token_ids

_TEXTS_AT_ONCE = 4096


@dataclass(frozen=True)
class Sequences:
    """Rows end to end, one for each text or several windows of it.

    - `text` [R], the number of the text, or pair, that a row is of
    - `num_tokens` [N], those of each text or pair, were it one row of any length
    - `truncated` [N], whether it lost tokens to the length
    """

    input_ids: IntArray
    lengths: IntArray
    first_lengths: IntArray
    text: IntArray
    num_tokens: IntArray
    truncated: npt.NDArray[np.bool_]


def encode_sequences(
    tokenizer: Tokenizer,
    first: Sequence[str],
    second: Sequence[str | None] | None,
    max_length: int,
    overflow: Overflow = "right",
) -> Sequences:
    """Rows of at most `max_length` for each text of `first`, or its pair with one of `second`.

    `overflow` says what becomes of what is longer. Cut on the `right`, as the fast tokenizers of
    Hugging Face do, or on the `left`, pairs lose tokens from the longer text first. A `window` is
    half a window on from the one before; those of a pair are of its longer text, each beside the
    shorter one, which has half the room at most.
    """
    ids = special_token_ids(tokenizer)
    a_ids = token_ids(tokenizer, first)
    a_lengths = np.fromiter(map(len, a_ids), np.int64, len(a_ids))
    paired = [None] * len(a_ids) if second is None else second
    is_pair = [each is not None for each in paired]
    b_ids: list[list[int]] = [[]] * len(a_ids)
    if any(is_pair):
        b_ids = token_ids(tokenizer, [each or "" for each in paired])
    b_lengths = np.fromiter(map(len, b_ids), np.int64, len(b_ids))
    special = 2 + np.array(is_pair, dtype=np.int64)
    room = max_length - special
    if overflow == "window":
        text, kept_a, kept_b, from_a, from_b = _windows(a_lengths, b_lengths, room)
        truncated = np.minimum(a_lengths, b_lengths) > room // 2
    else:
        text = np.arange(len(a_lengths))
        kept_a, kept_b = truncate_pairs(a_lengths, b_lengths, room)
        cut_a, cut_b = a_lengths - kept_a, b_lengths - kept_b
        truncated = cut_a + cut_b > 0
        from_a, from_b = (cut_a, cut_b) if overflow == "left" else (0 * cut_a, 0 * cut_b)
    parts: list[list[int]] = []
    rows = zip(*map(np.ndarray.tolist, (text, kept_a, kept_b, from_a, from_b)), strict=True)
    for number, a_length, b_length, a_start, b_start in rows:
        parts += [[ids.cls], a_ids[number][a_start : a_start + a_length], [ids.sep]]
        if is_pair[number]:
            parts += [b_ids[number][b_start : b_start + b_length], [ids.sep]]
    return Sequences(
        input_ids=np.array([token for part in parts for token in part], dtype=np.int64),
        lengths=kept_a + kept_b + special[text],
        first_lengths=kept_a + 2,
        text=text,
        num_tokens=a_lengths + b_lengths + special,
        truncated=truncated,
    )


def _windows(
    first: IntArray, second: IntArray, room: IntArray
) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
    """Windows over the longer text of pairs of these lengths, [N], with so much room each.

    The pair that each is of, what is kept of its first and second text, and from which token on,
    [R] each.
    """
    first_is_longer = first >= second
    shorter = np.minimum(np.minimum(first, second), room // 2)
    rooms = room - shorter
    windows = slide(np.maximum(first, second), rooms, np.maximum(rooms // 2, 1))
    text = windows.text
    of_first, of_second = first_is_longer[text], ~first_is_longer[text]
    return (
        text,
        np.where(of_first, windows.lengths, shorter[text]),
        np.where(of_second, windows.lengths, shorter[text]),
        windows.starts * of_first,
        windows.starts * of_second,
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


def truncate_pairs(
    first: IntArray, second: IntArray, room: IntArray | int
) -> tuple[IntArray, IntArray]:
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
