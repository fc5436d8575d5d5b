"""What is noted of each request, and what never is."""

import json
import logging

import pytest

from serving.instrumentation import LOG

SECRET = "the secret cat"


@pytest.fixture
def lines(caplog):
    """The lines that were logged, parsed."""
    caplog.set_level(logging.INFO, logger=LOG.name)

    def parsed():
        return [json.loads(each.message) for each in caplog.records if each.name == LOG.name]

    return parsed


def test_each_answer_has_an_id(server):
    _, _, headers = server.ask_whole("/v1/ner", {"inputs": "a"})
    _, _, others = server.ask_whole("/nothing")
    assert headers["X-Request-Id"] != others["X-Request-Id"]
    kept = {"X-Request-Id": "mine-1"}
    assert server.ask_whole("/health", headers=kept)[2]["X-Request-Id"] == "mine-1"
    long = {"X-Request-Id": "a" * 200}
    assert server.ask_whole("/health", headers=long)[2]["X-Request-Id"] != "a" * 200


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
