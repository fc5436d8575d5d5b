"""Asks a server, and compares what it says."""

import http.client
import json
import socket

import pytest


def ask_at(host, port, path, body=None, *, method=None, headers=None):
    """Status, answer and headers; a body that is no string or bytes is sent as JSON."""
    connection = http.client.HTTPConnection(host, port, timeout=60)
    if body is not None and not isinstance(body, str | bytes):
        body = json.dumps(body)
    kind = {"Content-Type": "application/json"} if body is not None else {}
    connection.request(
        method or ("GET" if body is None else "POST"), path, body, kind | (headers or {})
    )
    response = connection.getresponse()
    content = response.read()
    connection.close()
    is_json = content and "json" in response.headers.get("Content-Type", "")
    return response.status, json.loads(content) if is_json else content, response.headers


def raw_status(server, path, heads, body=b"", headers=None):
    """The status of a request with these lines as its head, and no other."""
    lines = [*heads, *(f"{name}: {value}" for name, value in (headers or {}).items())]
    lines = [f"{'POST' if body else 'GET'} {path} HTTP/1.1", *lines, f"Content-Length: {len(body)}"]
    with socket.create_connection((server.host, server.port), timeout=60) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        return int(connection.recv(12)[9:])


def answers(server, path, model, inputs, **options):
    """The results for inputs, asked together; each asked alone has the same."""
    status, content = server.ask(path, {"model": model, "inputs": inputs} | options)
    assert status == 200, content
    assert content["model"] == model
    for one, result in zip(inputs, content["results"], strict=True):
        _, alone = server.ask(path, {"model": model, "inputs": one} | options)
        assert_alike(alone["results"], [result])
    return content["results"]


def assert_alike(found, wanted):
    """Equal but for rounding."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            assert_alike(found[key], value)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_alike(one, other)
    elif isinstance(wanted, float):
        # A perplexity is an exponential: there rounding is a share of it.
        assert found == pytest.approx(wanted, abs=1e-5, rel=3e-6)
    else:
        assert found == wanted
