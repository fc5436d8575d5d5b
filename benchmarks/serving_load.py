"""Clients that ask a server over HTTP, each one question after another, and what they waited."""

import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

_TIMEOUT_SECONDS = 120


@dataclass(frozen=True)
class Turn:
    """A while of asking: the seconds each answer took, and all of it together."""

    latencies: list[float]
    seconds: float


class Connection:
    """A connection that is kept open, and does as little as can be for a request."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer; raises `ConnectionError` where the server hangs up."""
        self._socket.sendall(request)
        head, _, body = self._receive_until(b"", b"\r\n\r\n").partition(b"\r\n\r\n")
        status, headers = int(head.split(b" ", 2)[1]), head.lower()
        name = b"\r\ncontent-length:"
        if name in headers:
            length = int(headers.split(name, 1)[1].split(b"\r\n", 1)[0])
            while len(body) < length:
                body += self._receive()
        else:  # in chunks; none of these answers has the mark of the last one within it
            body = self._receive_until(body, b"0\r\n\r\n")
        return status, body

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()

    def _receive_until(self, found: bytes, mark: bytes) -> bytes:
        while mark not in found:
            found += self._receive()
        return found

    def _receive(self) -> bytes:
        if not (received := self._socket.recv(65536)):
            raise ConnectionError("the server has closed the connection")
        return received


def request_of(path: str, body: bytes) -> bytes:
    """A request as it goes over the wire."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def ask_for_a_while(
    port: int, requests: Sequence[bytes], *, clients: int, seconds: float, first: int = 0
) -> Turn:
    """Has so many clients ask, one question after another, until the time is over.

    What is then under way is answered still, and counted. Raises `RuntimeError` for an answer that
    is not 200. `first` is the request to begin with.
    """
    latencies: list[float] = []
    failures: list[str] = []
    numbers = iter(range(first, 1 << 62))
    connections = [Connection(port) for _ in range(clients)]
    begin = time.perf_counter()

    def ask(connection: Connection) -> None:
        while (started := time.perf_counter()) - begin < seconds and not failures:
            try:
                status, body = connection.ask(requests[next(numbers) % len(requests)])
            except OSError as error:
                failures.append(str(error))
                return
            latencies.append(time.perf_counter() - started)
            if status != 200:
                failures.append(f"{status}: {body[:200]!r}")

    threads = [threading.Thread(target=ask, args=(each,)) for each in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended = time.perf_counter()
    for connection in connections:
        connection.close()
    if failures:
        raise RuntimeError(failures[0])
    return Turn(latencies, ended - begin)
