"""Micro-batches as they begin and end -> by how much one is later than it could be expected."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

_SLOWER = 10
"""So many times longer than the last one, token for token, a micro-batch may take: the processor
may be busy with others, and long rows cost more."""


class Overdue:
    """When each micro-batch that a thread is at should have ended."""

    def __init__(self) -> None:
        self._due: dict[object, float] = {}
        self._seconds_per_token = float("inf")  # of the first one nothing is known

    @contextmanager
    def at(self, num_tokens: int) -> Iterator[None]:
        """Within `with` a micro-batch of so many tokens is computed."""
        batch, begin = object(), time.monotonic()
        self._due[batch] = begin + _SLOWER * num_tokens * self._seconds_per_token
        try:
            yield
            self._seconds_per_token = (time.monotonic() - begin) / num_tokens
        finally:
            del self._due[batch]

    @property
    def seconds(self) -> float:
        """For how long the one that is latest should have ended; 0 where none is late."""
        first = min(list(self._due.values()), default=float("inf"))
        return max(0.0, time.monotonic() - first)
