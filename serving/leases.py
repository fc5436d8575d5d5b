"""Who is using a model: requests take a lease of it, and whoever takes it away waits for them."""

import threading


class Leases:
    """Counts those who use one thing, on any thread."""

    def __init__(self) -> None:
        self._number = self._taken = 0
        self._changed = threading.Condition()

    @property
    def number(self) -> int:
        """Of those who use it now."""
        return self._number

    @property
    def taken(self) -> int:
        """Of all who have ever used it."""
        return self._taken

    def take(self) -> None:
        """One more uses it."""
        with self._changed:
            self._number += 1
            self._taken += 1

    def release(self) -> None:
        """One of them has ended."""
        with self._changed:
            self._number -= 1
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Waits until nobody uses it, for so many seconds at most; whether it came to that."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._number, seconds)
