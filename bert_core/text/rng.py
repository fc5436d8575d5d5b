"""Random numbers as pure functions of a key and counters.

Nothing here has state, so any worker can compute any number, in any order.
"""

import hashlib

import numpy as np
import numpy.typing as npt

UInt32Array = npt.NDArray[np.uint32]
IntArray = npt.NDArray[np.int64]


class CounterHash:
    """A family of random functions of integers, one family per key.

    The key is any sequence of numbers and words (seed, purpose, phase, epoch …). Calls mix their
    counters one after the other with the finaliser of MurmurHash3 (Appleby, public domain),
    whose avalanche is full, so counters may be consecutive.
    """

    def __init__(self, *key: int | str) -> None:
        digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
        self._key = np.frombuffer(digest[:8], dtype=np.uint32)

    def bits(self, *counters: npt.ArrayLike) -> UInt32Array:
        """32 random bits for each combination of counters (broadcast together)."""
        state = np.asarray(self._key[0])
        for counter in counters:
            words = np.atleast_1d(np.asarray(counter)).astype(np.uint32)
            state = _finalise((state ^ words) * np.uint32(0x9E3779B1) + self._key[1])
        return state

    def below(self, bound: npt.ArrayLike, *counters: npt.ArrayLike) -> IntArray:
        """A uniform integer in [0, bound) for each combination; bound up to 2**32."""
        wide = self.bits(*counters).astype(np.uint64) * np.asarray(bound).astype(np.uint64)
        return (wide >> np.uint64(32)).astype(np.int64)

    def uniform(self, *counters: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """A uniform number in [0, 1) for each combination of counters."""
        return self.bits(*counters).astype(np.float64) * 2.0**-32


def _finalise(state: UInt32Array) -> UInt32Array:
    state = (state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    state = (state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return state ^ (state >> np.uint32(16))


def permutation(key: CounterHash, size: int) -> IntArray:
    """A random order of 0 … size-1, the same for the same key and size."""
    # The index in the low bits makes equal hashes an ordered pair instead of a tie.
    ranks = key.bits(np.arange(size)).astype(np.uint64) << np.uint64(32)
    return np.argsort(ranks | np.arange(size, dtype=np.uint64)).astype(np.int64)


def ragged_arange(starts: IntArray, lengths: IntArray) -> IntArray:
    """The ranges start, start+1, … of the given lengths, one after the other, flat."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total)
