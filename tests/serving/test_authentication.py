"""A server with keys answers those who have one."""

import pytest

from serving.engine import Engine
from serving.keys import add_key, read_keys
from serving.models import close_models, load_models

BODY = {"inputs": "a cat"}


@pytest.fixture
def guarded(small_models, start_server, tmp_path):
    """A server, and its keys by name."""
    path = tmp_path / "keys.json"
    keys = {
        "user": add_key(path, "user", ["predict"], None),
        "boss": add_key(path, "boss", ["admin"], None),
        "poor": add_key(path, "poor", ["predict"], 6),
    }
    models = load_models({"entities": small_models["entities"]})
    yield start_server(Engine(models), small_models, keys=read_keys(path)), keys
    close_models(list(models.values()))


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def test_who_has_no_key_is_not_answered(guarded):
    server, keys = guarded
    for headers in (None, bearer("no"), {"Authorization": keys["user"]}, {"X-API-Key": "é"}):
        status, problem, answered = server.ask_whole("/v1/ner", BODY, headers=headers)
        assert status == 401 and problem["remedy"]
        assert answered["WWW-Authenticate"] == "Bearer"
        assert answered["X-Request-Id"]
    assert server.ask("/embed", BODY)[1].keys() == {"error", "error_type"}
    assert server.ask("/info")[0] == server.ask("/metrics")[0] == 401


def test_a_key_is_for_what_it_is_for(guarded):
    server, keys = guarded
    assert server.ask("/v1/ner", BODY, headers=bearer(keys["user"]))[0] == 200
    assert server.ask("/v1/ner", BODY, headers={"X-API-Key": keys["user"]})[0] == 200
    status, problem = server.ask("/v1/ner", BODY, headers=bearer(keys["boss"]))
    assert status == 403 and "boss" in problem["detail"]
    assert server.ask("/metrics", headers=bearer(keys["boss"]))[0] == 200
    assert server.ask("/metrics", headers=bearer(keys["user"]))[0] == 403


def test_what_everybody_may_see(guarded):
    server, _ = guarded
    for path in ("/health", "/ready", "/docs", "/openapi.json"):
        assert server.ask(path)[0] == 200


def test_tokens_are_paid_for(guarded):
    server, keys = guarded
    assert server.ask("/v1/ner", BODY, headers=bearer(keys["poor"]))[0] == 200
    assert server.ask("/v1/ner", BODY, headers=bearer(keys["poor"]))[0] == 200  # of what is left
    status, problem, headers = server.ask_whole("/v1/ner", BODY, headers=bearer(keys["poor"]))
    assert status == 429 and problem["title"] == "Rate limit"
    assert 1 <= int(headers["Retry-After"]) <= 60
    assert server.ask("/v1/ner", BODY, headers=bearer(keys["user"]))[0] == 200


def test_all_below_admin_is_for_admins_whatever_is_there(guarded):
    server, keys = guarded
    for path in ("/admin/traffic", "/admin/nothing", "/%61dmin/traffic", "/admin/"):
        assert server.ask(path)[0] == 401
        assert server.ask(path, headers=bearer(keys["user"]))[0] == 403
        assert server.ask(path, headers=bearer(keys["boss"]))[0] == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/explain", {"inputs": "the cat sat on a mat"}),
        ("/v1/tokenize", {"inputs": "the cat sat on a mat"}),
        ("/v1/decode", {"ids": [1, 2, 3, 4, 5, 6, 7]}),
        ("/v1/features", {"inputs": "the cat sat on a mat"}),
        ("/embed", {"inputs": [[1, 2, 3, 4, 5, 6, 7]]}),
    ],
)
def test_every_route_that_reads_tokens_is_paid_for(guarded, path, body):
    server, keys = guarded
    assert server.ask(path, body, headers=bearer(keys["poor"]))[0] == 200
    assert server.ask(path, body, headers=bearer(keys["poor"]))[0] == 429
    assert server.ask("/v1/ner", BODY, headers=bearer(keys["poor"]))[0] == 429
