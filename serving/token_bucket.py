"""Tokens that come back with time: requests take them, and are turned away when none are left."""

import threading
import time


class RateLimitError(Exception):
    """A key has used up its tokens; it says after how many seconds to ask again."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"the key's tokens are used up: ask again in {retry_after:.1f} s")
        self.retry_after = retry_after


class TokenBucket:
    """So many tokens a minute, on any thread.

    They come back evenly, up to those of a minute. A request is let in while there are any, and may
    leave a debt, so that one larger than the rest is not shut out for ever.

    Where several servers let in on one limit, each has a bucket of its own and now and then tells
    what it took (`take_paid`) to one that stands for all (`settle`), whose level it goes on from
    (`correct`): over a minute no more is let in than by one server, but for what they take between
    two such times.
    """

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._left = float(per_minute)
        self._paid = 0
        self._at = time.monotonic()
        self._lock = threading.Lock()

    def pay(self, num_tokens: int) -> None:
        """Takes tokens off those that are left; raises `RateLimitError` where none are."""
        with self._lock:
            self._refill()
            if self._left <= 0:
                raise RateLimitError((1 - self._left) * 60 / self.per_minute)
            self._left -= num_tokens
            self._paid += num_tokens

    def settle(self, num_tokens: int) -> float:
        """Takes off what was let in already; how many are left then, less than 0 for a debt."""
        with self._lock:
            self._refill()
            self._left -= num_tokens
            return self._left

    def take_paid(self) -> int:
        """The tokens that were paid since this was asked last."""
        with self._lock:
            paid, self._paid = self._paid, 0
            return paid

    def put_back(self, num_tokens: int) -> None:
        """Has `take_paid` give these another time: they could not be told."""
        with self._lock:
            self._paid += num_tokens

    def correct(self, left: float) -> None:
        """Goes on from what is left in all, without what was paid here since `take_paid`."""
        with self._lock:
            self._left, self._at = left - self._paid, time.monotonic()

    def _refill(self) -> None:
        now = time.monotonic()
        come_back = (now - self._at) * self.per_minute / 60
        self._left = min(float(self.per_minute), self._left + come_back)
        self._at = now
