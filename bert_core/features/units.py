"""Texts to rows of an encoder, with the units whose features are read: tokens, words, texts.

A text longer than a row is read in overlapping windows. Each token is read in the window that shows
most context around it, so that no text is truncated and no token counts twice.
Shapes: N texts, W tokens of all texts end to end, R rows (windows), P places, U units.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from tokenizers import Tokenizer

from bert_core.interface import OverflowOrError, Pooling, Unit
from bert_core.special_tokens import special_token_ids
from bert_core.tasks.encoded_rows import EncodedRows, concatenated
from bert_core.tasks.sequences import align, cut, max_context, slide, token_ids, word_pieces
from bert_core.text.rng import IntArray, ragged_arange
from bert_core.word_marks import begins_word, word_marks

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
    - `offsets` [W, 2], the characters of each token, or None where they are not needed
    """

    input_ids: IntArray
    lengths: IntArray
    words: IntArray
    word_counts: IntArray
    offsets: IntArray | None = None


def cut_texts(tokenizer: Tokenizer, texts: Sequence[str], *, offsets: bool = True) -> Tokens:
    """Tokenizes texts. A word is a run of letters, or a sign.

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
    begins = begins_word(input_ids, word_marks(tokenizer))
    ends = np.cumsum(lengths)
    begins[(ends - lengths)[lengths > 0]] = True  # even where a text begins in a word's middle
    words_before = np.concatenate([[0], np.cumsum(begins)])
    return Tokens(
        input_ids=input_ids,
        lengths=lengths,
        words=words_before[1:] - 1,
        word_counts=words_before[ends] - words_before[ends - lengths],
        offsets=spans,
    )


def cut_words(tokenizer: Tokenizer, texts: Sequence[Sequence[str]]) -> Tokens:
    """The tokens of texts that come as lists of words; a word may have no token."""
    pieces = word_pieces(tokenizer, chain.from_iterable(texts))
    words = np.arange(len(pieces.sizes))
    word_counts = concatenated([[len(text) for text in texts]])
    tokens_before = np.concatenate([[0], np.cumsum(pieces.sizes)])
    ends = np.cumsum(word_counts)
    return Tokens(
        input_ids=pieces.ids(words, pieces.sizes),
        lengths=tokens_before[ends] - tokens_before[ends - word_counts],
        words=np.repeat(words, pieces.sizes),
        word_counts=word_counts,
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
    owners = np.repeat(np.arange(len(tokens.lengths)), kept.lengths)
    _, numbers = np.unique(tokens.words[left], return_inverse=True)
    first = np.unique(numbers, return_index=True)[1]
    return Tokens(
        input_ids=tokens.input_ids[left],
        lengths=kept.lengths,
        words=numbers,
        word_counts=np.bincount(owners[first], minlength=len(tokens.lengths)),
        offsets=None if tokens.offsets is None else tokens.offsets[left],
    )


def words_of(tokens: Tokens, texts: Sequence[str]) -> tuple[list[str], IntArray]:
    """The words of strings, end to end, and their characters, [words, 2]; offsets are needed."""
    assert tokens.offsets is not None
    first = np.flatnonzero(np.diff(tokens.words, prepend=-1))
    last = np.append(first, len(tokens.words))[1:] - 1
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
    if pooling == "first":
        is_first = np.diff(tokens.words, prepend=-1) > 0
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
