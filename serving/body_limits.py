"""Bodies of requests arrive whole, in time and in size, before anything is done about them."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.errors import respond
from serving.limits import Limits
from serving.mounting import own_path
from serving.problems import RequestError


class BodyLimits:
    """ASGI middleware: a body that is too large gets 413, one that is too slow 408.

    Nothing of a slow client's request holds up those of others: it has cost its bytes.
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, lower: Mapping[str, int] | None = None
    ) -> None:
        self._app = app
        self._limits = limits
        self._lower = lower or {}
        """The bytes that bodies have at most at paths that take less."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on when its body is there."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                body = await self._read(scope, receive)
        except (RequestError, TimeoutError) as error:
            await respond(scope, receive, send, error if isinstance(error, RequestError) else _SLOW)
            return
        if body is None:
            return  # the client has gone
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        if len(body) <= _SHORT_BODY:

            async def replay() -> Message:
                return waiting.pop() if waiting else await receive()

            await self._app(scope, replay, send)
            return
        gone = asyncio.create_task(_disconnect(receive))

        async def replay_or_gone() -> Message:
            return waiting.pop() if waiting else await asyncio.shield(gone)

        answering = asyncio.create_task(self._app(scope, replay_or_gone, send))  # pyright: ignore[reportArgumentType] - an application is a coroutine function
        try:
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                await answering
        finally:  # the client has gone, or the server ends: what no micro-batch has is not computed
            gone.cancel()
            answering.cancel()
            with suppress(asyncio.CancelledError):
                await answering

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        most = self._limits.max_body_bytes
        most = min(most, self._lower.get(own_path(scope), most))
        for name, value in scope["headers"]:
            if name == b"content-length" and int(value) > most:
                raise _too_large(most)
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise _too_large(most)
            more = message.get("more_body", False)
        return b"".join(parts)


def _too_large(most: int) -> RequestError:
    return RequestError(
        413,
        "Too large a body",
        f"a request has {most} bytes at most",
        field="body",
        remedy="divide it among several requests",
    )


async def _disconnect(receive: Receive) -> Message:
    """Waits until the client has gone."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return message


_SHORT_BODY = 4096
"""Bytes of a body that is computed before it is worth looking whether its client is still there."""

_SLOW = RequestError(
    408, "Too slow a body", "the body did not arrive in time", field="body", remedy="send it again"
)
