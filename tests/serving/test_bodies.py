"""Bodies that are too large or too slow are refused, and nobody else notices."""

import socket
import time

import pytest


def test_a_large_body_is_refused(strict_server):
    status, problem = strict_server.ask("/v1/classify", {"inputs": "a" * 3000})
    assert status == 413 and problem["field"] == "body"
    assert "2000 bytes" in problem["detail"]


def test_a_large_body_of_unknown_length_is_refused(strict_server):
    chunk = b"%x\r\n%s\r\n" % (1500, b" " * 1500)
    head = b"POST /v1/classify HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection((strict_server.host, strict_server.port), 10) as client:
        client.sendall(head + chunk * 2)
        assert client.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_a_slow_body_is_refused_while_others_are_answered(strict_server):
    head = b"POST /v1/classify HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"
    with socket.create_connection((strict_server.host, strict_server.port), 10) as client:
        client.sendall(head)
        assert strict_server.ask("/v1/classify", {"inputs": "a cat"})[0] == 200
        assert client.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_leaves_is_forgotten(strict_server):
    head = b"POST /v1/classify HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"
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
