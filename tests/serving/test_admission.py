"""A full server refuses before it reads; an idle one takes all."""

import json
import logging
import threading

import pytest
import torch

from serving.batching import OverloadedError
from serving.engine import Engine
from serving.limits import Limits
from serving.models import load_models
from serving.startup import loader_for


@pytest.fixture
def crowded(small_models, start_server):
    """A server whose encoder is held, with as much waiting as it takes; and what lets it go on."""
    folders = {"sentiment": small_models["sentiment"]}
    limits = Limits(max_waiting_tokens=64, max_body_bytes=4000)
    loader = loader_for(torch.device("cpu"), limits, 1, "float32")
    engine = Engine(load_models(folders, loader), limits, loader)
    server = start_server(engine, small_models)
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
    engine.close()


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


def test_an_idle_server_refuses_what_is_wrong_for_what_it_is(server):
    assert server.ask("/v1/classify", json.dumps({"inputs": 1}))[0] == 422
