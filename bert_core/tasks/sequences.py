"""Texts to rows of tokens: `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, truncated or in windows.

Windows overlap, and the prediction for a token comes from the window that shows most context
around it, as in the paper's published code (run_squad.py). `align` also gives the characters that
each token came from.
Shapes: N texts or pairs, R rows or windows, W tokens of all windows, C tokens of all texts end to
end, S spans.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal
from unicodedata import category

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from bert_core.errors import UserError
from bert_core.special_tokens import special_token_ids
from bert_core.tasks.encoded_rows import concatenated
from bert_core.text.rng import IntArray, ragged_arange
from bert_core.word_marks import SPACE, Marks, behind_spaces, space_mark, word_marks

Side = Literal["left", "right"]


class TooManyTokensError(UserError):
    """More tokens are to be read than may be."""


Overflow = Literal["left", "right", "window"]
"""What becomes of a text that is too long for a row: cut on a side, or read in windows."""


@dataclass(frozen=True)
class Windows:
    """Parts of texts: `text` [R] is its number, `starts` [R] its first token, `lengths` [R].

    The windows of a text follow one another; the first starts at token 0.
    """

    text: IntArray
    starts: IntArray
    lengths: IntArray


def slide(
    lengths: IntArray,
    rooms: IntArray,
    stride: int | IntArray,
    *,
    beside: IntArray | int = 0,
    max_tokens: int | None = None,
) -> Windows:
    """Windows over texts of these lengths, [N], of at most `rooms` [N] tokens each, at least 1.

    Each starts `stride` tokens, for all texts or [N], after the one before, or where that one ends
    if it is shorter; the last holds the text's end. A text without tokens has one window.

    Raises `TooManyTokensError`, before any window is made, where they have more than `max_tokens`
    in all with the tokens, one number or [N], that each has `beside` those of its text.
    """
    steps = np.minimum(rooms, stride)
    counts = 1 + np.maximum(-(-(lengths - rooms) // steps), 0)
    if max_tokens is not None:
        # All windows but a text's last are full, and that one ends where the text does.
        of_texts = (counts - 1) * rooms + lengths - (counts - 1) * steps + counts * beside
        if (num_tokens := int(of_texts.sum())) > max_tokens:
            raise TooManyTokensError(
                f"{num_tokens} tokens in overlapping windows",
                f"at most {max_tokens}",
                "ask for fewer or shorter texts at once, or for windows that overlap less",
            )
    text = np.repeat(np.arange(len(lengths)), counts)
    starts = ragged_arange(np.zeros_like(counts), counts) * steps[text]
    return Windows(text, starts, np.minimum(rooms[text], lengths[text] - starts))


def cut(lengths: IntArray, rooms: IntArray, side: Side) -> Windows:
    """Truncates texts of these lengths, [N], on a side: one window for each."""
    kept = np.minimum(lengths, rooms)
    starts = lengths - kept if side == "left" else np.zeros_like(kept)
    return Windows(np.arange(len(lengths)), starts, kept)


def max_context(windows: Windows) -> npt.NDArray[np.bool_]:
    """Whether a window is the one that sees a token with most context on both sides, [W].

    Each token of a text has exactly one such window: that with the largest minimum of tokens to
    its left and right, plus a hundredth of the window's length, and of equals the first.
    """
    starts, lengths = windows.starts, windows.lengths
    within = ragged_arange(np.zeros_like(lengths), lengths)
    window = np.repeat(np.arange(len(lengths)), lengths)
    of_window = lengths[window]
    # In floating point, as published, so that ties fall the same way.
    score = np.minimum(within, of_window - 1 - within) + 0.01 * of_window
    sizes = np.zeros(int(windows.text.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(sizes, windows.text, starts + lengths)
    token = (np.cumsum(sizes) - sizes)[windows.text[window]] + starts[window] + within
    best = np.full(int(sizes.sum()), -1.0)
    np.maximum.at(best, token, score)
    first = np.full(len(best), len(lengths))
    is_best = score == best[token]
    np.minimum.at(first, token[is_best], window[is_best])
    return first[token] == window


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
        If no token overlaps the span, the last token is before the first.
        """
        # Texts follow one another on one line of characters, so one binary search serves all.
        stride = 1 + max(int(self.offsets.max(initial=0)), int(ends.max(initial=0)))
        bases = np.repeat(np.arange(len(self.lengths)), self.lengths) * stride
        # A character that stands for several words may end its tokens in any order.
        token_ends = np.maximum.accumulate(bases + self.offsets[:, 1])
        first = np.searchsorted(token_ends, texts * stride + begins, side="right")
        after = np.searchsorted(bases + self.offsets[:, 0], texts * stride + ends, side="left")
        starts = self.first_tokens[texts]
        return first - starts, after - 1 - starts


def align(tokenizer: Tokenizer, texts: Sequence[str]) -> AlignedTokens:
    """Tokenizes texts; `tokenizers` keeps track of characters through its normalisation.

    A combining accent that was stripped belongs to the token of its letter.
    """
    ids, offsets, lengths = [], [], []
    for begin in range(0, len(texts), _TEXTS_AT_ONCE):
        some = list(texts[begin : begin + _TEXTS_AT_ONCE])
        encodings = tokenizer.encode_batch(some, add_special_tokens=False)
        lengths.append([len(encoding) for encoding in encodings])
        ids.append(
            np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int64)
        )
        pairs = chain.from_iterable(encoding.offsets for encoding in encodings)
        offsets.append(np.fromiter(chain.from_iterable(pairs), np.int64))
    tokens = AlignedTokens(
        input_ids=concatenated(ids),
        offsets=concatenated(offsets).reshape(-1, 2),
        lengths=concatenated(lengths),
    )
    marks: Marks | None = None
    if space_mark(tokenizer) is not None:
        marks = word_marks(tokenizer)[tokens.input_ids]
    for text, first, length in zip(texts, tokens.first_tokens, tokens.lengths, strict=True):
        of_text = tokens.offsets[first : first + length]
        if marks is not None:
            _leave_out_spaces(text, of_text, marks[first : first + length] & SPACE != 0)
        if not text.isascii():
            _take_in_marks(text, of_text)
    return tokens


def _leave_out_spaces(text: str, offsets: IntArray, is_space: npt.NDArray[np.bool_]) -> None:
    """Moves the begins of tokens [n, 2] behind the white space that they stand for as well.

    A token that is nothing else has no characters: SentencePiece puts one where no space is.
    """
    visible = np.arange(len(text) + 1)  # the next character from each on that is none
    for found in _SPACES.finditer(text):
        visible[found.start() : found.end()] = found.end()
    offsets[:, 0] = np.minimum(visible[offsets[:, 0]], offsets[:, 1])
    offsets[is_space, 1] = offsets[is_space, 0]


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


_TEXTS_AT_ONCE = 4096
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True)
class Sequences:
    """Rows end to end, one or several windows for each text.

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

    `overflow` decides how longer texts are read. Cut on the `right`, as the fast tokenizers of
    Hugging Face do, or on the `left`, pairs lose tokens from the longer text first. A `window` is
    half a window on from the one before; those of a pair are of its longer text, each with the
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
    special = 2 + ids.num_between * np.array(is_pair, dtype=np.int64)
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
            parts += [[ids.sep] * (ids.num_between - 1)]
            parts += [b_ids[number][b_start : b_start + b_length], [ids.sep]]
    return Sequences(
        input_ids=np.array([token for part in parts for token in part], dtype=np.int64),
        lengths=kept_a + kept_b + special[text],
        first_lengths=kept_a + np.where(is_pair, 1 + ids.num_between, 2)[text],
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
    """Words as tokens; `sizes` [W] are their numbers of tokens, 0 for a word without any.

    `tokens` are those of the different words, end to end, and `first_tokens` [W] says where those
    of each word begin.
    """

    sizes: IntArray
    tokens: IntArray
    first_tokens: IntArray

    def ids(self, words: IntArray, sizes: IntArray) -> IntArray:
        """The first `sizes` tokens of each of these words, end to end."""
        return self.tokens[ragged_arange(self.first_tokens[words], sizes)]


def word_pieces(tokenizer: Tokenizer, words: Iterable[str], *, spelled: bool = False) -> WordPieces:
    """Cuts words up, each different one once, as it is cut behind a space.

    Where they are `spelled` they have that space themselves, or have none.
    """
    vocabulary: dict[str, int] = {}
    types = concatenated([[vocabulary.setdefault(word, len(vocabulary)) for word in words]])
    pieces = token_ids(
        tokenizer, list(vocabulary) if spelled else behind_spaces(tokenizer, vocabulary)
    )
    counts = concatenated([[len(piece) for piece in pieces]])
    return WordPieces(
        sizes=counts[types],
        tokens=concatenated([list(chain.from_iterable(pieces))]),
        first_tokens=(np.cumsum(counts) - counts)[types],
    )


def truncate_pairs(
    first: IntArray, second: IntArray, room: IntArray | int
) -> tuple[IntArray, IntArray]:
    """Returns the kept lengths of pairs: the longer text is cut until both are equal.

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
