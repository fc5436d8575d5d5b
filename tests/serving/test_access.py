"""Who may ask: keys, browser pages of other origins, and host names."""

import asyncio
from contextlib import nullcontext

import pytest
from example_requests import FINE_TUNED, example_requests
from pydantic import TypeAdapter, ValidationError
from running import raw_status, serving

from serving.addresses import Host, Origin
from serving.keys import add_key, read_keys
from serving.middleware.access import KnownHosts

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
    return start_server({"entities": small_models["entities"]}, keys=read_keys(path)), keys


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
    for path in ("/health", "/ready", "/docs", "/openapi.json"):
        assert server.ask(path)[0] == 200


def test_a_key_is_for_what_it_is_for(guarded):
    server, keys = guarded
    assert server.ask("/v1/ner", BODY, headers=bearer(keys["user"]))[0] == 200
    assert server.ask("/v1/ner", BODY, headers={"X-API-Key": keys["user"]})[0] == 200
    status, problem = server.ask("/v1/ner", BODY, headers=bearer(keys["boss"]))
    assert status == 403 and "boss" in problem["detail"]
    assert server.ask("/metrics", headers=bearer(keys["boss"]))[0] == 200
    assert server.ask("/metrics", headers=bearer(keys["user"]))[0] == 403
    for path in ("/admin/traffic", "/admin/nothing", "/%61dmin/traffic", "/admin/"):
        assert server.ask(path)[0] == 401
        assert server.ask(path, headers=bearer(keys["user"]))[0] == 403
        assert server.ask(path, headers=bearer(keys["boss"]))[0] == 404


def test_tokens_are_paid_for(guarded):
    server, keys = guarded
    assert server.ask("/v1/ner", BODY, headers=bearer(keys["poor"]))[0] == 200
    assert server.ask("/v1/ner", BODY, headers=bearer(keys["poor"]))[0] == 200  # of what is left
    status, problem, headers = server.ask_whole("/v1/ner", BODY, headers=bearer(keys["poor"]))
    assert status == 429 and problem["title"] == "Rate limit"
    assert 1 <= int(headers["Retry-After"]) <= 60
    assert server.ask("/v1/ner", BODY, headers=bearer(keys["user"]))[0] == 200


def test_what_would_be_refused_costs_no_tokenizing_either_once_no_tokens_are_left(guarded):
    server, keys = guarded
    shown = bearer(keys["poor"])
    refused = ({"inputs": "a cat " * 100}, {"inputs": []}, {"inputs": 3}, "no JSON")
    for body, status in zip(refused, (422, 200, 422, 400), strict=True):
        assert server.ask("/v1/ner", body, headers=shown)[0] == status
    assert server.ask("/v1/ner", {"inputs": "a cat " * 3}, headers=shown)[0] == 200
    for body in refused:
        status, _, headers = server.ask_whole("/v1/ner", body, headers=shown)
        assert status == 429 and headers["X-Request-Id"] and int(headers["Retry-After"]) >= 1
    assert server.ask("/info", headers=shown)[0] == 200
    assert server.ask("/v1/ner", BODY, headers=bearer(keys["boss"]))[0] == 403


def test_every_route_that_reads_tokens_is_paid_for(small_models, start_server, tmp_path):
    path, requests = tmp_path / "keys.json", example_requests("encoder")
    keys = [add_key(path, f"poor{number}", ["predict"], 1) for number in range(len(requests))]
    models = {name: small_models[name] for name in ("encoder", *sorted({*FINE_TUNED.values()}))}
    server = start_server(models, keys=read_keys(path))
    for key, (address, body) in zip(keys, requests.items(), strict=True):
        assert server.ask(address, body, headers=bearer(key))[0] == 200, address
        assert server.ask(address, body, headers=bearer(key))[0] == 429, address


PAGE = "https://a.example"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
}


def of_browsers(headers):
    return {name for name in headers if name.lower().startswith("access-control")}


@pytest.fixture
def open_server(small_models, start_server, tmp_path):
    """A server with keys that is open to two origins, and a key."""
    path = tmp_path / "keys.json"
    key = add_key(path, "user", ["predict"], None)
    models, origins = {"entities": small_models["entities"]}, (PAGE, "http://localhost:3000")
    return start_server(models, keys=read_keys(path), cors_origins=origins), key


def test_it_is_closed_unless_it_is_opened(server):
    for path, body in (("/v1/ner", BODY), ("/health", None), ("/v1/nothing", BODY)):
        _, _, headers = server.ask_whole(path, body, headers={"Origin": PAGE})
        assert not of_browsers(headers)
    for path in ("/v1/ner", "/embed", "/hf/fill-mask"):
        status, _, headers = server.ask_whole(path, method="OPTIONS", headers=PREFLIGHT)
        assert status == 405 and not of_browsers(headers)


def test_a_named_origin_may_ask(open_server):
    server, key = open_server
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
    _, _, headers = server.ask_whole("/hf/token-classification", BODY, headers=shown)
    exposed = set(headers["Access-Control-Expose-Headers"].lower().split(", "))
    own = {name.lower() for name in headers if name.lower().startswith("x-")}
    assert {"x-n-tokens", "x-model-version"} <= own <= exposed and "retry-after" in exposed


def test_it_opens_nothing_to_who_has_no_key(open_server):
    server, _ = open_server
    status, problem, headers = server.ask_whole("/v1/ner", BODY, headers={"Origin": PAGE})
    assert status == 401 and problem["remedy"]
    assert headers["Access-Control-Allow-Origin"] == PAGE, "so that the page can read why"
    assert server.ask("/v1/ner", method="OPTIONS")[0] == 401, "no preflight"


def test_another_origin_may_not(open_server):
    server, key = open_server
    for other in ("https://b.example", "https://a.example.b.example", "http://a.example", "null"):
        asked = PREFLIGHT | {"Origin": other}
        status, _, headers = server.ask_whole("/v1/ner", method="OPTIONS", headers=asked)
        assert status == 400 and "Access-Control-Allow-Origin" not in headers
        shown = {"Origin": other, "Authorization": f"Bearer {key}"}
        _, _, headers = server.ask_whole("/v1/ner", BODY, headers=shown)
        assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    ("given", "is_origin"),
    [*((origin, True) for origin in (PAGE, "http://localhost:3000", "http://[::1]:8080")),
     *((other, False) for other in (
        "*", "null", "a.example", f"{PAGE}/", f"{PAGE}/page", "ftp://a.example", "https://", "",
        "https://me@a.example", "https://A.example"))],
)  # fmt: skip
def test_an_origin_is_scheme_host_and_port(given, is_origin):
    with nullcontext() if is_origin else pytest.raises(ValidationError, match="is no origin"):
        assert TypeAdapter(Origin).validate_python(given) == given


EVERYWHERE = ("/admin/traffic", "/info", "/health", "/docs", "/", "/v1/ner", "/embed", "/nothing")


@pytest.fixture(scope="module")
def lonely(small_models):
    """A server without keys that may be asked by two more names."""
    allowed = ("models.example", "2001:db8::7")
    with serving({"entities": small_models["entities"]}, allowed_hosts=allowed) as running:
        yield running


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:1", "localhost.:8000", "127.0.0.1", "127.8.9.1:80", "[::1]:8000",
     "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "models.example", "Models.Example.:443",
     "[2001:DB8:0::7]:8000"],
)  # fmt: skip
def test_without_keys_it_is_asked_by_its_own_names(lonely, host):
    for path in ("/info", "/health", "/docs"):
        assert lonely.ask(path, headers={"Host": host})[0] == 200


@pytest.mark.parametrize(
    "host",
    ["a.example", "a.example:8000", "localhost.a.example", "a.localhost", "127.0.0.1.a.example",
     "me@localhost", "localhost@a.example", "localhost:a.example", "localhost,a.example",
     "a.models.example", "10.0.0.1", "0.0.0.0", "[::]", "[::2]", "2130706433", "127.1", "0x7f.1",
     "[fe80::1%lo]", "::1", "", ".", "localhost..", "localhost:8000:8000", "localhost/", "\xe9",
     "l\u0131calhost".encode().decode("latin-1"), "a" * 5000],
)  # fmt: skip
def test_without_keys_it_is_not_asked_by_others(lonely, host):
    """For its browser a page whose name was made to stand for this machine is of one origin."""
    for path in EVERYWHERE:
        body = BODY if path in ("/v1/ner", "/embed") else None
        asked = {"Host": host, "X-Forwarded-Host": "localhost", "X-Forwarded-For": "127.0.0.1"}
        assert lonely.ask(path, body, headers=asked)[0] == 421, path
    body = {"model": "models:/a@b", "share": 1}
    asked = {"Host": host, "Origin": f"http://{host[:99]}"}
    for method in ("PUT", "DELETE"):
        path = "/admin/traffic/entities/canary"
        assert lonely.ask(path, body, method=method, headers=asked)[0] == 421


def test_who_names_no_host_or_two_is_not_answered(lonely):
    for heads in ([], ["Host: localhost", "Host: a.example"], ["Host: localhost"] * 2):
        for path in ("/info", "http://localhost/info"):
            assert raw_status(lonely, path, heads) == 421
    assert raw_status(lonely, "/info", ["hOST:localhost"]) == 200


@pytest.mark.parametrize(
    ("server", "host", "status"),
    [
        (("10.1.2.3", 8000), "10.1.2.3:8000", 200),
        (("::ffff:10.1.2.3", 8000), "10.1.2.3", 200),
        (("fd00::3", 8000), "[fd00:0::3]:8000", 200),
        (("10.1.2.3", 8000), "10.1.2.4:8000", 421),
        (("/run/socket", None), "a.example", 421),
        (None, "10.1.2.3", 421),
    ],
)
def test_a_probe_may_ask_by_the_address_that_it_connects_to(server, host, status):
    seen = []

    async def inside(scope, receive, send):
        seen.append(200)

    async def send(message):
        seen.append(message.get("status"))

    headers = [(b"host", host.encode())]
    scope = {"type": "http", "path": "/health", "headers": headers, "server": server}
    asyncio.run(KnownHosts(inside, ())(scope, None, send))
    assert seen[0] == status


def test_the_refusal_says_what_to_do_and_is_in_the_shape_of_its_routes(lonely):
    status, problem = lonely.ask("/info", headers={"Host": "a.example"})
    assert problem["field"] == "Host" and "allowed_hosts" in problem["remedy"]
    assert lonely.ask("/embed", BODY, headers={"Host": "a.example"})[1].keys() == {
        "error", "error_type",
    }  # fmt: skip


def test_with_keys_any_name_is_right_unless_some_are_named(start_server, tmp_path):
    path = tmp_path / "keys.json"
    shown = {"X-API-Key": add_key(path, "user", ["predict"], None)}
    for allowed, status in (((), 200), (("b.example",), 421)):
        running = start_server({}, keys=read_keys(path), allowed_hosts=allowed)
        assert running.ask("/info", headers=shown | {"Host": "a.example"})[0] == status
        assert running.ask("/info", headers=shown | {"Host": "b.example"})[0] == 200


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None]
)
def test_what_a_page_may_send_unasked_is_not_computed(lonely, kind):
    asked = {"Origin": "http://a.example"} | ({"Content-Type": kind} if kind else {})
    for path in ("/v1/ner", "/v1/tokenize", "/embed", "/v1/embeddings", "/hf/fill-mask"):
        told = raw_status(lonely, path, ["Host: localhost"], b'{"inputs": "a cat"}', asked)
        assert 400 <= told < 500


@pytest.mark.parametrize(
    ("given", "host"),
    [("A.example", "a.example"), ("a.example.", "a.example"), ("10.0.0.7", "10.0.0.7"),
     ("::2", "::2"), ("[0::2]", "::2"), *((wrong, None) for wrong in (
        "", "*", "http://a.example", "a.example:80", "[::2]:80", "a.example/", "me@a.example"))],
)  # fmt: skip
def test_a_host_is_a_name_or_an_address(given, host):
    with nullcontext() if host else pytest.raises(ValidationError, match="is no host"):
        assert TypeAdapter(Host).validate_python(given) == host
