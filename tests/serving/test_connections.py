"""Clients that are silent, slow or greedy do not stop others: connections end, one by one."""

import asyncio
import http.client
import resource
import socket
import threading
import time
from contextlib import closing, contextmanager
from functools import partial

import pytest
import uvicorn
from running import started

from serving.middleware.connections import Connection, Connections, open_files_for

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
WHOLE = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def answer(scope, receive, send):
    """`/long` is answered with 16 MiB, `/slow` after a second, all that is posted unread.

    `/length` is answered with as many letters as the body has bytes.
    """
    size = 16 << 20 if scope["path"] == "/long" else 2
    if scope["path"] == "/slow":
        await asyncio.sleep(1)
    more = scope["path"] == "/length"
    size = 0 if more else size
    while more:
        message = await receive()
        size += len(message["body"])
        more = message["more_body"]
    headers = [(b"content-length", str(size).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"a" * size})


@contextmanager
def serving(connections):
    """A server of real connections; its port."""
    config = uvicorn.Config(
        answer,
        port=0,
        lifespan="off",
        log_level="critical",
        http=partial(Connection, connections=connections),
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def quick():
    """Of a server that waits half a second for a head, or a reader."""
    with serving(Connections(header_seconds=0.5, stalled_seconds=0.5)) as port:
        yield port


def opened(port, sent=b""):
    """A connection that has sent something."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(sent)
    return connection


def read_to_end(connection):
    """What comes until the server closes it; fails where it does not."""
    found = b""
    try:
        while more := connection.recv(1 << 16):
            found += more
    except ConnectionResetError:
        pass
    return found


def status_of(port, path="/health"):
    """What a new client is answered, in 10 s at most."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", path)
        return connection.getresponse().status


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"", b""),
        (b"\r\n", b""),
        (b"G", b"HTTP/1.1 408 "),
        (HEAD, b"HTTP/1.1 408 "),
        (HEAD + b"Content-Length: 9\r\n", b"HTTP/1.1 408 "),
        (WHOLE + b"GET / H", b"HTTP/1.1 200 "),
    ],
)
def test_who_does_not_end_a_head_is_not_waited_for(quick, sent, told):
    with closing(opened(quick, sent)) as connection:
        began = time.monotonic()
        assert read_to_end(connection).startswith(told)
        assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "before",
    [b"GET / HTTP/1.1\r\nA: ", HEAD + b"Content-Length: 99999\r\n\r\n", WHOLE, b"\r\n"],
    ids=["head", "body of a request that is answered", "next head", "empty lines"],
)
def test_to_send_a_byte_now_and_then_is_not_enough(quick, before):
    with closing(opened(quick, before)) as connection:
        began = time.monotonic()
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            while time.monotonic() - began < 10:
                connection.sendall(b"\n" if before == b"\r\n" else b"a")
                time.sleep(0.05)


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"GET / HTTP/1.1\r\nA: ", b"a"),
        (b"GET /", b"a"),
        (b"GET / HTTP/1.1\r\n", b"a:b\r\n"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"a:b\r\n"),
        (b"", WHOLE),
    ],
    ids=["header", "path", "headers", "trailers", "requests at once"],
)
def test_a_head_has_an_end(quick, start, more):
    with closing(opened(quick, start)) as connection:
        part = more * ((1 << 16) // len(more))
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            for _ in range(200):  # 12 MiB
                connection.sendall(part)
    assert status_of(quick) == 200


def test_usual_heads_and_requests_behind_each_other_are_taken(quick):
    many = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 200) for number in range(90))
    last = b"GET / HTTP/1.1\r\nConnection: close\r\n" + many + b"\r\n"
    with closing(opened(quick, WHOLE * 20 + last)) as connection:
        assert read_to_end(connection).count(b"HTTP/1.1 200 ") == 21


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"TLS/1.0, h2c"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_request_that_offers_another_protocol_keeps_its_body(quick, protocol, size):
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + protocol + b"\r\n"
    post = b"POST /length HTTP/1.1\r\nContent-Length: %d\r\n" % len(WHOLE) + offer + b"\r\n" + WHOLE
    get = WHOLE[:-2] + offer + b"\r\n"
    last = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"
    sent = get + post * 3 + get + last
    with closing(opened(quick)) as connection:
        for begin in range(0, len(sent), size):
            connection.sendall(sent[begin : begin + size])
        answers = read_to_end(connection)
    assert answers.count(b"HTTP/1.1 200 ") == 6
    assert answers.count(b"\r\n\r\n" + b"a" * len(WHOLE)) == 3


@pytest.mark.parametrize(
    "head",
    [b"GET / HTTP/1.1\r\nConnection: close, Upgrade", b"GET / HTTP/1.0\r\nConnection: Upgrade"],
)
def test_the_last_request_may_offer_another_protocol_too(quick, head):
    with closing(opened(quick, head + b"\r\nUpgrade: h2c\r\n\r\n")) as connection:
        assert read_to_end(connection).startswith(b"HTTP/1.1 200 ")


def test_no_tunnel_is_opened(quick):
    with closing(opened(quick, b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n")) as connection:
        assert read_to_end(connection).startswith(b"HTTP/1.1 400 ")


def test_an_answer_that_nobody_reads_is_dropped_but_not_one_that_is_read_slowly():
    connections = Connections(header_seconds=30, stalled_seconds=0.5)
    with serving(connections) as port:
        with closing(opened(port, b"GET /long HTTP/1.1\r\n\r\n")) as connection:
            until = time.monotonic() + 20
            while not connections.waiting:  # it is answered
                time.sleep(0.01)
            while connections.waiting and time.monotonic() < until:
                time.sleep(0.05)
            assert not connections.waiting, "16 MiB are kept for a client that reads nothing"
            assert len(read_to_end(connection)) < 16 << 20
        with closing(
            opened(port, b"GET /long HTTP/1.1\r\nConnection: close\r\n\r\n")
        ) as connection:
            size = 0
            while more := connection.recv(1 << 20):
                size += len(more)
                time.sleep(0.05)  # more than a second for all
            assert size > 16 << 20


def test_silent_connections_leave_room_for_others():
    with serving(Connections(most=20)) as port:
        silent = [opened(port, sent) for sent in (WHOLE, b"", b"GET /", HEAD) for _ in range(20)]
        assert status_of(port) == 200
        kept = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        for _ in range(3):  # who asks again is not the one that has waited longest
            kept.request("GET", "/")
            assert kept.getresponse().read() == b"aa"
            silent += [opened(port) for _ in range(18)]
            assert status_of(port) == 200  # accepted last, so the others are accepted too
        kept.close()
        for connection in silent:
            connection.close()


def test_one_that_is_being_answered_is_not_closed_for_another():
    with serving(Connections(most=1)) as port:
        with closing(opened(port, b"GET /slow HTTP/1.1\r\nConnection: close\r\n\r\n")) as first:
            time.sleep(0.2)
            assert status_of(port) == 503
            assert read_to_end(first).startswith(b"HTTP/1.1 200 ")
        assert status_of(port) == 200


@pytest.mark.parametrize(
    ("limits", "wanted", "raised_to"),
    [
        ((1024, 20_000), (4096, 2048), 6400),
        ((1024, resource.RLIM_INFINITY), (4096, 2048), 6400),
        ((9000, 20_000), (4096, 2048), None),
        ((1024, 1024), (576, 192), None),
        ((256, 1024), (576, 192), 1024),
    ],
)
def test_connections_leave_files_for_the_rest(monkeypatch, limits, wanted, raised_to):
    raised = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, to: raised.append(to))
    assert open_files_for(4096) == wanted
    assert raised == ([] if raised_to is None else [(raised_to, limits[1])])


def test_a_limit_that_may_not_be_raised_is_kept_to(monkeypatch):
    def refuse(*_):
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert open_files_for(4096) == (576, 192)


@pytest.mark.slow
def test_a_server_with_few_files_answers_beside_many_silent_clients(
    small_models, subprocess_environment
):
    arguments = ["--model", str(small_models["encoder"]), "--keep_alive_seconds", "1"]
    few = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (800, 800))
    with started(arguments, subprocess_environment, few) as server:
        silent = [opened(server.port) for _ in range(700)]
        assert server.ask("/health")[0] == 200
        assert server.ask("/v1/tokenize", {"inputs": "a cat"})[0] == 200
        with closing(opened(server.port, WHOLE)) as idle:
            began = time.monotonic()
            assert read_to_end(idle).startswith(b"HTTP/1.1 200 ")
            assert 0.5 < time.monotonic() - began < 15, "it is kept for a second"
        for each in silent:
            each.close()
    said = "".join(server.said)
    assert "warning: the limit of open files" in said and "Traceback" not in said
