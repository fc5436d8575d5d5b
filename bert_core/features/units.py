"""Texts to rows of an encoder, with the units whose features are read: tokens, words, texts.

A text longer than a row is read in overlapping windows. Each token is read in the window that shows
most context around it, so that no text is truncated and no token counts twice.
Shapes: N texts, W tokens of all texts end to end, R rows (windows), P places, U units.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from bert_core.interface import OverflowOrError, Pooling, Unit
from bert_core.special_tokens import special_token_ids
from bert_core.tasks.encoded_rows import EncodedRows, concatenated
from bert_core.tasks.sequences import align, cut, max_context, slide, token_ids, word_pieces
from bert_core.text.rng import IntArray, ragged_arange
from bert_core.word_marks import SPACE, begins_word, space_mark, word_marks

POOLINGS: dict[Unit, tuple[Pooling, ...]] = {
    "token": (),
    "word": ("first", "mean", "max"),
    "text": ("mean", "cls", "max"),
}
"""How the tokens of a unit become one vector; the first is the default."""


def default_pooling(unit: Unit) -> Pooling | None:
    """Returns the default pooling of a unit; None for tokens."""
    return POOLINGS[unit][0] if POOLINGS[unit] else None


@dataclass(frozen=True)
class Tokens:
    """Texts as tokens, end to end, without special tokens.

    - `input_ids` [W]; `lengths` [N], the tokens of each text
    - `words` [W], the word of each token among the words of all texts; `word_counts` [N]
    - `is_space` [W], tokens of white space alone: they are in no word, though `words` counts them
      to the one that they stand before, at the end of a text to the last
    - `offsets` [W, 2], the characters of each token, or None where they are not needed
    """

    input_ids: IntArray
    lengths: IntArray
    words: IntArray
    word_counts: IntArray
    is_space: npt.NDArray[np.bool_]
    offsets: IntArray | None = None

    def of_words(self) -> IntArray:
        """The numbers of the tokens that are in a word."""
        return np.flatnonzero(~self.is_space)


def cut_texts(tokenizer: Tokenizer, texts: Sequence[str], *, offsets: bool = True) -> Tokens:
    """Tokenizes texts. A word is a run of letters, or a sign, without the space around it.

    Without `offsets` it is faster, as `tokenizers` then leaves the characters alone.
    """
    if offsets:
        aligned = align(tokenizer, texts)
        input_ids, lengths, spans = aligned.input_ids, aligned.lengths, aligned.offsets
    else:
        pieces = token_ids(tokenizer, texts)
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        input_ids = np.fromiter(chain.from_iterable(pieces), np.int64, int(lengths.sum()))
        spans = None
    marks = word_marks(tokenizer)
    is_space = (marks[input_ids] & SPACE) != 0
    if spans is not None and space_mark(tokenizer) is not None:
        # A space may be several tokens, each of some of its bytes.
        is_space |= spans[:, 0] == spans[:, 1]
    begins = begins_word(input_ids, marks)
    begins[1:] |= is_space[:-1]
    begins[(np.cumsum(lengths) - lengths)[lengths > 0]] = True  # even in a word's middle
    words, word_counts = _numbered(np.cumsum(begins, dtype=np.int64), is_space, lengths)
    return Tokens(input_ids, lengths, words, word_counts, is_space, spans)


def _numbered(
    words: IntArray, is_space: npt.NDArray[np.bool_], lengths: IntArray
) -> tuple[IntArray, IntArray]:
    """The words of tokens [W], and how many each text has [N], counted from 0 without gaps.

    `words` ascend and differ from word to word; those of white space count for nothing.
    """
    begins = np.zeros(len(words), dtype=np.bool_)
    begins[~is_space] = np.diff(words[~is_space], prepend=-1) > 0
    words_before = np.concatenate([[0], np.cumsum(begins)])
    ends = np.cumsum(lengths)
    last = np.repeat(words_before[ends] - 1, lengths)
    numbers = np.minimum(words_before[1:] - 1 + is_space, last)
    return numbers, words_before[ends] - words_before[ends - lengths]


def cut_words(tokenizer: Tokenizer, texts: Sequence[Sequence[str]]) -> Tokens:
    """The tokens of texts that come as lists of words; a word may have no token."""
    pieces = word_pieces(tokenizer, chain.from_iterable(texts))
    every = np.arange(len(pieces.sizes))
    word_counts = concatenated([[len(text) for text in texts]])
    ends = np.cumsum(word_counts)
    tokens_before = np.concatenate([[0], np.cumsum(pieces.sizes)])
    input_ids, words = pieces.ids(every, pieces.sizes), np.repeat(every, pieces.sizes)
    is_space = (word_marks(tokenizer)[input_ids] & SPACE) != 0
    has_more = np.bincount(words[~is_space], minlength=len(every)) > 0
    return Tokens(
        input_ids=input_ids,
        lengths=tokens_before[ends] - tokens_before[ends - word_counts],
        words=words,
        word_counts=word_counts,
        is_space=is_space & has_more[words],  # a word of white space alone has these tokens
    )


def cut_tokens(tokens: Tokens, room: int, overflow: OverflowOrError) -> Tokens:
    """Truncates texts to `room` tokens on the side that `overflow` names, else returns them.

    Words of which nothing is left are no longer counted.
    """
    if overflow not in ("left", "right"):
        return tokens
    kept = cut(tokens.lengths, np.full_like(tokens.lengths, room), overflow)
    first_tokens = np.cumsum(tokens.lengths) - tokens.lengths + kept.starts
    left = ragged_arange(first_tokens, kept.lengths)
    is_space = tokens.is_space[left]
    words, word_counts = _numbered(tokens.words[left], is_space, kept.lengths)
    offsets = None if tokens.offsets is None else tokens.offsets[left]
    return Tokens(tokens.input_ids[left], kept.lengths, words, word_counts, is_space, offsets)


def words_of(tokens: Tokens, texts: Sequence[str]) -> tuple[list[str], IntArray]:
    """The words of strings, end to end, and their characters, [words, 2]; offsets are needed."""
    assert tokens.offsets is not None
    inner = tokens.of_words()
    begins = np.flatnonzero(np.diff(tokens.words[inner], prepend=-1))
    first, last = inner[begins], inner[np.append(begins, len(inner))[1:] - 1]
    spans = np.stack([tokens.offsets[first, 0], tokens.offsets[last, 1]], axis=1).reshape(-1, 2)
    of_text = np.repeat(np.arange(len(texts)), tokens.word_counts).tolist()
    words = [texts[text][a:b] for text, (a, b) in zip(of_text, spans.tolist(), strict=True)]
    return words, spans


@dataclass(frozen=True)
class UnitRows:
    """The rows of texts, and which unit each place is of.

    `units` [P] are those of the places of `rows`, in their order; `unit_counts` [N] says how many
    each text has. `pooling` is None where a unit is one token.
    """

    rows: EncodedRows
    units: IntArray
    unit_counts: IntArray
    pooling: Pooling | None

    @property
    def num_units(self) -> int:
        """U, how many features there are."""
        return int(self.unit_counts.sum())


def unit_rows(
    tokens: Tokens,
    tokenizer: Tokenizer,
    *,
    unit: Unit,
    pooling: Pooling | None,
    max_length: int,
    stride: int | None = None,
) -> UnitRows:
    """Encodes rows of at most `max_length` tokens, `[CLS] … [SEP]`, with a place for each unit.

    The mean and the maximum of a text are over all its tokens, `[CLS]` and `[SEP]` among them, as
    sentence-transformers has it; each window of a long text adds its own two. The windows of a long
    text begin `stride` tokens apart, by default half a window.
    """
    ids, room = special_token_ids(tokenizer), max_length - 2
    rooms = np.full_like(tokens.lengths, room)
    windows = slide(tokens.lengths, rooms, max(room // 2, 1) if stride is None else stride)
    first_tokens = (np.cumsum(tokens.lengths) - tokens.lengths)[windows.text] + windows.starts
    token = ragged_arange(first_tokens, windows.lengths)  # of each token of a window
    lengths = windows.lengths + 2
    ends = np.cumsum(lengths)
    inner = ragged_arange(ends - lengths + 1, windows.lengths)
    input_ids = np.full(int(lengths.sum()), ids.cls, dtype=np.int64)
    input_ids[inner] = tokens.input_ids[token]
    input_ids[ends - 1] = ids.sep

    units = np.repeat(windows.text, lengths)
    is_place = np.full(len(input_ids), fill_value=unit == "text")
    is_place[inner] = pooling != "cls" and max_context(windows)
    if pooling == "cls":
        is_place[ends - 1] = False
    if unit == "token":
        units[inner] = token
    if unit == "word":
        units[inner] = tokens.words[token]
        is_place[inner] &= ~tokens.is_space[token]
    if pooling == "first":
        of_words = tokens.of_words()
        is_first = np.zeros(len(tokens.words), dtype=np.bool_)
        is_first[of_words] = np.diff(tokens.words[of_words], prepend=-1) > 0
        is_place[inner] &= is_first[token]
    within = ragged_arange(np.zeros_like(lengths), lengths)
    ones = np.ones_like(lengths)
    rows = EncodedRows(
        input_ids=input_ids,
        lengths=lengths,
        first_lengths=lengths,
        places=within[is_place],
        place_counts=np.add.reduceat(is_place, ends - lengths, dtype=np.int64)
        if len(lengths)
        else lengths,
        labels=np.empty(0, dtype=np.int64),
        labels_per_item=np.zeros_like(lengths),
        rows_per_item=ones,
        example=windows.text,
        num_tokens=tokens.lengths + 2,
        truncated=np.zeros(len(tokens.lengths), dtype=np.bool_),
        notes={},
    )
    counts = {"token": tokens.lengths, "word": tokens.word_counts, "text": np.ones_like(rooms)}
    return UnitRows(rows, units[is_place], counts[unit], pooling)
