"""Which tokens of a row are predicted, and what stands in their place (Devlin et al. 2018, 3.1).

A pure function of the key, the row's name (copy, shard, start) and its tokens; left to right, of
the tokens alone. In: rows end to end, flat; out: the same rows with masks, and the masked
positions. Legend: T tokens, R rows, P predictions.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from bert_core.settings import RowSettings
from bert_core.special_tokens import special_token_ids
from bert_core.text.rng import CounterHash, IntArray, UInt32Array
from bert_core.word_marks import Marks, begins_word, word_marks

Counters = tuple[UInt32Array, IntArray]
"""The hash of a token's row and the token's place in it; each [T]."""


@dataclass(frozen=True)
class Vocabulary:
    """What masking must know about the tokenizer.

    `is_special` is bool [vocabulary]: [CLS], [SEP] and the like; `marks` are those of
    `word_marks`.
    """

    size: int
    mask_id: int
    cls_id: int
    sep_id: int
    pad_id: int
    is_special: npt.NDArray[np.bool_]
    marks: Marks

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> "Vocabulary":
        """Reads the table of a tokenizer; raises `TokenizerError` for a missing token."""
        ids, marks = special_token_ids(tokenizer), word_marks(tokenizer)
        is_special = np.zeros(len(marks), dtype=bool)
        is_special[[ids.mask, ids.cls, ids.sep, ids.pad]] = True
        return cls(
            size=len(marks),
            mask_id=ids.mask,
            cls_id=ids.cls,
            sep_id=ids.sep,
            pad_id=ids.pad,
            is_special=is_special,
            marks=marks,
        )


@dataclass(frozen=True)
class MaskedRows:
    """Rows with what is to be predicted in them, of masked or of next tokens.

    `input_ids` int64 [T]; `positions` (ascending) and `labels` int64 [P]; `num_predictions` int64
    [R] says how many of them belong to each row.
    """

    input_ids: IntArray
    positions: IntArray
    labels: IntArray
    num_predictions: IntArray


def prediction_counts(lengths: IntArray, settings: RowSettings, sequence_length: int) -> IntArray:
    """How many tokens are predicted in rows of these lengths; int64 [R].

    At least one; at most the share of the longest row, rounded up (20 at 128, 77 at 512). Left to
    right all but the first.
    """
    if settings.objective == "left_to_right":
        return lengths - 1
    cap = max_predictions(settings, sequence_length)
    counts = np.rint(lengths * settings.masked_share).astype(np.int64)
    return np.clip(counts, 1, cap)


def max_predictions(settings: RowSettings, sequence_length: int) -> int:
    """The most tokens that are predicted in one row of the given length."""
    if settings.objective == "left_to_right":
        return sequence_length - 1
    return max(1, int(np.ceil(round(sequence_length * settings.masked_share, 6))))


class Masker:
    """Hides tokens of rows, as the settings say."""

    def __init__(
        self,
        settings: RowSettings,
        vocabulary: Vocabulary,
        sequence_length: int,
        key: tuple[int | str, ...],
    ) -> None:
        self._settings = settings
        self._vocabulary = vocabulary
        self._sequence_length = sequence_length
        self._random = CounterHash(*key, "masks")

    def __call__(
        self, input_ids: IntArray, lengths: IntArray, names: tuple[IntArray, IntArray, IntArray]
    ) -> MaskedRows:
        """Masks rows that stand end to end in `input_ids` [T].

        `lengths` [R]; `names` are the rows' copy, shard and start, each [R].
        """
        row = np.repeat(np.arange(len(lengths)), lengths)
        place = np.arange(len(input_ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        name = self._random.bits(*names)
        wanted = prediction_counts(lengths, self._settings, self._sequence_length)
        if self._settings.whole_word:
            chosen = self._whole_words(input_ids, row, (name[row], place), wanted)
        else:
            chosen = self._single_tokens(input_ids, lengths, name, wanted)
        positions = np.flatnonzero(chosen)
        masked = input_ids.copy()
        masked[positions] = self._replacements(
            input_ids[positions], name[row[positions]], place[positions]
        )
        counts = np.bincount(row[positions], minlength=len(lengths)).astype(np.int64)
        return MaskedRows(masked, positions, input_ids[positions], counts)

    def _single_tokens(
        self, input_ids: IntArray, lengths: IntArray, name: UInt32Array, wanted: IntArray
    ) -> npt.NDArray[np.bool_]:
        """The `wanted` ordinary tokens of each row whose hash is smallest; bool [T].

        Equal hashes rank by place. Many short sorts of plain numbers, special or not, hash and
        place in the bits of one, are several times faster than a long one of indices.
        """
        place = np.arange(int(lengths.max(initial=0)))
        special = np.ones((len(lengths), len(place)), dtype=bool)  # [R, longest], as is padding
        special[place < lengths[:, None]] = self._vocabulary.is_special[input_ids]
        hashes = self._random.bits(0, name[:, None], place).astype(np.uint64)
        keys = (hashes << np.uint64(31)) | place.astype(np.uint64)
        keys |= special.astype(np.uint64) << np.uint64(63)
        keys.sort(axis=1)
        row, rank = np.nonzero(place < wanted[:, None])
        taken = keys[row, rank]
        at = (np.cumsum(lengths) - lengths)[row] + (taken & np.uint64((1 << 31) - 1)).astype(int)
        chosen = np.zeros(len(input_ids), dtype=bool)
        chosen[at[taken < np.uint64(1 << 63)]] = True
        return chosen

    def _whole_words(
        self, input_ids: IntArray, row: IntArray, counters: Counters, wanted: IntArray
    ) -> npt.NDArray[np.bool_]:
        """Whole words in the order of their hash, each taken if it still fits; bool [T].

        The paper's code does the same. A row whose every word is longer than its share predicts
        the first pieces of one, so that no row is without a prediction.
        """
        special = self._vocabulary.is_special[input_ids]
        continues = ~begins_word(input_ids, self._vocabulary.marks) & ~special
        after_special = np.concatenate([[True], special[:-1]])
        begins = ~special & (~continues | after_special)
        word = np.cumsum(begins) - 1  # of each token; meaningless on special ones
        size = np.bincount(word[~special], minlength=int(begins.sum()))
        at = np.flatnonzero(begins)
        hashes = self._random.bits(1, *(counter[at] for counter in counters))
        order = np.lexsort((hashes, row[at]))
        rank = _rank_in_row(row[at], hashes, np.zeros(len(at), dtype=bool))
        taken = np.zeros(len(at), dtype=bool)
        used = np.zeros(len(wanted), dtype=np.int64)
        by_rank = order[np.argsort(rank[order], kind="stable")]
        bounds = np.searchsorted(rank[by_rank], np.arange(rank.max(initial=-1) + 2))
        for begin, end in zip(bounds[:-1], bounds[1:], strict=True):  # one word of every row
            words = by_rank[begin:end]
            rows = row[at[words]]
            fits = used[rows] + size[words] <= wanted[rows]
            taken[words] = fits
            used[rows] += np.where(fits, size[words], 0)
        chosen = ~special & taken[np.maximum(word, 0)]
        return chosen | self._first_pieces(special, row, (word, size, rank), used, wanted)

    def _first_pieces(
        self,
        special: npt.NDArray[np.bool_],
        row: IntArray,
        words: tuple[IntArray, IntArray, IntArray],
        used: IntArray,
        wanted: IntArray,
    ) -> npt.NDArray[np.bool_]:
        """In rows where no word fitted, the first pieces of the first word; bool [T]."""
        word, size, rank = words
        within = np.arange(len(row)) - (np.cumsum(size) - size)[np.maximum(word, 0)]
        within -= np.cumsum(special)  # pieces are counted without the special tokens between
        first = (rank[np.maximum(word, 0)] == 0) & ~special
        return first & (used[row] == 0) & (within < wanted[row])

    def _replacements(self, labels: IntArray, name: UInt32Array, place: IntArray) -> IntArray:
        """What stands in the place of each hidden token: [MASK], a random one, or itself."""
        share = self._random.uniform(2, name, place)
        random_ids = self._random.below(self._vocabulary.size, 3, name, place)
        settings = self._settings
        masked = share < settings.mask_token_share
        kept = share >= settings.mask_token_share + settings.random_token_share
        return np.where(masked, self._vocabulary.mask_id, np.where(kept, labels, random_ids))


def _rank_in_row(
    row: IntArray, hashes: npt.NDArray[np.uint32], last: npt.NDArray[np.bool_]
) -> IntArray:
    """The rank of each element among its row's by hash, those marked `last` behind the others.

    `row` ascends. Equal hashes rank by position.
    """
    key = (row.astype(np.uint64) << np.uint64(33)) | (last.astype(np.uint64) << np.uint64(32))
    order = np.argsort(key | hashes, kind="stable")
    rank = np.empty(len(row), dtype=np.int64)
    rank[order] = np.arange(len(row))
    first = np.searchsorted(row, row, side="left")
    return rank - first


def next_tokens(input_ids: IntArray, lengths: IntArray) -> MaskedRows:
    """The rows of these lengths [R], end to end in `input_ids` [T], with what follows each token.

    [CLS] predicts the first word and every word the one after it, the [SEP]s too; the last token
    of a row predicts nothing, so P is T - R.
    """
    is_last = np.zeros(len(input_ids), dtype=np.bool_)
    is_last[np.cumsum(lengths) - 1] = True
    positions = np.flatnonzero(~is_last)
    return MaskedRows(input_ids, positions, input_ids[positions + 1], lengths - 1)
