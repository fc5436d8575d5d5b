"""Hashes of documents go in; which of them are trained on, held out, sampled or dropped comes out.

Each answer hangs on the documents' texts alone, never on their number's or the workers' order.
"""

import numpy as np
from numpy.typing import NDArray

TRAIN, HELDOUT, DUPLICATE = 0, 1, -1
_HELDOUT_SALT, _SAMPLE_SALT = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F


def choose_documents(hashes: NDArray[np.uint64], heldout_share: float) -> NDArray[np.int8]:
    """[documents] int8: `DUPLICATE` for all but the first of equal hashes, `HELDOUT` or `TRAIN`.

    A document is held out if its hash says so, with probability `heldout_share`. Both splits of a
    small corpus have two documents at least, one where there are fewer than four.
    """
    choice = np.full(len(hashes), TRAIN, dtype=np.int8)
    order = np.argsort(hashes, kind="stable")
    repeated = hashes[order][1:] == hashes[order][:-1]
    choice[order[1:][repeated]] = DUPLICATE
    different = np.flatnonzero(choice != DUPLICATE)
    if heldout_share > 0 and len(different) > 1:
        ranks = _mixed(hashes[different], _HELDOUT_SALT)
        held_out = ranks < np.uint64(min(int(heldout_share * 2**64), 2**64 - 1))
        least = 2 if len(different) >= 4 else 1  # a NotNext segment comes from another document
        ascending = np.argsort(ranks, kind="stable")
        held_out[ascending[:least]] = True
        held_out[ascending[-least:]] = False
        choice[different[held_out]] = HELDOUT
    return choice


def choose_sample(
    hashes: NDArray[np.uint64],
    sizes: NDArray[np.uint64],
    choice: NDArray[np.int8],
    sample_bytes: int,
) -> NDArray[np.bool_]:
    """[documents] bool: the training documents with the lowest ranks, up to `sample_bytes`."""
    candidates = np.flatnonzero(choice == TRAIN)
    order = candidates[np.argsort(_mixed(hashes[candidates], _SAMPLE_SALT), kind="stable")]
    within = np.cumsum(sizes[order]) <= sample_bytes
    within[:1] = True
    sampled = np.zeros(len(hashes), dtype=np.bool_)
    sampled[order[within]] = True
    return sampled


def _mixed(hashes: NDArray[np.uint64], salt: int) -> NDArray[np.uint64]:
    """A permutation of the 64-bit numbers (the finaliser of splitmix64), another for each salt."""
    mixed = hashes ^ np.uint64(salt)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
