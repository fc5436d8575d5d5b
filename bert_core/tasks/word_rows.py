"""Sentences given as words to rows of `[CLS] … [SEP]`, in which each word is predicted once.

Places are first sub-words (section 5.3 of the paper), or all sub-words on request. A text is a
sentence, or a document of several. One longer than a row is read in windows that overlap by half,
and each word gets its place in the window with most context around it; or it is truncated.
Shapes: N sentences, W words, K words that have tokens, R rows, P places.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from bert_core.special_tokens import special_token_ids
from bert_core.tasks.encoded_rows import concatenated
from bert_core.tasks.sequences import Overflow, Side, word_pieces
from bert_core.text.rng import IntArray, ragged_arange


@dataclass(frozen=True)
class WordRows:
    """Rows end to end.

    `input_ids`, `lengths`, `places` and `place_counts` as in `EncodedRows`; `words` [P] is the word
    of each place, `sentence` [R] the first with a place in the row. `num_tokens` [N] are those of
    each sentence, were it a row; `truncated` [N] are those that lost some, with words that are
    longer than a row or were cut off; `num_without_tokens` words have no place because the
    tokenizer makes nothing of them.
    """

    input_ids: IntArray
    lengths: IntArray
    places: IntArray
    place_counts: IntArray
    words: IntArray
    sentence: IntArray
    num_tokens: IntArray
    truncated: npt.NDArray[np.bool_]
    num_without_tokens: int


def encode_words(
    tokenizer: Tokenizer,
    sentences: Sequence[Sequence[str]],
    texts: IntArray,
    max_length: int,
    *,
    overflow: Overflow = "window",
    every_token: bool = False,
    spelled: bool = False,
) -> WordRows:
    """Rows of at most `max_length` tokens.

    `texts` [N] ascends: it is the number of the text that a sentence is of. A text of which no word
    has a token has no row. A text that is too long has windows, or loses whole words on the side
    that `overflow` says. With `every_token` all sub-words of a word are places, one after another.
    Words are read as if each stood behind a space, or as they are `spelled`.
    """
    ids, room = special_token_ids(tokenizer), max_length - 2
    pieces = word_pieces(tokenizer, chain.from_iterable(sentences), spelled=spelled)
    words = np.flatnonzero(pieces.sizes)  # [K]
    num_words = concatenated([[len(each) for each in sentences]])  # [N]
    sentence_of = np.repeat(np.arange(len(sentences)), num_words)
    num_tokens = np.bincount(sentence_of, pieces.sizes, len(sentences)).astype(np.int64) + 2
    truncated = np.bincount(sentence_of, pieces.sizes > room, len(sentences)) > 0
    if overflow != "window":
        kept = _kept(
            np.minimum(pieces.sizes[words], room), texts[sentence_of[words]], room, overflow
        )
        truncated[sentence_of[words[~kept]]] = True
        words = words[kept]
    sizes = np.minimum(pieces.sizes, room)[words]
    sentence = sentence_of[words]
    tokens = pieces.ids(words, sizes)

    token_ends = np.cumsum(sizes)
    token_begins = token_ends - sizes
    window_begins, window_ends = _windows_of_words(sizes, sentence, texts[sentence], room)
    begins, one, row = np.unique(window_begins, return_index=True, return_inverse=True)
    ends = window_ends[one]
    order = np.argsort(row, kind="stable")
    lengths = token_ends[ends - 1] - token_begins[begins] + 2
    rows_end = np.cumsum(lengths)
    input_ids = np.full(lengths.sum(), ids.cls, dtype=np.int64)
    input_ids[rows_end - 1] = ids.sep
    input_ids[ragged_arange(rows_end - lengths + 1, lengths - 2)] = tokens[
        ragged_arange(token_begins[begins], lengths - 2)
    ]
    places = (token_begins - token_begins[window_begins] + 1)[order]
    counts = sizes[order] if every_token else np.ones_like(places)
    place_counts = np.bincount(row[order], counts, len(begins)).astype(np.int64)
    return WordRows(
        input_ids=input_ids,
        lengths=lengths,
        places=ragged_arange(places, counts),
        place_counts=place_counts,
        words=np.repeat(words[order], counts),
        sentence=np.repeat(sentence[order], counts)[np.cumsum(place_counts) - place_counts],
        num_tokens=num_tokens,
        truncated=truncated,
        num_without_tokens=int((pieces.sizes == 0).sum()),
    )


def _kept(sizes: IntArray, text: IntArray, room: int, side: Side) -> npt.NDArray[np.bool_]:
    """Which words are left, [K], when texts are cut on a side; sizes and text are the words'."""
    ends = np.cumsum(sizes)
    begins = ends - sizes
    _, head, counts = np.unique(text, return_index=True, return_counts=True)
    if side == "right":
        return ends - np.repeat(begins[head], counts) <= room
    return np.repeat(ends[head + counts - 1], counts) - begins <= room


def _windows_of_words(
    sizes: IntArray, sentence: IntArray, text: IntArray, room: int
) -> tuple[IntArray, IntArray]:
    """First word, and the word after the last, of each word's window, [K].

    `sizes`, `sentence` and `text` are those of words, [K].
    """
    _, text_begins, counts = np.unique(text, return_index=True, return_counts=True)
    text_ends = text_begins + counts
    begins, ends = np.repeat(text_begins, counts), np.repeat(text_ends, counts)
    num_tokens = np.add.reduceat(sizes, text_begins) if len(sizes) else sizes
    for number in np.flatnonzero(num_tokens > room).tolist():
        inside = slice(text_begins[number], text_ends[number])
        first, last = word_windows(sizes[inside], room)
        chosen = _most_context(sizes[inside], sentence[inside], first, last)
        begins[inside] = text_begins[number] + first[chosen]
        ends[inside] = text_begins[number] + last[chosen]
    return begins, ends


def word_windows(sizes: IntArray, room: int) -> tuple[IntArray, IntArray]:
    """Returns windows over words of these sizes: first words, and the words after their last.

    A window is as many whole words as `room` has place for; a word has at most that many tokens.
    The next begins about half a window on, where evenly spread windows would.
    """
    ends = np.cumsum(sizes)
    begins, total = ends - sizes, int(ends[-1])
    stride = (total - room) / max(1, -(-(total - room) // max(room // 2, 1)))
    found: list[tuple[int, int]] = []
    first = 0
    last = 0
    while last < len(sizes):
        last = int(np.searchsorted(ends, begins[first] + room, side="right"))
        if last == len(sizes):
            first = int(np.searchsorted(begins, total - room))  # the last window is full too
        found.append((first, last))
        first = min(int(np.searchsorted(begins, begins[first] + stride)), last)
    return concatenated([[a for a, _ in found]]), concatenated([[b for _, b in found]])


def _most_context(sizes: IntArray, sentence: IntArray, first: IntArray, last: IntArray) -> IntArray:
    """The window for each word, [K]: that of its sentence, or its own where none has that whole."""
    ends = np.cumsum(sizes)
    begins = ends - sizes
    windows_begin, windows_end = begins[first], ends[last - 1]
    own = best_windows(begins, ends, windows_begin, windows_end)
    _, head, counts = np.unique(sentence, return_index=True, return_counts=True)
    together = best_windows(
        begins[head], ends[head + counts - 1], windows_begin, windows_end
    ).repeat(counts)
    return np.where(together >= 0, together, own)


def best_windows(
    begins: IntArray, ends: IntArray, windows_begin: IntArray, windows_end: IntArray
) -> IntArray:
    """For each span of tokens the window that shows most on the side where it shows less.

    The first of equals; -1 where no window has the whole span. Windows ascend at both ends.
    """
    lowest = np.searchsorted(windows_end, ends)  # the first that goes far enough
    highest = np.searchsorted(windows_begin, begins, side="right") - 1
    best, most = np.full(len(begins), -1), np.full(len(begins), -1)
    for step in range(int((highest - lowest).max(initial=-1)) + 1):
        window = np.minimum(lowest + step, highest)
        context = np.minimum(begins - windows_begin[window], windows_end[window] - ends)
        better = (lowest + step <= highest) & (context > most)
        best, most = np.where(better, window, best), np.where(better, context, most)
    return best
