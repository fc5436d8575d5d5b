"""One request: when it is retried, how its reply or failure is read, and the client's errors.

Nothing here sends or waits; the client does. An error is one line, never with the key.
"""

import os
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import httpx2
from pydantic import BaseModel, ValidationError

from serving.client.routes import Info
from serving.limits import Limits
from serving.schemas import Problem

_AGAIN = {429, 502, 503, 504}
_OWN_HEADER = "X-Request-Id"
"""Every response of our server has it."""

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_LEAST_SECONDS = 0.05
"""With less time left, a request is not retried."""


class ClientError(Exception):
    """The base class of the client's errors."""


class RefusalError(ClientError):
    """The server refused the request; has the fields of its problem document.

    - `field` is where the mistake is, such as `inputs[3].text`, counted in the whole list even if
      it was sent in several requests
    - `attempts` and `seconds` are those of the request, with retries
    - `request_id` identifies the last attempt in the server's log
    """

    def __init__(
        self,
        problem: Problem,
        attempts: int = 1,
        seconds: float = 0.0,
        request_id: str | None = None,
    ) -> None:
        super().__init__(problem, attempts, seconds, request_id)
        self.title = problem.title
        self.status = problem.status
        self.detail = problem.detail
        self.field = problem.field
        self.remedy = problem.remedy
        self.attempts = attempts
        self.seconds = seconds
        self.request_id = request_id

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        remedy = f" ({self.remedy})" if self.remedy else ""
        tried = f"; tried {self.attempts} times in {self.seconds:.1f} s" * (self.attempts > 1)
        return _one_line(f"{self.status}: {where}{self.title}: {self.detail}{remedy}{tried}")


class UnreachableError(ClientError):
    """There is no server at the address, or the connection fails."""

    _WHAT = "server unreachable"
    _REMEDY = "check that it runs, and the address"

    def __init__(self, address: str, reason: str, attempts: int, seconds: float) -> None:
        super().__init__(address, reason, attempts, seconds)
        self.address = address
        self.reason = reason
        self.attempts = attempts
        self.seconds = seconds

    def __str__(self) -> str:
        times = "once" if self.attempts == 1 else f"{self.attempts} times"
        tried = f"tried {times} in {self.seconds:.1f} s"
        return _one_line(f"{self._WHAT}: {self.address}: {self.reason}, {tried} ({self._REMEDY})")


class NoAnswerError(UnreachableError):
    """The server did not respond in time."""

    _WHAT = "no response in time"
    _REMEDY = "send fewer items, or raise timeout_seconds or retry_seconds"


class AnswerError(ClientError):
    """The response is not one of our routes': the address belongs to another server."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return _one_line(
            f"unexpected response: {self.address}: {self.reason}"
            " (check that the address is that of a server of the client's version)"
        )


def _one_line(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True)
class Request:
    """A request to send."""

    method: str
    path: str
    body: bytes | None = None

    @property
    def for_httpx(self) -> dict[str, Any]:
        """Arguments of `httpx2.AsyncClient.request`."""
        sent: dict[str, Any] = {"method": self.method, "url": self.path}
        if self.body is None:
            return sent
        return sent | {"content": self.body, "headers": {"Content-Type": "application/json"}}


@dataclass(frozen=True)
class Reply:
    """A response, with the number of attempts and the seconds it took."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    attempts: int = 1
    seconds: float = 0.0

    @property
    def is_temporary(self) -> bool:
        """Whether the server is overloaded or unreachable behind a gateway, so a retry may work.

        Ray Serve's HAProxy answers 500 where others answer 502 or 503. Our routes change nothing,
        so a retry is safe.
        """
        return self.status in _AGAIN or (self.status == 500 and _OWN_HEADER not in self.headers)


@dataclass(frozen=True)
class Failure:
    """A request without a response: why, whether a retry may work, whether it timed out."""

    reason: str
    retryable: bool
    timed_out: bool = False


class Attempts:
    """Decides after each attempt at one request whether and when it is retried.

    `clock` returns seconds, `draw` a number between two.
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
        self._before: Reply | Failure | None = None

    @property
    def timeout(self) -> httpx2.Timeout:
        """The timeout of the next attempt; that of a retry is no longer than the time left."""
        left = self._retry_seconds - self._seconds()
        seconds = self._longest if self._count == 0 else min(self._longest, max(left, 0.001))
        return httpx2.Timeout(seconds, pool=None)

    def after(self, outcome: Reply | Failure) -> Reply | float:
        """Returns the final reply, or the seconds to wait before the next attempt.

        Raises `UnreachableError` or `NoAnswerError` for a failure that is not retried.
        """
        self._count += 1
        pause = self._pause(outcome)
        if pause is not None:
            self._before = outcome
            return pause
        is_over = self._seconds() > self._retry_seconds - _LEAST_SECONDS
        if self._before and is_over and isinstance(outcome, Failure) and outcome.timed_out:
            outcome = self._before  # the last attempt was cut short; report what kept failing
        if isinstance(outcome, Reply):
            return replace(outcome, attempts=self._count, seconds=self._seconds())
        kind = NoAnswerError if outcome.timed_out else UnreachableError
        raise kind(self._address, outcome.reason, self._count, self._seconds())

    def _pause(self, outcome: Reply | Failure) -> float | None:
        """Exponential back-off with full jitter, on top of `Retry-After`."""
        requested, retryable = 0.0, False
        if isinstance(outcome, Failure):
            retryable = outcome.retryable
        elif outcome.is_temporary:
            requested, retryable = retry_after(outcome.headers), True
        left = self._retry_seconds - self._seconds() - requested - _LEAST_SECONDS
        if not retryable or left < _LEAST_SECONDS:
            return None
        doubled = _FIRST_PAUSE_SECONDS * 2.0 ** min(self._count - 1, 16)
        return requested + self._draw(0.0, min(doubled, _LONGEST_PAUSE_SECONDS, left))

    def _seconds(self) -> float:
        return self._clock() - self._begin


def reply_of(response: httpx2.Response) -> Reply:
    """Converts a response whose body has been read."""
    return Reply(response.status_code, response.headers, response.content)


def retry_after(headers: Mapping[str, str]) -> float:
    """Returns the seconds of `Retry-After`, a number or a date; 0 without either."""
    wanted = headers.get("Retry-After", "").strip()
    if wanted.isascii() and wanted.isdecimal():
        return float(wanted)
    try:
        date = parsedate_to_datetime(wanted)
    except ValueError:
        return 0.0
    date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def failure_of(error: httpx2.RequestError) -> Failure:
    """Finds the cause of an error: httpx2 has an error type for each step, not for each cause."""
    if isinstance(error, httpx2.TimeoutException):
        return Failure("timed out", retryable=False, timed_out=True)
    causes = list(_causes(error))
    reason = next(filter(None, map(_reason, reversed(causes))), str(error) or type(error).__name__)
    if isinstance(error, httpx2.RemoteProtocolError):
        # Closed before or within the response; anything else means that the peer speaks no HTTP.
        is_closed = "disconnected" in reason or "closed" in reason
        return Failure(
            "connection closed without a response" if is_closed else reason, retryable=is_closed
        )
    is_over = isinstance(error, httpx2.NetworkError) and not any(map(_is_permanent, causes))
    return Failure(reason, retryable=is_over)


def _reason(cause: BaseException) -> str | None:
    """The operating system's message, if it is an error of the operating system."""
    if isinstance(cause, ConnectionError) and cause.errno:
        return os.strerror(cause.errno).lower()  # asyncio has other words
    return cause.strerror if isinstance(cause, OSError) else None


def _is_permanent(cause: BaseException) -> bool:
    """Whether a retry is useless: the host name is unknown, or the certificate is not trusted."""
    if isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return False
    return isinstance(cause, socket.gaierror | ssl.SSLError)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields the error and its causes, the first cause last."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for part in error.exceptions:
                yield from _causes(part)
        error = error.__cause__ or error.__context__


def is_answer(reply: Reply) -> bool:
    """Returns whether the status is 2xx."""
    return 200 <= reply.status < 300


def refusal_of(reply: Reply) -> RefusalError:
    """Converts a refusal to an error."""
    return refused(problem_in(reply), reply)


def refused(problem: Problem, reply: Reply) -> RefusalError:
    """Converts a problem document to an error, with the facts about its request."""
    request_id = reply.headers.get("X-Request-Id")
    return RefusalError(problem, reply.attempts, reply.seconds, request_id)


class _Message(BaseModel):
    """What the reranking routes say instead of a problem document: one sentence."""

    message: str


def problem_in(reply: Reply) -> Problem:
    """Returns the problem document of a refusal, or one built from its message or its status."""
    with suppress(ValidationError):
        return Problem.model_validate_json(reply.body)
    known = reply.status in list(HTTPStatus)
    title = HTTPStatus(reply.status).phrase if known else "Refused"
    with suppress(ValidationError):
        message = _Message.model_validate_json(reply.body).message
        return Problem(title=title, status=reply.status, detail=message)
    return Problem(
        title=title,
        status=reply.status,
        detail="no problem document, so this does not come from the server itself",
        remedy="check the proxy in front of the server, and the address",
    )


def info_of(reply: Reply, address: str) -> Info:
    """Parses `/info`; raises `RefusalError`, or `AnswerError` for an unexpected body."""
    if not is_answer(reply):
        raise refusal_of(reply)
    try:
        return Info.model_validate_json(reply.body)
    except ValidationError as error:
        raise AnswerError(address, wrong_field(error)) from None


def limits_of(reply: Reply, address: str) -> Limits:
    """Returns the server's limits, or the default limits of a server that hides them."""
    return info_of(reply, address).limits if is_answer(reply) else Limits()


def is_healthy(outcome: Reply | Failure) -> bool:
    """Returns whether a health check succeeds; raises `RefusalError` for an unexpected status."""
    if isinstance(outcome, Failure) or outcome.is_temporary:
        return False
    if not is_answer(outcome):
        raise refusal_of(outcome)
    return True


def wrong_field(error: ValidationError) -> str:
    """Returns the first validation error, without the value."""
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'answer'}: {first['msg']}"
