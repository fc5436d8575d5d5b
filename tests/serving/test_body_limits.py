"""Bodies that are too large or too slow are refused, and nobody else notices."""

import json
import socket
import threading
import time

import pytest


def test_a_large_body_is_refused(strict_server):
    status, problem = strict_server.ask("/v1/classify", {"inputs": "a" * 3000})
    assert status == 413 and problem["field"] == "body"
    assert "2000 bytes" in problem["detail"]


def test_a_large_body_of_unknown_length_is_refused(strict_server):
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


def test_what_is_no_json_is_told_by_its_place(server):
    status, problem = server.ask("/v1/ner", '{"inputs": ')
    assert status == 400 and "field" not in problem
    assert "Expecting value" in problem["detail"] and "character" in problem["detail"]


def test_a_forgotten_content_type_is_told(server):
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
            while not batches:
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
