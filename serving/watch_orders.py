"""Lines of standard input -> what `serving.watch` is to do next, in order, none of them lost."""

import threading
from collections import deque
from collections.abc import Iterable


class Orders:
    """Addresses that are to be asked about too, wake-ups, and the end.

    A line is an address; an empty one is a wake-up: all are to be asked about at once. Several that
    nobody has taken are one.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._addresses: deque[str] = deque()
        self._is_woken = False
        self._has_ended = False

    @property
    def have_ended(self) -> bool:
        """Whether no more come, and all addresses are taken."""
        with self._changed:
            return self._has_ended and not self._addresses

    def read(self, lines: Iterable[bytes]) -> None:
        """Takes lines in until they end; for a thread of its own, so that no writer waits."""
        for line in lines:
            text = line.decode("utf-8", errors="replace").rstrip("\r\n")
            with self._changed:
                if text.strip():
                    self._addresses.append(text)
                else:
                    self._is_woken = True
                self._changed.notify()
        with self._changed:
            self._has_ended = True
            self._changed.notify()

    def take_address(self) -> str | None:
        """The next address as it was written; None where there is none now."""
        with self._changed:
            return self._addresses.popleft() if self._addresses else None

    def wait(self, seconds: float | None) -> bool:
        """Returns when there is something to do, or after so many seconds; None for never.

        True is to ask about all: it was woken up, or the time is over.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._addresses or self._is_woken or self._has_ended, seconds
            )
            if self._addresses or self._has_ended:
                return False
            self._is_woken = False
            return True
