"""One client never stops the others: small requests that cost much, at every route of a server.

While each is answered `/health` is asked all the time, and the memory of the server's process read.
"""

import gzip
import json
import random
import re

import pytest
from asking import ask_at
from hostile import (
    CLOSED,
    DELETED,
    GOT,
    POSTED,
    PUT,
    ROUTES_OF_TEXTS,
    Watch,
    costly,
    having_text,
    random_body,
    shapes,
    texts,
    write_wide_encoder,
)
from started import started

MOST_SECONDS = 0.25
MOST_BYTES = 200 << 20
BUSY = 10
"""On a busy machine `/health` may take so many times as long as while nobody asks anything."""

SMALL = ("sentiment", "entities", "answers")
QUICK_SHAPES = (
    *("numbers", "lists", "objects, fewer", "texts, fewer", "unknown fields, fewer", "deep"),
    *("fields within", "a field with a long name", "long numbers", "another encoding"),
)
QUICK_TEXTS = ("words of 100 letters", "Hangul", "spaces")


@pytest.fixture(scope="module")
def watch(tmp_path_factory, small_models):
    """A server with its default limits as a process of its own, and what watches it."""
    folder = tmp_path_factory.mktemp("hostile")
    secret = folder / "secret"
    secret.write_text("secret")
    folders = {name: small_models[name] for name in SMALL}
    folders["wide"] = write_wide_encoder(folder / "wide")
    models = [part for name, each in folders.items() for part in ("--model", f"{name}={each}")]
    environment = {"HOME": str(folder), "PATH": "", "PYTHONUNBUFFERED": "1"}
    with started([*models, "--webhook_secret_file", str(secret)], environment) as server:
        watch = Watch(server.port, server.process.pid)
        try:
            for path, body in POSTED.items():  # what is kept for good is kept from now on
                status = ask_at("127.0.0.1", server.port, path, body)[0]
                assert status == (401 if path.startswith("/webhooks") else 200), path
            watch.rest()
            yield watch
        finally:
            watch.close()


def judge(watch, path, body=None, *, statuses=range(400, 500), **more):
    """Asks a request, another time where the machine was busy; fails where others had to wait."""
    for _ in range(3):
        seen = watch.ask(path, body, **more)
        assert seen.status == 200 or seen.status in statuses, seen
        assert seen.most_bytes - watch.at_rest < MOST_BYTES, (seen, watch.at_rest)
        if max(seen.health) < MOST_SECONDS:
            return
        allowed = max(MOST_SECONDS, BUSY * watch.idle(0.5))
        if max(seen.health) < allowed:
            return
    pytest.fail(f"{seen}, and {allowed:.3f} s are allowed")


def test_every_route_is_asked(watch):
    _, document, _ = ask_at("127.0.0.1", watch.port, "/openapi.json")
    documented = {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
    }
    asked = [("POST", each) for each in POSTED] + [("PUT", each) for each in PUT]
    asked += [("GET", each) for each in GOT] + [("DELETE", each) for each in DELETED]
    left = {
        (method, path)
        for method, path in documented
        if not any(
            method == other and re.fullmatch(re.sub(r"{\w+}", ".+", path), address.split("?")[0])
            for other, address in asked
        )
    }
    assert not left


@pytest.mark.parametrize("path", [*POSTED, *PUT])
def test_bodies_that_no_route_takes(watch, path):
    made = shapes((POSTED | PUT)[path])
    for name in QUICK_SHAPES:
        judge(watch, path, made[name](), method="PUT" if path in PUT else "POST")


@pytest.mark.parametrize("path", ROUTES_OF_TEXTS)
def test_texts_that_cost_much(watch, path):
    made = texts()
    for name in QUICK_TEXTS:
        judge(watch, path, having_text(path, made[name]))


@pytest.mark.parametrize("name", costly())
def test_work_beyond_its_size(watch, name):
    path, body = costly()[name]
    judge(watch, path, body)


@pytest.mark.parametrize("path", [*GOT, *DELETED])
def test_queries_and_headers(watch, path):
    method = "DELETE" if path in DELETED else "GET"
    long = "a," * 20_000
    judge(watch, f"{path}?{'a=1&' * 12_000}", method=method)
    names = ("Authorization", "X-API-Key", "X-Request-Id", "traceparent", "If-None-Match", "Cookie")
    for name in names:
        judge(watch, path, method=method, headers={name: long})


@pytest.mark.parametrize("path", ["/health", "/v1/ner"])
def test_a_header_that_does_not_end(watch, path):
    judge(watch, path, headers={"X-A": "b" * 20_000_000}, statuses=(CLOSED, 400, 431))


@pytest.mark.parametrize("path", POSTED)
def test_queries_of_what_is_posted(watch, path):
    more = "&" if "?" in path else "?"
    judge(watch, f"{path}{more}{'model=wide&' * 5_000}", POSTED[path])
    judge(watch, f"{path}{more}{'a' * 50_000}=1", POSTED[path])


@pytest.mark.parametrize("path", POSTED)
def test_compressed_bodies(watch, path):
    bomb = gzip.compress(b" " * (64 << 20), 9)
    judge(watch, path, bomb, headers={"Content-Encoding": "gzip"}, statuses=(401, 413))
    twice = gzip.compress(bomb, 9)
    judge(watch, path, twice, headers={"Content-Encoding": "gzip"}, statuses=(400, 401, 413))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", [*POSTED, *PUT])
def test_all_bodies(watch, path):
    method = "PUT" if path in PUT else "POST"
    for body in shapes((POSTED | PUT)[path]).values():
        judge(watch, path, body(), method=method)
    if path in ROUTES_OF_TEXTS:
        for text in texts().values():
            judge(watch, path, having_text(path, text))
    choose = random.Random(path)
    for _ in range(40):
        judge(watch, path, json.dumps(random_body((POSTED | PUT)[path], choose)), method=method)
