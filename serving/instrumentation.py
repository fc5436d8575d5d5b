"""Every request is counted, has an id, and, if wanted, a line in the log: JSON, never its text."""

import json
import logging
import re
import time
import traceback
import uuid
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.errors import respond
from serving.metrics import Metrics
from serving.request_context import RequestContext, current_request
from serving.tracing import Tracing

LOG = logging.getLogger("serving.requests")

_ID = re.compile(r"[\w.:-]{1,128}")
ID_HEADER = b"x-request-id"
_MODEL_HEADER, _VERSION_HEADER = b"x-model", b"x-model-version"

_GONE = 499
"""In the log and the counts, the status of a request whose client left before it was answered."""


class Instrumented:
    """ASGI middleware around all others, so that what they refuse is seen too.

    A client's own `X-Request-Id` is kept; each answer has one, and names the model that gave it, by
    `X-Model` and `X-Model-Version`. An exception that nobody has
    handled becomes 500, and the log has its kind and its places, not what it says: that may be a
    part of a text.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, tracing: Tracing | None = None) -> None:
        self._app = app
        self._metrics = metrics
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, and takes note of how it ended."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = RequestContext(request_id_of(scope))
        token = current_request.set(request)
        trace = self._tracing.begin(scope) if self._tracing is not None else None
        begin = time.perf_counter()
        status = 0
        kind = None

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message["headers"]
                headers.append((ID_HEADER, request.request_id.encode()))
                if request.model:
                    headers.append((_MODEL_HEADER, quote(request.model).encode()))
                    headers.append((_VERSION_HEADER, request.version.encode()))
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except Exception as error:
            kind = type(error).__name__
            frames = [f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
            LOG.error(_line(request, scope, 500, 0.0, kind=kind, at=frames[-8:]))
            if status:  # the answer has begun, so there is no other
                raise
            await respond(scope, receive, watch, error)
        finally:
            if trace is not None:
                trace.end(request, scope, status, kind)
            status = status or _GONE
            seconds = time.perf_counter() - begin
            current_request.reset(token)
            self._metrics.count_version(request.model, request.version, request.role)
            request.end()  # from here on its version may be forgotten
            route = getattr(scope.get("route"), "path", "none")
            self._metrics.count_request(route, request.model, status, seconds)
            if LOG.isEnabledFor(logging.INFO):
                LOG.info(_line(request, scope, status, seconds))


def request_id_of(scope: Scope) -> str:
    """The client's own id of a request, or one made for it."""
    for name, value in scope["headers"]:
        if name == ID_HEADER and _ID.fullmatch(given := value.decode("latin-1")):
            return given
    return uuid.uuid4().hex


def _line(
    request: RequestContext, scope: Scope, status: int, seconds: float, **more: object
) -> str:
    """A line of the log."""
    return json.dumps(
        {
            "time": time.time(),
            "request_id": request.request_id,
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "seconds": round(seconds, 6),
            "model": request.model,
            "version": request.version,
            "tokens": request.num_tokens,
            "key": request.payer.name if request.payer is not None else None,
        }
        | more
    )
