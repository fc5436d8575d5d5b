"""One request, until it is answered: what became of it each time -> ask again, when, or not.

Nothing here sends or waits: both halves of the client do, and ask here what is next.
"""

import os
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2

from serving.client.errors import NoAnswerError, UnreachableError

_AGAIN = {429, 502, 503, 504}
_OWN_HEADER = "X-Request-Id"
"""Our server's answers have it, whatever they say."""

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_LEAST_SECONDS = 0.05
"""Of the time for asking again, what an attempt has at least; with less left there is none."""


@dataclass(frozen=True)
class Request:
    """A request that is to be made."""

    method: str
    path: str
    body: bytes | None = None

    @property
    def for_httpx(self) -> dict[str, Any]:
        """What both kinds of client of httpx2 are asked with."""
        sent: dict[str, Any] = {"method": self.method, "url": self.path}
        if self.body is None:
            return sent
        return sent | {"content": self.body, "headers": {"Content-Type": "application/json"}}


@dataclass(frozen=True)
class Reply:
    """An answer, or a refusal; how often was asked for it, and for how long."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    attempts: int = 1
    seconds: float = 0.0

    @property
    def passes(self) -> bool:
        """Whether there is too much to do, or no server behind a gateway, for a while.

        Ray Serve's HAProxy says 500 where others say 502 or 503. Our routes compute, and change
        nothing, so that to ask a second time is safe.
        """
        return self.status in _AGAIN or (self.status == 500 and _OWN_HEADER not in self.headers)


@dataclass(frozen=True)
class Lost:
    """A request without an answer: why, whether it may be made again, whether it took too long."""

    reason: str
    again: bool
    late: bool = False


class Attempts:
    """What to do after each attempt at one request, within the seconds that there are for it.

    `clock` gives seconds; `draw` a number between two.
    """

    def __init__(
        self,
        address: str,
        timeout_seconds: float,
        retry_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._address = address
        self._longest = timeout_seconds
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._draw = draw
        self._begin = clock()
        self._count = 0
        self._before: Reply | Lost | None = None

    @property
    def timeout(self) -> httpx2.Timeout:
        """How long the next attempt may take; a further one no longer than there is time for."""
        left = self._retry_seconds - self._seconds()
        seconds = self._longest if self._count == 0 else min(self._longest, max(left, 0.001))
        return httpx2.Timeout(seconds, pool=None)

    def after(self, outcome: Reply | Lost) -> Reply | float:
        """The answer, where it is the last; else the seconds until it is to be tried again.

        Raises `UnreachableError` or `NoAnswerError` where there was none, and will be none.
        """
        self._count += 1
        pause = self._pause(outcome)
        if pause is not None:
            self._before = outcome
            return pause
        is_over = self._seconds() > self._retry_seconds - _LEAST_SECONDS
        if self._before and is_over and isinstance(outcome, Lost) and outcome.late:
            outcome = self._before  # the last attempt was cut short: this is what keeps failing
        if isinstance(outcome, Reply):
            return replace(outcome, attempts=self._count, seconds=self._seconds())
        kind = NoAnswerError if outcome.late else UnreachableError
        raise kind(self._address, outcome.reason, self._count, self._seconds())

    def _pause(self, outcome: Reply | Lost) -> float | None:
        """Exponential back-off with full jitter, after what the server wants waited."""
        asked, again = 0.0, False
        if isinstance(outcome, Lost):
            again = outcome.again
        elif outcome.passes:
            asked, again = retry_after(outcome.headers), True
        left = self._retry_seconds - self._seconds() - asked - _LEAST_SECONDS
        if not again or left < _LEAST_SECONDS:
            return None
        doubled = _FIRST_PAUSE_SECONDS * 2.0 ** min(self._count - 1, 16)
        return asked + self._draw(0.0, min(doubled, _LONGEST_PAUSE_SECONDS, left))

    def _seconds(self) -> float:
        return self._clock() - self._begin


def reply_of(response: httpx2.Response) -> Reply:
    """An answer that has been read."""
    return Reply(response.status_code, response.headers, response.content)


def retry_after(headers: Mapping[str, str]) -> float:
    """The seconds that a server wants waited: a number, or the time until a date; 0 of neither."""
    wanted = headers.get("Retry-After", "").strip()
    if wanted.isascii() and wanted.isdecimal():
        return float(wanted)
    try:
        date = parsedate_to_datetime(wanted)
    except ValueError:
        return 0.0
    date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def lost_by(error: httpx2.RequestError) -> Lost:
    """What a request was lost by: httpx2 has a kind of error for each step, not for each reason."""
    if isinstance(error, httpx2.TimeoutException):
        return Lost("waited in vain", again=False, late=True)
    causes = list(_causes(error))
    reason = next(filter(None, map(_reason, reversed(causes))), str(error) or type(error).__name__)
    if isinstance(error, httpx2.RemoteProtocolError):
        # Closed before an answer or within it; else what answers does not speak HTTP.
        is_closed = "disconnected" in reason or "closed" in reason
        return Lost("closed without an answer" if is_closed else reason, again=is_closed)
    is_over = isinstance(error, httpx2.NetworkError) and not any(map(_is_for_good, causes))
    return Lost(reason, again=is_over)


def _reason(cause: BaseException) -> str | None:
    """What the system calls it, if it was the system."""
    if isinstance(cause, ConnectionError) and cause.errno:
        return os.strerror(cause.errno).lower()  # asyncio has other words
    return cause.strerror if isinstance(cause, OSError) else None


def _is_for_good(cause: BaseException) -> bool:
    """A name that nobody has, or a certificate that nobody trusts, will be no other in a minute."""
    if isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return False
    return isinstance(cause, socket.gaierror | ssl.SSLError)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it comes from, the first cause last."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                yield from _causes(each)
        error = error.__cause__ or error.__context__
