"""The request that is being answered: its id, its key, the models that it uses, and its trace."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, Protocol

from starlette.types import Scope

from serving.batching import Batch
from serving.keys import Key

_MAX_BATCH_SPANS = 32
"""Micro-batches of a request that get a span each; beyond, they are only counted."""

AnsweringRole = Literal["active", "canary"]
"""The version that answers a name, or the canary that has a share of its requests."""


class InFlight:
    """Counts the requests that use a model, from any thread; retiring the model waits for them."""

    def __init__(self) -> None:
        self.count = self.total = 0
        """Requests that use it now, and all that ever did."""
        self._changed = threading.Condition()

    def begin(self) -> None:
        """One more request uses it."""
        with self._changed:
            self.count += 1
            self.total += 1

    def end(self) -> None:
        """One of them has ended."""
        with self._changed:
            self.count -= 1
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Waits until no request uses it, at most so many seconds; whether that was reached."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.count, seconds)


class Trace(Protocol):
    """The spans of a request, as `serving.telemetry.otlp` sends them."""

    def record(self, name: str, begin: float, end: float, **numbers: int) -> None:
        """Adds a span between two moments of `time.monotonic`."""
        ...

    def note(self, **numbers: int) -> None:
        """Adds numbers to the span of the request."""
        ...


@dataclass
class RequestContext:
    """What is known of a request so far.

    `version` is that of the model that answers, "" before one is chosen and for one without;
    `role` is that of the version. `num_numbers` counts the numbers that models compute for it.
    `trace` is None where the request is not traced.
    """

    request_id: str
    key: Key | None = None
    trace: Trace | None = None
    model: str = ""
    version: str = ""
    role: AnsweringRole = "active"
    num_tokens: int = 0
    num_numbers: int = 0
    _in_flight: list[InFlight] = field(default_factory=list)

    def use(
        self,
        model: str,
        version: str | None,
        in_flight: InFlight,
        role: AnsweringRole = "active",
    ) -> None:
        """Records the model that answers, which stays until the request has ended."""
        in_flight.begin()
        self._in_flight.append(in_flight)
        self.model, self.version, self.role = model, version or "", role

    def drop(self) -> None:
        """Releases the last model, unused."""
        self._in_flight.pop().end()

    def end(self) -> None:
        """Releases the models that it has used."""
        while self._in_flight:
            self._in_flight.pop().end()


current_request: ContextVar[RequestContext | None] = ContextVar("current_request", default=None)
"""The request of this task; None outside of a request."""


def own_path(scope: Scope) -> str:
    """The path of a request without the prefix (Ray Serve's `route_prefix`, uvicorn's `root_path`).

    It is "" at the prefix itself, without a slash. Starlette looks for routes by the same path, so
    what is decided by it, such as whether a path needs a key, holds for the route that answers.
    """
    path, prefix = scope["path"], scope.get("root_path", "")
    rest = path.removeprefix(prefix)
    return rest if path.startswith(prefix) and rest[:1] in ("", "/") else path


_UNTRACED: AbstractContextManager[None] = nullcontext()


def span(name: str) -> AbstractContextManager[None]:
    """Records the time that the block takes, if the current request is traced."""
    trace = _current_trace()
    return _UNTRACED if trace is None else _timed(trace, name)


def computing(batches: Sequence[Batch]) -> AbstractContextManager[None]:
    """Records how long the block waits, and the micro-batches that exist at its end."""
    trace = _current_trace()
    return _UNTRACED if trace is None else _waiting(trace, batches)


def _current_trace() -> Trace | None:
    request = current_request.get()
    return None if request is None else request.trace


@contextmanager
def _timed(trace: Trace, name: str) -> Iterator[None]:
    begin = time.monotonic()
    try:
        yield
    finally:
        trace.record(name, begin, time.monotonic())


@contextmanager
def _waiting(trace: Trace, batches: Sequence[Batch]) -> Iterator[None]:
    begin = time.monotonic()
    try:
        yield
    finally:
        trace.record("wait", begin, batches[0].begin if batches else time.monotonic())
        for batch in batches[:_MAX_BATCH_SPANS]:
            trace.record(
                "compute",
                batch.begin,
                batch.begin + batch.seconds,
                batch_tokens=batch.num_tokens,
                batch_requests=batch.num_requests,
            )
        trace.note(batches=len(batches))
