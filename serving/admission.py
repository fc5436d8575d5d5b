"""Who is turned away under overload is so before being read, which costs next to nothing."""

import json
import logging
import time
from functools import lru_cache
from math import ceil

from starlette.types import ASGIApp, Receive, Scope, Send

from serving.batching import OverloadedError
from serving.engine import Engine
from serving.errors import refusal
from serving.instrumentation import ID_HEADER, LOG, request_id_of
from serving.mounting import own_path
from serving.webhook import WEBHOOK_PATH

_LOG_SECONDS = 1.0


class Admission:
    """ASGI middleware around all others: 429 to what is posted while every encoder is full.

    To read a text and cut it into tokens costs ten times as much, and would take the processor
    from the requests that were let in. For the same reason such refusals are counted, and have an
    id, but share a line of the log for each second.
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
    """Whether it asks no encoder: a version that mends the overload has to come in."""
    return own_path(scope) == WEBHOOK_PATH


@lru_cache(maxsize=256)
def _refusal(path: str, retry_after: int) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status, headers and body, in the shape of the family that a path is of."""
    response = refusal(path, OverloadedError(retry_after))
    return response.status_code, response.raw_headers, bytes(response.body)
