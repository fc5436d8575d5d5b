"""Bodies that are too large or too slow are refused, and nobody else notices."""

import asyncio
import gzip
import json
import select
import socket
import threading
import time
import zlib

import pytest

from serving.limits import Limits
from serving.middleware.body_limits import BodyLimits


def test_a_large_body_is_refused_of_unknown_length_too(strict_server):
    status, problem = strict_server.ask("/v1/classify", {"inputs": "a" * 3000})
    assert status == 413 and problem["field"] == "body"
    assert "2000 bytes" in problem["detail"]
    chunk = b"%x\r\n%s\r\n" % (1500, b" " * 1500)
    head = b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection((strict_server.host, strict_server.port), 10) as client:
        client.sendall(head + chunk * 2)
        assert client.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_a_slow_body_is_refused_while_others_are_answered(strict_server):
    head = b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    with socket.create_connection((strict_server.host, strict_server.port), 10) as client:
        client.sendall(head)
        assert strict_server.ask("/v1/classify", {"inputs": "a cat"})[0] == 200
        assert client.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_long_bodies_are_held_up_to_a_limit_and_short_ones_always(server):
    """Each is half sent; what all of them hold is a part of what all connections could."""
    longest = Limits().max_body_bytes
    head = "POST /v1/ner HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n"
    sent = head.format(longest).encode() + b" " * (longest - 1)
    begun = []
    try:
        for _ in range(66):
            client = socket.create_connection((server.host, server.port), 10)
            begun.append(client)
            client.sendall(sent)
        refused = [client for client in begun if is_answered(client, 0.02)]
        assert 0 < len(refused) <= 4
        assert all(client.recv(4000).startswith(b"HTTP/1.1 429 ") for client in refused)
        assert server.ask("/v1/ner", ASKED)[0] == 200
        assert server.ask("/v1/ner", ASKED + b" " * 100_000)[0] == 429
    finally:
        for client in begun:
            client.close()
    time.sleep(0.3)
    assert server.ask("/v1/ner", ASKED + b" " * 100_000)[0] == 200


def is_answered(client, seconds):
    """Whether something can be read."""
    return bool(select.select([client], [], [], seconds)[0])


def test_a_client_that_leaves_is_forgotten(strict_server):
    head = b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    for _ in range(20):
        with socket.create_connection((strict_server.host, strict_server.port), 10) as client:
            client.sendall(head)
    time.sleep(0.1)
    assert strict_server.ask("/v1/classify", {"inputs": "a cat"})[0] == 200


@pytest.mark.parametrize(
    "body", ["", "{", '{"inputs": "a"', "[" * 1500, '{"inputs": NaN}', b"\xff\xfe", "null", '"a"']
)
def test_a_body_that_is_no_request_is_refused(strict_server, body):
    status, problem = strict_server.ask("/v1/classify", body, method="POST")
    assert status in (400, 422), problem
    assert problem["remedy"]


def test_what_is_no_json_is_told_by_its_place_or_content_type(server):
    status, problem = server.ask("/v1/ner", '{"inputs": ')
    assert status == 400 and "field" not in problem
    assert "Expecting value" in problem["detail"] and "character" in problem["detail"]
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    status, problem = server.ask("/v1/ner", '{"inputs": "a"}', headers=kind)
    assert status == 422 and "Content-Type: application/json" in problem["remedy"]


def test_nobody_computes_for_a_client_that_has_gone(server):
    """A long request is begun; its client leaves; it is not computed to the end."""
    batches = []
    batcher = server.engine.models["entities"].batcher
    watch = batcher.watch
    free = threading.Event()

    def hold(batch):
        batches.append(batch.num_tokens)
        watch(batch)
        free.wait(10)

    batcher.watch = hold
    try:
        body = json.dumps({"inputs": ["the cat sat on a mat " * 4] * 200})
        head = "POST /v1/ner HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((server.host, server.port), 10) as client:
            client.sendall((head + body).encode())
            deadline = time.monotonic() + 60
            while not batches and time.monotonic() < deadline:
                time.sleep(0.01)
        time.sleep(0.3)
        free.set()
        deadline = time.monotonic() + 10
        while batcher.waiting_tokens and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.ask("/v1/ner", {"inputs": "a cat"})[0] == 200
    finally:
        free.set()
        batcher.watch = watch
    assert sum(batches) < 3000  # of more than five thousand


ASKED = json.dumps({"model": "entities", "inputs": "a cat"}).encode()


@pytest.mark.parametrize(
    ("coding", "compress"),
    [
        ("gzip", gzip.compress),
        ("GZip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("identity", bytes),
        ("", bytes),
    ],
)
def test_a_compressed_body_is_read(server, coding, compress):
    wanted = server.ask("/v1/ner", ASKED)
    assert wanted[0] == 200
    body = compress(ASKED)
    assert server.ask("/v1/ner", body, headers={"Content-Encoding": coding}) == wanted


@pytest.mark.parametrize(
    ("coding", "body", "status"),
    [
        ("br", ASKED, 415),
        ("zstd", ASKED, 415),
        ("gzip, gzip", gzip.compress(gzip.compress(ASKED)), 415),
        ("é" * 100, ASKED, 415),
        ("gzip", ASKED, 400),
        ("gzip", gzip.compress(ASKED)[:-5], 400),
        ("gzip", gzip.compress(ASKED) + b"\0", 400),
        ("gzip", gzip.compress(ASKED) + gzip.compress(b" ")[:-5], 400),
        ("gzip", gzip.compress(b" " * (1 << 20)) * 3, 413),
        ("deflate", zlib.compress(ASKED) * 2, 400),
        ("gzip", b"", 400),
        ("deflate", gzip.compress(ASKED), 400),
        ("gzip", gzip.compress(b" " * (3 << 20)), 413),
        ("gzip", gzip.compress(b"[" * (1 << 20)), 400),
        ("gzip", gzip.compress(b"0," * (1 << 20)), 413),
        (None, gzip.compress(ASKED), 400),
    ],
)
@pytest.mark.parametrize(
    "path", ["/v1/ner", "/hf/token-classification", "/embed", "/v1/embeddings"]
)
def test_what_cannot_be_decompressed_is_told(server, path, coding, body, status):
    headers = {} if coding is None else {"Content-Encoding": coding.encode("latin-1")}
    found, problem, answered = server.ask_whole(path, body, headers=headers)
    assert found == status, problem
    if status == 415:
        assert coding in str(problem) and answered["Accept-Encoding"] == "gzip, deflate"


def test_members_of_gzip_are_read_as_one_body(server):
    wanted = server.ask("/v1/ner", ASKED)
    for size in (1, 7, len(ASKED)):
        parts = [ASKED[begin : begin + size] for begin in range(0, len(ASKED), size)]
        body = b"".join(map(gzip.compress, [*parts, b"", b" " * 9000]))
        assert server.ask("/v1/ner", body, headers={"Content-Encoding": "gzip"}) == wanted
    empty = gzip.compress(b"") * 100_000
    assert passed_on([(b"content-encoding", b"gzip")], empty)[1][1] == b""


@pytest.mark.parametrize("path", ["/v1/ner", "/hf/token-classification", "/v1/embeddings"])
def test_a_transfer_coding_besides_chunked_is_refused_by_name(server, path):
    for lines in ("gzip, chunked", "gzip\r\nTransfer-Encoding: chunked", "identity, chunked"):
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: {lines}\r\n\r\n"
        body = gzip.compress(ASKED)
        with socket.create_connection((server.host, server.port), 10) as client:
            client.sendall(head.encode() + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
            answer = client.recv(4000)
        assert answer.startswith(b"HTTP/1.1 501 ") and b"Transfer-Encoding: " in answer


@pytest.mark.parametrize("text", ["Zürich", "日本", "a\x92b"])
def test_a_body_that_is_not_utf_8_is_told_so(server, text):
    encoding = {"Zürich": "latin-1", "日本": "shift_jis"}.get(text, "latin-1")
    body = json.dumps({"inputs": text}, ensure_ascii=False).encode(encoding)
    status, problem = server.ask("/v1/ner", body)
    assert status == 400 and problem["title"] == "Not UTF-8" and "UTF-8" in problem["remedy"]
    assert server.ask("/v1/ner", b"\xef\xbb\xbf" + ASKED)[0] == 200  # a mark may stand before


def passed_on(headers, body, limits=None):
    """What comes of a request as a server passes it on: the body that the application gets."""
    got, sent = [], []

    async def app(scope, receive, send):
        message = await receive()
        got.append((dict(scope["headers"]), message["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})

    left = [{"type": "http.request", "body": body}]

    async def receive():
        return left.pop() if left else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/ner", "headers": headers}
    asyncio.run(BodyLimits(app, limits or Limits())(scope, receive, send))
    return sent[0]["status"], got[0] if got else None


@pytest.mark.parametrize(
    ("length", "status"),
    [
        *((b"9" * 5000, 413), (b"0" * 5000 + b"2", 200), (b"2", 200)),
        *((wrong, 400) for wrong in (b"-1", b"+2", b"2, 2", b"", b"\xb2", b"2.0")),
    ],
)
def test_a_content_length_is_a_number(length, status):
    assert passed_on([(b"content-length", length)], b"{}")[0] == status


def test_an_application_knows_nothing_of_compression():
    body = gzip.compress(ASKED)
    headers = [(b"content-encoding", b"gzip"), (b"content-length", b"%d" % len(body))]
    status, (known, got) = passed_on([*headers, (b"x-a", b"b")], body)
    assert status == 200 and got == ASKED
    assert known == {b"content-length": b"%d" % len(ASKED), b"x-a": b"b"}


LIMITS = Limits(max_items=10, max_request_tokens=100)  # 296 fields, 496 values


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"inputs": [0] * 495}, 200),
        ({"inputs": [0] * 497}, 413),
        ({"inputs": [[]] * 247}, 200),
        ({"inputs": [[]] * 250}, 413),
        ({"inputs": ["a"] * 495}, 200),
        ({"inputs": ["a"] * 5000}, 413),
        ({str(number): 1 for number in range(296)}, 200),
        ({str(number): 1 for number in range(297)}, 422),
        ({"a": [{"b": 1}] * 240}, 200),
        ("[" * 32 + "]" * 32, 200),
        ("[" * 33 + "]" * 33, 400),
        ('{"a":' * 16 + "[" * 17, 400),
        ("[]," * 33, 200),
        ('{"a" : 1' + ', "a" : 1' * 296 + "}", 422),
        ("9" * 399, 200),
        ("9" * 400, 400),
        ("[1, 2\0]", 400),
    ],
)
def test_json_has_no_more_in_it_than_a_request_needs(body, status):
    body = body if isinstance(body, str) else json.dumps(body)
    assert passed_on([], body.encode(), LIMITS)[0] == status


@pytest.mark.parametrize(
    "text",
    ['[{,:"' * 1000, "\\" * 999, '\\"' * 999 + "\\", '"],[' * 999, '": ' * 999, "9" * 9999,
     "\u005b\u2028é中🎉\n" * 999],
)  # fmt: skip
def test_what_stands_in_a_text_is_not_counted(text):
    for ensure_ascii in (True, False):
        body = json.dumps({text: [text, text]}, ensure_ascii=ensure_ascii).encode()
        assert passed_on([], body, LIMITS) == (200, ({}, body))


def test_other_encodings_of_json_are_refused():
    for encoding in ("utf-16", "utf-16-le", "utf-32-be"):
        assert passed_on([], '{"inputs": "a"}'.encode(encoding))[0] == 400
