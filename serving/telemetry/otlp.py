"""Traces of requests, sent to a collector as OTLP over HTTP from a thread of its own.

OpenTelemetry's SDK queues and sends the spans. They are made here, finished: that takes a tenth of
the time of the SDK's tracer, whose spans can be changed until they end. `serving.app` imports this
module only where tracing is wanted. A span never has a text, a key, a header or the message of an
exception.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from random import random

import requests
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import Scope

from serving.request_context import RequestContext, own_path

_LOG = logging.getLogger(__name__)

_UNTRACED = ("/health", "/ready", "/metrics")
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")

_MOST_SPANS = 4096
"""That wait to be sent; beyond, the oldest are left out."""
_BATCH_SPANS = 256
_SEND_SECONDS = 1.0
_TIMEOUT_SECONDS = 5.0
_CLOSE_SECONDS = 2.0

_IDS = RandomIdGenerator()
_PROPAGATOR = TraceContextTextMapPropagator()
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status()


class Tracing:
    """Traces requests, and sends their spans to the address of a collector's traces.

    A client that sends `traceparent` has its trace continued, and decides whether it is traced;
    of the others a share is. `tracestate` is not read: it may say anything.
    """

    def __init__(self, address: str, share: float, instance: str | None = None) -> None:
        # They have a line for every failure; `_Sending` has one for all.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._share = share
        self._sending = _Sending(address)
        self._batches = BatchSpanProcessor(
            self._sending,
            max_queue_size=_MOST_SPANS,
            schedule_delay_millis=_SEND_SECONDS * 1000,
            max_export_batch_size=_BATCH_SPANS,
        )
        self._origin = _Origin(
            Resource.create(
                {
                    "service.name": "bertline",
                    "service.version": version("bertline"),
                    "service.instance.id": instance or f"{socket.gethostname()}:{os.getpid()}",
                }
            ),
            InstrumentationScope("bertline", version("bertline")),
        )

    def begin(self, scope: Scope) -> "Trace | None":
        """The trace of a request that has just come; None for one that is not traced."""
        if own_path(scope) in _UNTRACED:
            return None
        parent = _parent_of(scope)
        is_traced = random() < self._share if parent is None else parent.trace_flags.sampled
        return Trace(self._origin, self._batches.on_end, parent) if is_traced else None

    def close(self) -> None:
        """Sends what is left, in two seconds at most."""
        # Its own wait has no end that could be set.
        ending = threading.Thread(target=self._batches.shutdown, daemon=True)
        ending.start()
        ending.join(_CLOSE_SECONDS)
        if ending.is_alive():
            self._sending.shutdown()


@dataclass(frozen=True)
class _Origin:
    """What all spans of a server have in common."""

    resource: Resource
    scope: InstrumentationScope


class Trace:
    """The spans of one request, the root of which is the request itself."""

    def __init__(
        self, origin: _Origin, send: Callable[[ReadableSpan], None], parent: SpanContext | None
    ) -> None:
        self._origin = origin
        self._send = send
        self._parent = parent
        trace_id = _IDS.generate_trace_id() if parent is None else parent.trace_id
        self._root = _context(trace_id)
        self._began, self._began_at = time.monotonic(), time.time_ns()
        self._known: dict[str, str | int] = {}

    def record(self, name: str, begin: float, end: float, **numbers: int) -> None:
        """Adds a span between two moments of `time.monotonic`, below the request's."""
        self._send(
            ReadableSpan(
                name,
                _context(self._root.trace_id),
                self._root,
                self._origin.resource,
                _named(numbers),
                instrumentation_scope=self._origin.scope,
                start_time=self._at(begin),
                end_time=self._at(end),
            )
        )

    def note(self, **numbers: int) -> None:
        """Adds numbers to the attributes of the request's span."""
        self._known |= _named(numbers)

    def end(self, request: RequestContext, scope: Scope, status: int, kind: str | None) -> None:
        """Ends the request's span: with a status, 0 if none was sent, or the kind of its error."""
        is_known = scope["method"] in _METHODS
        route = getattr(scope.get("route"), "path", None)
        name = scope["method"] if is_known else "HTTP"
        has_failed = status >= 500 or kind is not None
        known = self._known | {
            "http.request.method": scope["method"] if is_known else "_OTHER",
            "http.route": route,
            "http.response.status_code": status or None,
            "url.scheme": scope["scheme"],
            "error.type": (kind or str(status)) if has_failed else None,
            "bertline.request_id": request.request_id,
            "bertline.model": request.model or None,
            "bertline.version": request.version or None,
            "bertline.tokens": request.num_tokens,
            "bertline.key_name": request.key.name if request.key is not None else None,
        }
        self._send(
            ReadableSpan(
                name if route is None else f"{name} {route}",
                self._root,
                self._parent,
                self._origin.resource,
                {name: value for name, value in known.items() if value is not None},
                kind=SpanKind.SERVER,
                status=Status(StatusCode.ERROR) if has_failed else _UNSET,
                instrumentation_scope=self._origin.scope,
                start_time=self._began_at,
                end_time=self._at(time.monotonic()),
            )
        )

    def _at(self, moment: float) -> int:
        """A moment of the request in nanoseconds since 1970, by the clock at its start."""
        return self._began_at + int((moment - self._began) * 1e9)


class _Sending(SpanExporter):
    """Sends batches; warns once when the collector stops taking them."""

    def __init__(self, address: str) -> None:
        session = requests.Session()
        session.hooks["response"].append(self._note_answer)
        self._address = address
        self._exporter = OTLPSpanExporter(address, timeout=_TIMEOUT_SECONDS, session=session)
        self._answer = "no answer"
        self._is_lost = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._answer = "no answer"
        result = self._exporter.export(spans)
        is_lost = result is not SpanExportResult.SUCCESS
        if is_lost and not self._is_lost:
            _LOG.warning(
                "warning: %s takes no spans (%s): they are lost until it does",
                *(self._address, self._answer),
            )
        elif self._is_lost and not is_lost:
            _LOG.info("%s takes spans again", self._address)
        self._is_lost = is_lost
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def _note_answer(self, response: requests.Response, **_: object) -> None:
        self._answer = f"HTTP {response.status_code}"


def _named(numbers: Mapping[str, int]) -> dict[str, int]:
    return {f"bertline.{name}": value for name, value in numbers.items()}


def _context(trace_id: int) -> SpanContext:
    return SpanContext(trace_id, _IDS.generate_span_id(), is_remote=False, trace_flags=_SAMPLED)


def _parent_of(scope: Scope) -> SpanContext | None:
    """The client's span, if it names one, once and as W3C's Trace Context has it."""
    given = [value for name, value in scope["headers"] if name == b"traceparent"]
    if len(given) != 1:
        return None
    context = _PROPAGATOR.extract({"traceparent": given[0].decode("latin-1")}, Context())
    found = get_current_span(context).get_span_context()
    return found if found.is_valid else None
