"""Spans of the current request's trace; nothing is imported or recorded where it has none."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from bert_core.errors import UserError

if TYPE_CHECKING:
    from serving.batching import Batch
    from serving.telemetry.otlp import Trace, Tracing

_PATH = "/v1/traces"
_MOST_BATCHES = 32
"""Micro-batches of a request that get a span each; beyond, they are only counted."""


current_trace: "ContextVar[Trace | None]" = ContextVar("current_trace", default=None)
"""The trace of the current request; None where it is not traced."""

_OFF: AbstractContextManager[None] = nullcontext()


def span(name: str) -> AbstractContextManager[None]:
    """Records the time that the block takes, if the request is traced."""
    trace = current_trace.get()
    return _OFF if trace is None else _timed(trace, name)


def computing(batches: "Sequence[Batch]") -> AbstractContextManager[None]:
    """Records how long the block waits, and the micro-batches that exist at its end."""
    trace = current_trace.get()
    return _OFF if trace is None else _waiting(trace, batches)


@contextmanager
def _timed(trace: "Trace", name: str) -> Iterator[None]:
    begin = time.monotonic()
    try:
        yield
    finally:
        trace.record(name, begin, time.monotonic())


@contextmanager
def _waiting(trace: "Trace", batches: "Sequence[Batch]") -> Iterator[None]:
    begin = time.monotonic()
    try:
        yield
    finally:
        trace.record("wait", begin, batches[0].begin if batches else time.monotonic())
        for batch in batches[:_MOST_BATCHES]:
            trace.record(
                "compute",
                batch.begin,
                batch.begin + batch.seconds,
                batch_tokens=batch.num_tokens,
                batch_requests=batch.num_requests,
            )
        trace.note(batches=len(batches))


def _is_base(given: str) -> str:
    parts = urlsplit(given)
    if "@" in parts.netloc:
        raise ValueError("a password has no place in it: OTEL_EXPORTER_OTLP_HEADERS takes one")
    is_address = parts.scheme in ("http", "https") and parts.hostname
    if not is_address or parts.query or parts.fragment or parts.path.rstrip("/").endswith(_PATH):
        raise ValueError(f"{given!r} is no base: write http://HOST:4318, without {_PATH}")
    return given


OtlpEndpoint = Annotated[str, AfterValidator(_is_base)]
"""Address of a collector, below which `/v1/traces` is."""
TraceShare = Annotated[float, Field(ge=0, le=1)]
"""Of the requests whose clients do not say whether they are traced."""


def start_tracing(
    endpoint: OtlpEndpoint | None, share: TraceShare, instance: str | None = None
) -> "Tracing | None":
    """Starts sending spans to a collector; without one OpenTelemetry is not imported.

    `instance` names this server, by default by its host and process. Raises `UserError` where
    OpenTelemetry is not installed.
    """
    if endpoint is None:
        return None
    try:
        from serving.telemetry.otlp import Tracing
    except ModuleNotFoundError as error:
        what = f"tracing without its packages ({error.name})"
        remedy = "in the checkout: pip install -e '.[tracing]'"
        raise UserError(what, f"otlp_endpoint {endpoint}", remedy) from error
    return Tracing(endpoint.rstrip("/") + _PATH, share, instance)
