"""Connections of clients under uvicorn: how many are open, and how long a silent one is kept.

uvicorn closes only connections that are idle after an answer: one that sends nothing or half a
request, or that does not read its answer, stays open forever.
"""

import logging
import resource
import time
from array import array
from asyncio import TimerHandle, Transport
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from httptools import HttpParserUpgrade, HttpRequestParser
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from serving.errors import RequestError, respond

_LOG = logging.getLogger(__name__)

BACKLOG = 2048
"""Connections that the kernel keeps until they are accepted; several may be in one go."""
_OTHER_FILES = 256
"""Files that a process has open besides connections: models, pipes, the libraries' own."""

_MAX_HEADERS = 100
_MAX_HEAD_BYTES = 64 << 10
_MAX_PIPELINED = 64
"""Requests of one connection that wait for those before them; uvicorn itself takes any number."""
_LOG_SECONDS = 60.0


@dataclass(eq=False)
class Connections:
    """The open connections of a server.

    `header_seconds` is how long the head of a request may take to arrive, `stalled_seconds` how
    long a client may read nothing of an answer. Above `most` the one is closed that has waited for
    its client longest; where all wait for their answers, a new one gets 503.
    """

    most: int = 4096
    header_seconds: float = 10.0
    stalled_seconds: float = 30.0
    waiting: "OrderedDict[Connection, None]" = field(default_factory=OrderedDict)
    """Those that wait for their clients, the longest first."""
    _logged_at: float = float("-inf")

    def make_room(self, newest: "Connection") -> None:
        """Closes the connection that has waited longest; has the newest refused if none has."""
        oldest = next(iter(self.waiting))
        if oldest is newest:
            newest.app = _refuse
        else:
            del self.waiting[oldest]
            oldest.transport.abort()
        now = time.monotonic()
        if now - self._logged_at >= _LOG_SECONDS:
            self._logged_at = now
            what = "a new one is refused" if oldest is newest else "a silent one is closed"
            _LOG.warning("warning: %s connections are open, so %s (--max_connections)",
                         self.most, what)  # fmt: skip


class Connection(HttpToolsProtocol):
    """One connection; `connections` are all of them."""

    def __init__(self, *args: Any, connections: Connections, **more: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(*args, **more)
        self.parser = _Parser(self)
        self._all = connections
        self._head_timer: TimerHandle | None = None
        self._stall_timer: TimerHandle | None = None
        self._is_in_head = False
        self._num_headers = self._head_bytes = self._unsent_bytes = 0

    def connection_made(self, transport: Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - as uvicorn's
        """Waits for a request."""
        super().connection_made(transport)
        self._await_head()
        self._all.waiting[self] = None
        if len(self.connections) > self._all.most:
            self._all.make_room(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets it."""
        super().connection_lost(exc)
        self._all.waiting.pop(self, None)
        self._stop_awaiting_head()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Takes what has come; a head that has begun has to end in time, and in size."""
        was_in_head = self._is_in_head
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_in_head and was_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                self._end(431)
                return
        is_its_turn = self.cycle is None or self.cycle.response_complete
        if is_its_turn and self._head_timer is None and self.timeout_keep_alive_task is None:
            self._await_head()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._is_in_head = True
        self._num_headers = self._head_bytes = 0
        if self in self._all.waiting:
            self._all.waiting.move_to_end(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header; raises, which uvicorn answers with 400, for one too many."""
        self._num_headers += 1
        if self._num_headers > _MAX_HEADERS:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head has arrived; raises, as above, where too many others wait."""
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise ValueError("no proxy")
            return  # the head comes once more
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise ValueError("too many requests at once")
        self._is_in_head = False
        self._stop_awaiting_head()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request has arrived: its client waits from now on, unless it is answered already."""
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        if not self.cycle.response_complete:
            self._all.waiting.pop(self, None)

    def on_response_complete(self) -> None:
        """It is the client's turn again, unless it has sent more requests already."""
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None:
            self._all.waiting[self] = None
            self._all.waiting.move_to_end(self)
            if self._is_in_head and self._head_timer is None:  # the next one came with this one
                self._await_head()

    def pause_writing(self) -> None:
        """A part of an answer is to be read by the client first."""
        super().pause_writing()
        if self._stall_timer is None:
            self._watch_reading()

    def resume_writing(self) -> None:
        """The client has read it."""
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _watch_reading(self) -> None:
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(self._all.stalled_seconds, self._end_if_unread)

    def _end_if_unread(self) -> None:
        if self.transport.get_write_buffer_size() >= self._unsent_bytes:
            self.transport.abort()
        else:
            self._watch_reading()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self._all.header_seconds, self._end_unheard)

    def _stop_awaiting_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_unheard(self) -> None:
        if self._is_in_head:
            self._end(408)
        else:
            self.transport.close()

    def _end(self, status: int) -> None:
        """Answers a request whose head did not arrive."""
        self.transport.write(
            STATUS_LINE[status] + b"content-length: 0\r\nconnection: close\r\n\r\n"
        )
        self.transport.close()


class _Parser(HttpRequestParser):
    """Reads a request that offers another protocol as one that does not (RFC 9110, 7.8).

    The parser itself would leave its body out, and take that for the next request.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self._connection = connection

    def feed_data(self, data: "bytes | bytearray | memoryview | array[int]") -> None:
        """Reads bytes; the head of such a request is read again without its offer."""
        try:
            super().feed_data(data)
        except HttpParserUpgrade as offer:
            # Another parser: after `Connection: close` this one takes in no more.
            self._connection.parser = anew = _Parser(self._connection)
            anew.feed_data(self._head() + bytes(data[offer.args[0] :]))

    def _head(self) -> bytes:
        version = self.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.get_method(), self._connection.url, version)]
        for name, value in self._connection.headers:
            if name != b"upgrade":
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """The application of a connection that there is no room for."""

    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"].append((b"connection", b"close"))
        await send(message)

    error = RequestError(
        503,
        "Too many connections",
        "this server has as many connections as it takes, all of them with requests",
        field="connection",
        remedy="ask again later, or keep fewer connections",
    )
    await respond(scope, receive, send_and_close, error)


def open_files_for(most: int) -> tuple[int, int]:
    """Raises the limit of open files for `most` connections, as far as the process may.

    Returns how many connections, and which backlog, the limit allows: with no file left a server
    accepts no one, and cannot open its own files either.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + BACKLOG + _OTHER_FILES
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
        except (OSError, ValueError):  # macOS has another limit below this one
            files = soft
    room = max(files - _OTHER_FILES, 2)
    backlog = min(BACKLOG, max(room - most, room // 4))
    return min(most, room - backlog), backlog
