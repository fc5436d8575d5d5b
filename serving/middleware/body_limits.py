"""Request bodies arrive whole, in time and within their limits before a route reads them."""

import asyncio
import zlib
from collections.abc import Mapping
from contextlib import suppress

import numpy as np
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.batching import OverloadedError
from serving.errors import RequestError, respond
from serving.limits import Limits
from serving.request_context import own_path


class BodyLimits:
    """ASGI middleware: a body that is too large gets 413, one that is too slow 408.

    A slow client costs its bytes and delays no one else. A compressed body is decoded, up to the
    same size. JSON with more values, fields or levels than a request can need is refused before it
    is read: each value costs up to a hundred times its bytes.
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, lower: Mapping[str, int] | None = None
    ) -> None:
        self._app = app
        self._limits = limits
        self._lower = lower or {}
        """The bytes that bodies have at most at paths that take less."""
        self._held: dict[int, int] = {}
        """The bytes of long bodies that are not answered yet, by the identity of their scope."""
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on when its body has arrived."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        try:
            await self._answer(scope, receive, send)
        finally:
            self._held_bytes -= self._held.pop(id(scope), 0)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                body = await self._read(scope, receive)
            if body is not None:
                body = self._decoded(scope, body)
                _check_shape(body, self._limits)
        except (RequestError, OverloadedError) as error:
            await respond(scope, receive, send, error)
            return
        except TimeoutError:
            await respond(scope, receive, send, _SLOW)
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

    def _max_bytes(self, scope: Scope) -> int:
        most = self._limits.max_body_bytes
        return min(most, self._lower.get(own_path(scope), most))

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        most = self._max_bytes(scope)
        for name, value in scope["headers"]:
            if name == b"content-length" and _length(value, most) > most:
                raise _too_large(most)
            if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                raise _unknown_transfer_coding(value)
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
            self._hold(scope, size)
            more = message.get("more_body", False)
        return b"".join(parts)

    def _hold(self, scope: Scope, size: int) -> None:
        """Notes how long a body is; raises `OverloadedError` for a long one where many are held.

        Without this limit the bodies of all connections would take gigabytes. Short bodies are
        always taken, so that long or endless ones do not shut them out.
        """
        if size <= _ALWAYS_TAKEN:
            return
        before = self._held.get(id(scope), 0)
        if self._held_bytes - before + size > _BODIES_AT_ONCE * self._limits.max_body_bytes:
            raise OverloadedError(self._limits.body_seconds)
        self._held[id(scope)] = size
        self._held_bytes += size - before

    def _decoded(self, scope: Scope, body: bytes) -> bytes:
        """The body without its Content-Encoding, which the request then no longer has."""
        codings = [value for name, value in scope["headers"] if name == _ENCODING]
        if not codings:
            return body
        body = _decompressed(body, b",".join(codings).decode("latin-1"), self._max_bytes(scope))
        self._hold(scope, len(body))
        others = [header for header in scope["headers"] if header[0] not in (_ENCODING, _LENGTH)]
        scope["headers"] = [*others, (_LENGTH, b"%d" % len(body))]
        return body


_ALWAYS_TAKEN = 64 << 10
"""Bytes of a body that is always taken, however many others are held."""
_BODIES_AT_ONCE = 64
"""As many bodies of the maximum size may be held."""

_ENCODING, _LENGTH = b"content-encoding", b"content-length"

_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""zlib's window bits of each format, by the names that HTTP has for it."""


def _length(value: bytes, most: int) -> int:
    """The number in a Content-Length, or any that is more than `most`."""
    if not value.isdigit():
        detail = "a Content-Length is a number"
        remedy = "leave it to the HTTP library"
        raise RequestError(400, "No length", detail, field="Content-Length", remedy=remedy)
    digits = value.lstrip(b"0")
    return most + 1 if len(digits) > 18 else int(digits or b"0")


def _decompressed(body: bytes, coding: str, most: int) -> bytes:
    """The body without its Content-Encoding, at most so many bytes; never more are made."""
    name = coding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in _WINDOW_BITS:
        detail = f"Content-Encoding: {coding.strip()}"
        remedy = "send the body with gzip or deflate, or as it is"
        raise RequestError(415, "Unknown encoding", detail, field="Content-Encoding", remedy=remedy)
    try:
        decoded = _inflated(body, _WINDOW_BITS[name], most)
    except zlib.error:
        decoded = None
    if decoded is None:
        detail = f"the body is not what Content-Encoding: {name} says, or not whole"
        remedy = "compress it as a whole, or leave the header out"
        raise RequestError(400, f"No {name}", detail, field="Content-Encoding", remedy=remedy)
    if len(decoded) > most:
        raise _too_large(most)
    return decoded


def _inflated(body: bytes, window_bits: int, most: int) -> bytes | None:
    """What is compressed, cut where it is more than `most` bytes; None of what is not whole.

    A gzip body may have several members, one after another (RFC 1952); deflate has one stream.
    """
    decoded = bytearray()
    member = zlib.decompressobj(window_bits)
    for begin in range(0, len(body), _COMPRESSED_AT_ONCE):
        part = body[begin : begin + _COMPRESSED_AT_ONCE]
        while part:  # each member copies what is behind it, of this part alone
            if member.eof:
                if window_bits != _WINDOW_BITS["gzip"]:
                    return None
                member = zlib.decompressobj(window_bits)
            decoded += member.decompress(part, most + 1 - len(decoded))
            if len(decoded) > most:
                return bytes(decoded)
            part = member.unused_data
    return bytes(decoded) if member.eof else None


_COMPRESSED_AT_ONCE = 4096
"""Bytes; a member of gzip has 20 at least."""


_MAX_DEPTH = 32
"""Lists and objects in one another: no request has more than six."""


def _check_shape(body: bytes, limits: Limits) -> None:
    """Raises `RequestError` for JSON with more in it than any request needs; decodes nothing.

    It takes milliseconds for megabytes. Invalid JSON is found where it is decoded.
    """
    if b"\0" in body:
        detail = "a NUL byte, which JSON in UTF-8 does not have"
        remedy = "send JSON in UTF-8; if it is compressed, set Content-Encoding"
        raise RequestError(400, "Not JSON", detail, field="body", remedy=remedy)
    _check_encoding(body)
    most = limits.max_body_values
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # every " left begins or ends a string
    if bare.count(b'":') > limits.max_body_fields:
        raise _too_many_fields(limits.max_body_fields)
    if bare.count(b'"') > 2 * (most + limits.max_body_fields):
        raise _too_many_values(most)
    outside = b"".join(bare.split(b'"')[::2])
    opened = outside.count(b"[") + outside.count(b"{")
    if opened > _MAX_DEPTH and _depth(outside) > _MAX_DEPTH:
        detail = f"a body has at most {_MAX_DEPTH} lists and objects in one another"
        remedy = "see /docs for what this address takes"
        raise RequestError(400, "Too deep", detail, field="body", remedy=remedy)
    if _ALL_NINES in outside.translate(_NINES):
        detail = f"a number of {len(_ALL_NINES)} digits or more"
        remedy = "see /docs for what this address takes"
        raise RequestError(400, "Not JSON", detail, field="body", remedy=remedy)
    if outside.count(b":") > limits.max_body_fields:
        raise _too_many_fields(limits.max_body_fields)
    if opened + outside.count(b",") > most:
        raise _too_many_values(most)


def _check_encoding(body: bytes) -> None:
    if body.isascii():
        return
    try:
        body.decode()
    except UnicodeDecodeError as error:
        detail = f"byte {error.start} of the body, 0x{body[error.start]:02x}, is not UTF-8"
        remedy = (
            "send JSON in UTF-8, not in Latin-1 or another encoding;"
            " if it is compressed, set Content-Encoding"
        )
        raise RequestError(400, "Not UTF-8", detail, field="body", remedy=remedy) from None


_NINES = bytes(57 if chr(byte).isdecimal() else byte for byte in range(256))
_ALL_NINES = b"9" * 400
"""Digits of a number that is refused: reading one takes the square of its digits."""


def _depth(outside: bytes) -> int:
    """How deep lists and objects stand in one another, given JSON without its strings."""
    steps = np.frombuffer(outside.translate(_STEPS), np.int8)
    return int(steps.cumsum(dtype=np.int32).max(initial=0))


_STEPS = bytes({91: 1, 123: 1, 93: 255, 125: 255}.get(byte, 0) for byte in range(256))
"""What a character does to the depth, as a signed byte."""


def _too_many_fields(most: int) -> RequestError:
    detail = f"the body of a request has {most} fields at most, those of its items too"
    remedy = "see /docs for what this address takes"
    return RequestError(422, "Too many fields", detail, field="body", remedy=remedy)


def _too_many_values(most: int) -> RequestError:
    detail = f"the body of a request has {most} values at most"
    remedy = "divide it among several requests"
    return RequestError(413, "Too many values", detail, field="body", remedy=remedy)


def _unknown_transfer_coding(value: bytes) -> RequestError:
    return RequestError(
        501,
        "Unknown transfer coding",
        f"Transfer-Encoding: {value.decode('latin-1')}",
        field="Transfer-Encoding",
        remedy="send only chunked; if the body is compressed, set Content-Encoding",
    )


def _too_large(most: int) -> RequestError:
    detail = f"a request has {most} bytes at most"
    remedy = "divide it among several requests"
    return RequestError(413, "Too large a body", detail, field="body", remedy=remedy)


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
