"""Every request is counted, traced and logged, and refused unread where every encoder is full."""

import json
import logging
import re
import time
import traceback
import uuid
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.batching import OverloadedError
from serving.engine import Engine
from serving.errors import refusal, respond
from serving.request_context import RequestContext, current_request, own_path
from serving.rollout.admin import WEBHOOK_PATH
from serving.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from serving.telemetry.otlp import Tracing

LOG = logging.getLogger("serving.requests")

_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
ID_HEADER = b"x-request-id"
_MODEL_HEADER, _VERSION_HEADER = b"x-model", b"x-model-version"

_GONE = 499
"""In the log and the counts, the status of a request whose client left before it was answered."""


class Instrumented:
    """ASGI middleware around the others, so that their refusals are seen too.

    A client's own `X-Request-Id` is kept; each answer has one, and names its model by `X-Model` and
    `X-Model-Version`. An unhandled exception becomes 500; the log has its type and places, and not
    its message, which may contain a part of a text.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, tracing: "Tracing | None" = None) -> None:
        self._app = app
        self._metrics = metrics
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, and takes note of how it ended."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trace = self._tracing.begin(scope) if self._tracing is not None else None
        request = RequestContext(request_id_of(scope), trace=trace)
        token = current_request.set(request)
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
            "key": request.key.name if request.key is not None else None,
        }
        | more
    )


_LOG_SECONDS = 1.0


class Admission:
    """ASGI middleware around all others: 429 to what is posted while every encoder is full.

    Reading and tokenizing a text costs ten times as much, and takes the processor from requests
    that were accepted. For the same reason such refusals share one log line a second.
    """

    def __init__(self, app: ASGIApp, engine: Engine) -> None:
        self._app = app
        self._engine = engine
        self._unlogged = 0
        self._logged_at = float("-inf")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on a request that there is room for."""
        if scope["type"] == "http" and scope["method"] == "POST" and not _is_let_in(scope):
            try:
                self._engine.check_room()
            except OverloadedError as error:
                status, headers, body = _refusal(own_path(scope), ceil(error.retry_after))
                own = (ID_HEADER, request_id_of(scope).encode())
                start = {"type": "http.response.start", "status": status}
                await send(start | {"headers": [*headers, own]})
                await send({"type": "http.response.body", "body": body})
                self._engine.metrics.count_unread()
                self._log()
                return
        await self._app(scope, receive, send)

    def _log(self) -> None:
        self._unlogged += 1
        now = time.monotonic()
        if now - self._logged_at >= _LOG_SECONDS and LOG.isEnabledFor(logging.INFO):
            LOG.info(json.dumps({"time": time.time(), "status": 429, "unread": self._unlogged}))
            self._unlogged, self._logged_at = 0, now


def _is_let_in(scope: Scope) -> bool:
    """Whether it asks no encoder: a version that ends the overload has to come in."""
    return own_path(scope) == WEBHOOK_PATH


@lru_cache(maxsize=256)
def _refusal(path: str, retry_after: int) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status, headers and body, in the shape of the family that a path is of."""
    response = refusal(path, OverloadedError(retry_after))
    return response.status_code, response.raw_headers, bytes(response.body)


class SlashAtPrefix:
    """ASGI middleware: redirects `/prefix` to `/prefix/`, from which the page finds its files.

    The address is relative: the server does not know which scheme and host the client used.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes all other requests on."""
        if scope["type"] == "http" and own_path(scope) == "":
            last = quote(scope["path"].rpartition("/")[2])
            answer = Response(status_code=307, headers={"Location": f"{last}/"})
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)
