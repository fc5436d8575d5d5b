"""Requests are counted and logged, refused unread under overload, and served behind a prefix."""

import json
import logging
import re
import threading
from urllib.parse import urljoin, urlsplit

import pytest
import torch
from running import start
from starlette._utils import get_route_path

from serving.app import loader_for
from serving.batching import OverloadedError
from serving.client import Client
from serving.engine import Engine
from serving.keys import add_key, read_keys
from serving.limits import Limits
from serving.middleware.instrumentation import LOG
from serving.models import close_models, load_models
from serving.request_context import own_path

SECRET = "the secret cat"


@pytest.fixture
def lines(caplog):
    """The lines that were logged, parsed."""
    caplog.set_level(logging.INFO, logger=LOG.name)

    def parsed():
        return [json.loads(record.message) for record in caplog.records if record.name == LOG.name]

    return parsed


def test_each_answer_has_an_id(server):
    _, _, headers = server.ask_whole("/v1/ner", {"inputs": "a"})
    _, _, others = server.ask_whole("/nothing")
    assert headers["X-Request-Id"] != others["X-Request-Id"]
    kept = {"X-Request-Id": "mine-1"}
    assert server.ask_whole("/health", headers=kept)[2]["X-Request-Id"] == "mine-1"
    for other in ("a" * 200, "\xe9", "a\xb5"):
        made = server.ask_whole("/health", headers={"X-Request-Id": other})[2]["X-Request-Id"]
        assert re.fullmatch("[0-9a-f]{32}", made)


def test_a_request_is_a_line_without_its_text(server, lines):
    server.ask("/v1/ner", {"inputs": SECRET}, headers={"X-Request-Id": "mine"})
    server.ask("/v1/ner", {"inputs": [SECRET, 3], SECRET: 1})
    first, second = lines()
    assert first["request_id"] == "mine" and first["path"] == "/v1/ner"
    tokens = len(server.engine.models["entities"].tokenizer.encode(SECRET))
    assert (first["status"], first["model"], first["tokens"]) == (200, "entities", tokens)
    assert first["seconds"] > 0 and first["key"] is None
    assert second["status"] == 422
    assert "secret" not in json.dumps([first, second])


def test_a_mistake_of_ours_is_told_by_its_places(server, lines, monkeypatch):
    def fail(*_):
        raise RuntimeError(SECRET)

    monkeypatch.setattr(server.engine.traffic, "find", fail)
    status, problem, headers = server.ask_whole("/v1/ner", {"inputs": SECRET})
    assert status == problem["status"] == 500 and "secret" not in json.dumps(problem)
    mistake, line = lines()
    assert mistake["kind"] == "RuntimeError" and "test_instrumentation.py" in mistake["at"][-1]
    assert line["status"] == 500
    assert mistake["request_id"] == line["request_id"] == headers["X-Request-Id"]
    assert "secret" not in json.dumps([mistake, line])


@pytest.fixture
def crowded(small_models, start_server):
    """A server whose encoder is held, with as much waiting as it takes; and what lets it go on."""
    folders = {"sentiment": small_models["sentiment"]}
    limits = Limits(max_waiting_tokens=64, max_body_bytes=4000)
    loader = loader_for(torch.device("cpu"), limits, 1, "float32")
    server = start_server(folders, limits, loader)
    engine = server.engine
    batcher, opened = engine.models["sentiment"].batcher, threading.Event()
    held = threading.Event()

    def hold(_):
        held.set()
        opened.wait(60)

    batcher.watch = hold
    statuses = []
    threads = []

    def ask(words):
        status, _ = server.ask("/v1/classify", {"inputs": "cat " * words})
        statuses.append(status)

    def ask_apart(words, wait_for):
        threads.append(threading.Thread(target=ask, args=(words,)))
        threads[-1].start()
        while not wait_for():
            threads[-1].join(0.01)

    ask_apart(1, held.is_set)
    ask_apart(60, lambda: batcher.waiting_tokens > 60)
    yield server, engine, opened
    opened.set()
    for thread in threads:
        thread.join()
    assert statuses == [200, 200]


def test_a_full_server_refuses_before_it_reads(crowded, caplog):
    caplog.set_level(logging.INFO, "serving.requests")
    server, engine, opened = crowded
    status, problem, headers = server.ask_whole("/v1/classify", {"inputs": "cat cat cat"})
    assert status == 429 and problem["title"] and int(headers["Retry-After"]) >= 1
    with pytest.raises(OverloadedError):
        engine.check_room()
    # What would be 400, 404 or 413 of an idle server.
    for path, body in (("/v1/classify", "no JSON"), ("/v1/ner", "{}"), ("/hf/x", "a" * 5000)):
        assert server.ask(path, body)[0] == 429
    assert set(server.ask("/embed", {"inputs": "cat"})[1]) == {"error", "error_type"}
    assert server.ask("/health")[0] == server.ask("/info")[0] == 200
    assert b'route="unread",status="429"} 4.0' in server.ask("/metrics")[1]
    _, _, headers = server.ask_whole("/v1/ner", {}, headers={"X-Request-Id": "mine"})
    assert headers["X-Request-Id"] == "mine"
    lines = [json.loads(record.message) for record in caplog.records if "unread" in record.message]
    assert 1 <= len(lines) <= 6 and lines[0]["unread"] == 1
    opened.set()
    while engine.models["sentiment"].batcher.waiting_tokens:
        pass
    assert server.ask("/v1/classify", {"inputs": "cat"})[0] == 200


PREFIX = "/groups/entities"
OPEN = ("/", "/health", "/ready", "/docs", "/openapi.json", "/playground/app.js")
CLOSED = ("/info", "/metrics", "/playground/models.py", "/nothing", "//docs", f"{PREFIX}/docs")
BODY = {"inputs": "a cat"}


@pytest.mark.parametrize(
    ("path", "prefix", "own"),
    [
        ("/v1/ner", "", "/v1/ner"),
        ("/a/v1/ner", "/a", "/v1/ner"),
        ("/a/", "/a", "/"),
        ("/a", "/a", ""),
        ("/ab/docs", "/a", "/ab/docs"),
        ("/docs", "/a", "/docs"),
        ("/a/a/docs", "/a", "/a/docs"),
    ],
)
def test_a_path_is_the_one_that_is_routed(path, prefix, own):
    scope = {"path": path, "root_path": prefix}
    assert own_path(scope) == get_route_path(scope) == own


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """A file of keys, and a key for all."""
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    return path, add_key(path, "all", ["predict", "admin"], None)


@pytest.fixture(scope="module")
def engine(small_models):
    models = load_models({name: small_models[name] for name in ("entities", "encoder")})
    yield Engine(models, Limits(max_body_bytes=1000))
    close_models(list(models.values()))


@pytest.fixture(scope="module", params=["prefix", "root_path"])
def mounted(request, engine, small_models, keys):
    """A server with keys: behind a prefix, or behind a proxy that takes it off."""
    running, stop = start(engine, small_models, read_keys(keys[0]), **{request.param: PREFIX})
    yield running
    stop()


@pytest.fixture
def prefixed(engine, small_models):
    """A server without keys behind a prefix."""
    running, stop = start(engine, small_models, prefix=PREFIX)
    yield running
    stop()


def test_what_is_open_is_open_there(mounted, keys):
    for path in OPEN:
        assert mounted.ask(path)[0] == 200, path
    for path in CLOSED:
        assert mounted.ask(path)[0] == 401, path
    assert mounted.ask("/v1/ner", BODY)[0] == 401
    shown = {"X-API-Key": keys[1]}
    assert mounted.ask("/v1/ner", BODY, headers=shown)[0] == 200
    status, counted = mounted.ask("/metrics", headers=shown)
    assert status == 200 and b'route="/v1/ner"' in counted and PREFIX.encode() not in counted


def test_who_is_no_admin_is_none_there(small_models, engine, tmp_path):
    key = add_key(tmp_path / "keys.json", "user", ["predict"], None)
    keys = read_keys(tmp_path / "keys.json")
    running, stop = start(engine, small_models, keys, prefix=PREFIX)
    assert running.ask("/metrics", headers={"X-API-Key": key})[0] == 403
    stop()


def test_refusals_have_their_shapes(mounted, keys, monkeypatch):
    shown = {"X-API-Key": keys[1]}
    shapes = {
        "/embed": {"error", "error_type"},
        "/hf/feature-extraction": {"error"},
        "/v1/embeddings": {"error"},
        "/v1/ner": {"type", "title", "status", "detail", "field", "remedy"},
    }
    for path, shape in shapes.items():
        for body, headers, statuses in (
            (BODY, None, {401}),  # by Authenticated
            ("a" * 2000, shown, {413}),  # by BodyLimits
            ({}, shown, {400, 413, 422}),  # by the route
        ):
            status, content = mounted.ask(path, body, headers=headers)
            assert status in statuses and content.keys() == shape

    def full():
        raise OverloadedError(7)

    monkeypatch.setattr(mounted.engine, "check_room", full)
    for path, shape in shapes.items():  # by Admission
        status, content = mounted.ask(path, BODY)
        assert status == 429 and content.keys() == shape - {"field"}


def test_the_document_says_where_it_is(mounted):
    _, document = mounted.ask("/openapi.json")
    assert document["servers"] == [{"url": PREFIX}]
    assert "/v1/ner" in document["paths"]


@pytest.mark.parametrize("path", ["/docs", "/"])
def test_pages_find_their_files(mounted, path):
    _, page = mounted.ask(path)
    addresses = re.findall(r'(?:src|href)="([^"#]+)"', page.decode())
    assert len(addresses) >= 3
    for address in addresses:
        found = urljoin(mounted.prefix + path, address).removeprefix(mounted.prefix)
        assert mounted.ask(found)[0] == 200


def test_without_its_slash_the_page_is_the_same(prefixed, keys, engine, small_models):
    status, content, headers = prefixed.ask_whole("")
    assert (status, content) == (307, b"") and headers["X-Request-Id"]
    assert urljoin(prefixed.address, headers["Location"]) == prefixed.address + "/"
    assert not urlsplit(headers["Location"]).netloc
    for path in ("/v1/ner/", "/docs/"):
        status, _, headers = prefixed.ask_whole(path, BODY)
        assert status == 404 and "Location" not in headers
    running, stop = start(engine, small_models, read_keys(keys[0]), prefix=PREFIX)
    assert running.ask("")[0] == 307  # nor is a key asked for
    stop()


def test_our_client_asks_there(prefixed):
    for slash in ("", "/"):
        with Client(prefixed.address + slash) as client:
            assert client.ready() and set(client.info().models) == {"entities", "encoder"}
            assert len(client.ner(["a cat", "dogs"])) == 2
