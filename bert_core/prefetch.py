"""Prepares steps ahead of time in a thread, so that the training loop does not wait for data."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Step = TypeVar("Step")


def steps_ahead(make: Callable[[int], Step], first: int, *, ahead: int = 2) -> Iterator[Step]:
    """The endless sequence of `make(first)`, `make(first + 1)`, …, made `ahead` in a thread."""
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as thread:
        coming = [thread.submit(make, first + number) for number in range(ahead)]
        while True:
            first += 1
            coming.append(thread.submit(make, first + ahead - 1))
            yield coming.pop(0).result()
