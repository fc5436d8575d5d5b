"""Documents that are nearly the same: MinHash signatures, and buckets of their bands.

The similarity of two documents is the Jaccard index of their sets of 5-grams of words, estimated by
MinHash (Broder 1997) with 128 slots, so with a standard error of 0.035 at 0.8. Only documents that
share a band of slots are compared (locality-sensitive hashing, Indyk and Motwani 1998).
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from bert_core.errors import require
from bert_core.text.word_ngrams import Words

NUM_SLOTS = 128
_WORDS = 5
_SEED = 1
_LEAST_RECALL = 0.98
_MOST_LEADERS = 64
_PAIRS_AT_ONCE, _DOCUMENTS_AT_ONCE = 1 << 16, 1 << 12


def require_minhash() -> None:
    """Raises `UserError` where the library is not installed; imports nothing."""
    what = "near-duplicates need the package `{}`"
    require(what, "rensa", where="--near_duplicates", extra="corpus")


def rows_of_a_band(threshold: float) -> int:
    """The most slots of a band with which two documents that are that similar share one.

    They do with a probability of at least 0.98.
    """

    def recall(rows: int) -> float:
        return 1 - (1 - threshold**rows) ** (NUM_SLOTS // rows)

    return max(rows for rows in range(1, NUM_SLOTS + 1) if recall(rows) >= _LEAST_RECALL)


def sign(words: Words) -> NDArray[np.uint32]:
    """The signatures [documents, NUM_SLOTS]; all bits are set where there is no word."""
    from rensa import RMinHash  # pyright: ignore[reportAttributeAccessIssue] - native module

    ngrams = words.ngrams(_WORDS, pad=True)
    num_documents = len(ngrams.offsets) - 1
    signatures = np.empty((num_documents, NUM_SLOTS), dtype=np.uint32)
    for begin in range(0, num_documents, _DOCUMENTS_AT_ONCE):  # rows are given as Python's numbers
        offsets = ngrams.offsets[begin : begin + _DOCUMENTS_AT_ONCE + 1]
        matrix = RMinHash.digest_matrix_from_flat_token_hashes(
            ngrams.hashes[offsets[0] : offsets[-1]], offsets - offsets[0], NUM_SLOTS, _SEED
        )
        signatures[begin : begin + _DOCUMENTS_AT_ONCE] = matrix.to_rows()
    return signatures


def has_words(signatures: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """[documents]: whether each has a word."""
    return ~(signatures == np.iinfo(np.uint32).max).all(axis=1)


def band_keys(signatures: NDArray[np.uint32], threshold: float) -> NDArray[np.uint64]:
    """[bands, documents]: documents whose slots in a band are equal have the same key there."""
    rows = rows_of_a_band(threshold)
    keys = np.zeros((NUM_SLOTS // rows, len(signatures)), dtype=np.uint64)
    for row in range(rows):
        slots = signatures[:, row : rows * len(keys) : rows].T.astype(np.uint64)
        keys = (keys ^ slots) * np.uint64(0xBF58476D1CE4E5B9)
        keys ^= keys >> np.uint64(29)
    return keys


def find_earlier(
    bands: Iterable[NDArray[np.uint64]],
    num_documents: int,
    similar: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]],
) -> NDArray[np.int64]:
    """[documents] int64: an earlier document that each is a near-duplicate of, or -1.

    `bands` gives the keys [documents] of one band after the other, `similar` says which pairs are
    similar enough. Within a bucket a document is compared with at most 64 earlier ones that are
    different from each other: work grows with the number of documents, whatever they hold.
    """
    earlier = np.full(num_documents, -1, dtype=np.int64)
    for band in bands:
        alone = np.flatnonzero(earlier < 0)
        order = np.argsort(band[alone], kind="stable")
        documents, keys = alone[order], band[alone][order]
        for _ in range(_MOST_LEADERS):
            is_first = np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)]
            if is_first.all():
                break
            leader = np.maximum.accumulate(np.where(is_first, np.arange(len(keys)), 0))
            leaders, others, keys = (
                documents[leader][~is_first],
                documents[~is_first],
                keys[~is_first],
            )
            same = similar(leaders, others)
            earlier[others[same]] = leaders[same]
            documents, keys = others[~same], keys[~same]
    return earlier


class Signatures:
    """The signatures of all documents, in pieces that stay on disk."""

    def __init__(self, pieces: Sequence[NDArray[np.uint32]], threshold: float) -> None:
        self._pieces = pieces
        self._starts = np.cumsum([0, *map(len, pieces)])
        self._least_equal = int(np.ceil(threshold * NUM_SLOTS))

    def similar(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each pair is at least as similar as the threshold."""
        answers = [np.zeros(0, dtype=np.bool_)]
        for begin in range(0, len(first), _PAIRS_AT_ONCE):
            stretch = slice(begin, begin + _PAIRS_AT_ONCE)
            equal = self._rows(first[stretch]) == self._rows(second[stretch])
            answers.append(equal.sum(axis=1) >= self._least_equal)
        return np.concatenate(answers)

    def _rows(self, documents: NDArray[np.int64]) -> NDArray[np.uint32]:
        order = np.argsort(documents, kind="stable")
        ascending = documents[order]
        bounds = np.searchsorted(ascending, self._starts)
        rows = np.empty((len(documents), NUM_SLOTS), dtype=np.uint32)
        for index in np.flatnonzero(np.diff(bounds)).tolist():
            mine = slice(bounds[index], bounds[index + 1])
            rows[order[mine]] = self._pieces[index][ascending[mine] - self._starts[index]]
        return rows
