"""Pages in browsers may ask where their origin is named, and only there."""

import pytest
from pydantic import TypeAdapter, ValidationError

from serving.cross_origin import Origin
from serving.engine import Engine
from serving.keys import add_key, read_keys
from serving.models import close_models, load_models

PAGE = "https://a.example"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
}
BODY = {"inputs": "a cat"}


def of_browsers(headers):
    return {name for name in headers if name.lower().startswith("access-control")}


@pytest.fixture
def guarded(small_models, start_server, tmp_path):
    """A server with keys that is open to two origins, and a key."""
    path = tmp_path / "keys.json"
    key = add_key(path, "user", ["predict"], None)
    models = load_models({"entities": small_models["entities"]})
    origins = (PAGE, "http://localhost:3000")
    yield start_server(Engine(models), small_models, read_keys(path), origins), key
    close_models(list(models.values()))


def test_it_is_closed_unless_it_is_opened(server):
    for path, body in (("/v1/ner", BODY), ("/health", None), ("/v1/nothing", BODY)):
        _, _, headers = server.ask_whole(path, body, headers={"Origin": PAGE})
        assert not of_browsers(headers)
    for path in ("/v1/ner", "/embed", "/hf/fill-mask"):
        status, _, headers = server.ask_whole(path, method="OPTIONS", headers=PREFLIGHT)
        assert status == 405 and not of_browsers(headers)


def test_a_named_origin_may_ask(guarded):
    server, key = guarded
    status, _, headers = server.ask_whole("/v1/ner", method="OPTIONS", headers=PREFLIGHT)
    assert status == 200 and headers["Access-Control-Allow-Origin"] == PAGE
    assert "POST" in headers["Access-Control-Allow-Methods"]
    allowed = headers["Access-Control-Allow-Headers"].lower()
    assert all(each in allowed for each in ("authorization", "content-type", "x-stainless-lang"))
    assert "Access-Control-Allow-Credentials" not in headers

    shown = {"Origin": PAGE, "Authorization": f"Bearer {key}"}
    status, answer, headers = server.ask_whole("/v1/ner", BODY, headers=shown)
    assert status == 200 and answer["results"]
    assert headers["Access-Control-Allow-Origin"] == PAGE and "Origin" in headers["Vary"]
    assert "X-Request-Id" in headers["Access-Control-Expose-Headers"]


def test_it_opens_nothing_to_who_has_no_key(guarded):
    server, _ = guarded
    status, problem, headers = server.ask_whole("/v1/ner", BODY, headers={"Origin": PAGE})
    assert status == 401 and problem["remedy"]
    assert headers["Access-Control-Allow-Origin"] == PAGE, "so that the page can read why"
    assert server.ask("/v1/ner", method="OPTIONS")[0] == 401, "no preflight"


def test_another_origin_may_not(guarded):
    server, key = guarded
    for other in ("https://b.example", "https://a.example.b.example", "http://a.example", "null"):
        asked = PREFLIGHT | {"Origin": other}
        status, _, headers = server.ask_whole("/v1/ner", method="OPTIONS", headers=asked)
        assert status == 400 and "Access-Control-Allow-Origin" not in headers
        shown = {"Origin": other, "Authorization": f"Bearer {key}"}
        _, _, headers = server.ask_whole("/v1/ner", BODY, headers=shown)
        assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("origin", [PAGE, "http://localhost:3000", "http://[::1]:8080"])
def test_an_origin_is_scheme_host_and_port(origin):
    assert TypeAdapter(Origin).validate_python(origin) == origin


@pytest.mark.parametrize(
    "given",
    ["*", "null", "a.example", f"{PAGE}/", f"{PAGE}/page", "ftp://a.example", "https://", "",
     "https://me@a.example", "https://A.example"],
)  # fmt: skip
def test_anything_else_is_no_origin(given):
    with pytest.raises(ValidationError, match="is no origin"):
        TypeAdapter(Origin).validate_python(given)
