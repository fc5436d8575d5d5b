"""The admin routes and MLflow's webhook: alone, and over HTTP."""

import base64
import http.client
import json
import os
import re
import time
from collections import Counter
from dataclasses import replace

import pytest
import torch
from mlflow.webhooks.delivery import _generate_hmac_signature
from pydantic import ValidationError
from registered_versions import broken_weights, other_weights
from running import repeating, started, wait_until
from starlette.datastructures import Headers

from bert_core.errors import UserError
from serving.app import RunningEngine, loader_for
from serving.batching import OverloadedError
from serving.engine import Engine
from serving.errors import RequestError
from serving.keys import add_key, read_keys
from serving.limits import Limits
from serving.rollout import admin
from serving.rollout.admin import WEBHOOK_PATH, Deliveries, VariantRequest, read_secret
from serving.rollout.aliases import Address, VariantSource
from serving.rollout.watcher import Coordination, WatchSettings
from workflows.runs.mlflow_run import open_client

CANARY = ("canary", "mood")


class Published(Coordination):
    """Others that hear all, or cannot be told."""

    def __init__(self):
        super().__init__()
        self.heard, self.can_hear = [], True

    def publish(self, slot, wanted):
        if not self.can_hear:
            raise UserError("the other replicas could not be told", "agreement", "set it again")
        self.heard.append((slot, wanted))


@pytest.fixture
def running(small_models, tmp_path):
    """A running engine with the canary of a folder, and the others."""
    others = Published()
    better = other_weights(small_models["sentiment"], tmp_path / "better", 2.0)
    made = RunningEngine.start(
        {"mood": small_models["sentiment"]},
        loader_for(torch.device("cpu"), Limits(), 1, "float32"),
        Limits(),
        WatchSettings(poll_seconds=0),
        {CANARY: VariantSource(better, 0.5)},
        others,
    )
    yield made, others, better
    made.close()


def test_others_are_told_what_was_done_here(running):
    made, others, better = running
    made.rollout.set_variant("mood", "canary", None, 0.25)
    assert made.engine.traffic.variant("mood", "canary").share == 0.25
    made.rollout.clear("mood", "canary")
    assert made.engine.traffic.variant("mood", "canary") is None
    for wrong in (("wood", "canary"), ("mood", "shadow"), ("mood", "canary")):
        with pytest.raises(RequestError):
            made.rollout.set_variant(*wrong, None, 0.25)
    assert others.heard == [(CANARY, VariantSource(better, 0.25)), (CANARY, None)]


def test_it_may_be_asked_again_where_others_could_not_be_told(running):
    made, others, better = running
    others.can_hear = False
    with pytest.raises(RequestError) as told:
        made.rollout.set_variant("mood", "canary", None, 0.75)
    assert told.value.problem.status == 503 and "again" in told.value.problem.remedy
    assert made.engine.traffic.variant("mood", "canary").share == 0.75
    others.can_hear = True
    made.rollout.set_variant("mood", "canary", None, 0.75)
    assert others.heard == [(CANARY, VariantSource(better, 0.75))]


def test_mlflow_is_asked_only_for_what_is_followed(running):
    made, _, _ = running
    assert not made.rollout.ask_now("mood"), "it is a folder"


@pytest.mark.parametrize("address", ["models:/a@b", "models:/a name.1/3", "models:/é@ü", None])
@pytest.mark.parametrize("share", [0.1, 1])
def test_addresses_of_the_registry_are_taken(address, share):
    request = VariantRequest(model=address, share=share)
    assert request.model is None or str(Address.of(request.model)) == address


@pytest.mark.parametrize(
    "given",
    [
        *({"model": wrong, "share": 0.1} for wrong in (
            "/etc", "models:/a", "models:/a/b", "models:/../a@b", "models:/a@b\n",
            "models:/a\nmodels:/c@b", "models:/a\x85@b", "runs:/a@b")),
        *({"model": "models:/a@b", "share": wrong} for wrong in (0, 1.01, float("nan"), "0.1")),
        {"model": "models:/a@b"},
        {"model": "models:/a@b", "share": 0.1, "more": 1},
    ],
)  # fmt: skip
def test_anything_else_is_not(given):
    with pytest.raises(ValidationError):
        VariantRequest.model_validate(given)


MOOD = Address("mood", "champion", None)
CANARY_PATH, SHADOW_PATH = "/admin/traffic/mood/canary", "/admin/traffic/mood/shadow"


@pytest.fixture
def versions(copied_registry, small_models, tmp_path):
    """The registry with versions of `mood` by alias: challenger, broken, and topics of another."""
    folder = small_models["sentiment"]
    better = other_weights(folder, tmp_path / "better", 2.0)
    assert copied_registry.register(better, "mood", "challenger") == 2
    broken = broken_weights(folder, tmp_path / "broken")
    assert copied_registry.register(broken, "mood", "broken") == 3
    copied_registry.register(small_models["topics"], "mood", "topics")
    return copied_registry


def put(server, path, **body):
    return server.ask(path, body, method="PUT")


def traffic(server, name="mood"):
    status, answer = server.ask("/admin/traffic")
    assert status == 200
    return answer["models"][name]


def versions_of(server, number):
    """How often each version has answered so many requests."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = json.dumps({"model": "mood", "inputs": "a cat"})
    found = Counter()
    for _ in range(number):
        connection.request("POST", "/v1/classify", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found[json.loads(answer.read())["version"] if answer.status == 200 else "failed"] += 1
    connection.close()
    return found


def test_what_cannot_be_is_refused_and_nothing_changes(start_rollout, versions, small_models):
    folder = {CANARY: VariantSource(small_models["sentiment"], 0.25)}
    server = start_rollout({"mood": MOOD}, folder, versions.uri)
    before = traffic(server)
    assert before["active"]["model"] == "models:/mood@champion" and before["refused"] == {}
    assert before["canary"]["model"] == "sentiment" and before["canary"]["share"] == 0.25
    for path, body, status, said in (
        (
            "/admin/traffic/wood/canary",
            {"model": "models:/mood@champion"},
            404,
            "did you mean mood",
        ),
        (SHADOW_PATH, {"model": "/etc"}, 422, "models:"),
        (SHADOW_PATH, {"share": 0}, 422, "share"),
        (SHADOW_PATH, {}, 422, "no shadow whose share"),
        (SHADOW_PATH, {"model": "models:/mood@nobody"}, 422, "no model models:/mood@nobody"),
        (CANARY_PATH, {"model": "models:/mood@broken"}, 422, "damaged"),
        (CANARY_PATH, {"model": "models:/mood@topics"}, 422, "another task or other labels"),
        ("/admin/traffic/mood/king", {}, 422, "canary"),
    ):
        found, problem = put(server, path, **({"share": 0.5} | body))
        assert (found, problem["status"]) == (status, status), problem
        assert said in json.dumps(problem) and problem["remedy"]
    versions.database.unlink()
    found, problem = put(server, CANARY_PATH, model="models:/mood@unasked", share=0.5)
    assert found == 503 and problem["title"] == "MLflow does not answer"
    after = traffic(server)
    assert {key: each and each["version"] for key, each in after.items() if key != "refused"} == {
        key: each and each["version"] for key, each in before.items() if key != "refused"
    }
    status, found = put(server, CANARY_PATH, share=0.75)  # of a folder, and without MLflow
    assert status == 200 and found["canary"] == after["canary"] | {"share": 0.75}


@pytest.mark.slow
def test_a_canary_that_was_set_follows_its_alias_until_it_is_taken_away(
    start_rollout, versions, small_models
):
    server = start_rollout({"mood": small_models["sentiment"]}, uri=versions.uri)
    assert put(server, CANARY_PATH, model="models:/mood@challenger", share=1)[0] == 200
    assert versions_of(server, 5) == {"2": 5}
    assert traffic(server)["canary"]["requests"] == 5
    assert gauges_of(server, "canary") > {
        *("bertline_model_version", "bertline_registry_reachable", "bertline_waiting_tokens"),
        *("bertline_registry_asked_timestamp_seconds", "bertline_version_requests_total"),
    }
    versions.client.set_registered_model_alias("mood", "challenger", "1")
    wait_until(lambda: versions_of(server, 1) == {"1": 1})
    versions.client.set_registered_model_alias("mood", "challenger", "3")
    wait_until(lambda: "canary" in traffic(server)["refused"])
    refused = traffic(server)["refused"]["canary"]
    assert (refused["model"], refused["version"]) == ("models:/mood@challenger", 3)
    assert versions_of(server, 2) == {"1": 2}
    for _ in range(2):
        status, left = server.ask(CANARY_PATH, method="DELETE")
        assert status == 200 and left["canary"] is None and left["refused"] == {}
    assert not gauges_of(server, "canary")
    assert len(versions_of(server, 5)) == 1


def gauges_of(server, role):
    """The metrics of now that name somebody of this role."""
    lines = server.ask("/metrics")[1].decode().splitlines()
    names = {line.partition("{")[0] for line in lines if f"({role})" in line or f'"{role}"' in line}
    return {name for name in names if re.search("version|registry|waiting", name)}


@pytest.mark.slow
def test_without_polling_an_address_is_what_it_was_when_it_was_set(
    start_rollout, versions, small_models
):
    server = start_rollout({"mood": small_models["sentiment"]}, uri=versions.uri, poll_seconds=0)
    assert put(server, CANARY_PATH, model="models:/mood@challenger", share=1)[0] == 200
    versions.client.set_registered_model_alias("mood", "challenger", "1")
    time.sleep(0.5)
    assert put(server, CANARY_PATH, share=0.9)[1]["canary"]["version"] == "2"
    assert server.ask(CANARY_PATH, method="DELETE")[0] == 200
    assert put(server, CANARY_PATH, model="models:/mood@challenger", share=1)[0] == 200
    assert traffic(server)["canary"]["version"] == "1"


class Linked(Coordination):
    """Two servers of one process that agree, as replicas do."""

    others: list["Linked"]

    def __init__(self):
        super().__init__()
        self.wanted = {}

    def publish(self, slot, wanted):
        self.wanted = {**self.wanted, slot: wanted}
        for other in self.others:
            variants = {key: source for key, source in self.wanted.items() if source is not None}
            other.controller.want(variants)


def test_every_replica_does_what_one_is_told(start_rollout, versions):
    first, second = Linked(), Linked()
    first.others, second.others = [second], [first]
    one = start_rollout({"mood": MOOD}, uri=versions.uri, coordination=first)
    other = start_rollout({"mood": MOOD}, uri=versions.uri, coordination=second)
    assert put(one, SHADOW_PATH, model="models:/mood@challenger", share=0.5)[0] == 200
    wait_until(lambda: traffic(other)["shadow"])
    found = traffic(other)["shadow"]
    assert (found["model"], found["version"]) == ("models:/mood@challenger", "2")
    assert found["share"] == 0.5
    assert put(one, SHADOW_PATH, share=0.25)[0] == 200
    wait_until(lambda: traffic(other)["shadow"]["share"] == 0.25)
    assert one.ask(SHADOW_PATH, method="DELETE")[0] == 200
    wait_until(lambda: traffic(other)["shadow"] is None)


def test_it_is_for_admins_behind_a_prefix_too_and_described(start_rollout, small_models, tmp_path):
    path = tmp_path / "keys.json"
    user, boss = (
        {"Authorization": f"Bearer {add_key(path, name, [scope], None)}"}
        for name, scope in (("user", "predict"), ("boss", "admin"))
    )
    server = start_rollout(
        {"mood": small_models["sentiment"]}, keys=read_keys(path), prefix="/at/home"
    )
    for address, method in (
        ("/admin/traffic", "GET"),
        (CANARY_PATH, "PUT"),
        (CANARY_PATH, "DELETE"),
    ):
        ask = {"method": method, "body": {"share": 0.5} if method == "PUT" else None}
        assert server.ask(address, **ask)[0] == 401
        assert server.ask(address, **ask, headers=user)[0] == 403
        assert server.ask(address, **ask, headers=boss)[0] in (200, 422)
    document = server.ask("/openapi.json")[1]
    route = document["paths"]["/admin/traffic/{name}/{role}"]["put"]
    assert {"200", "401", "403", "404", "422", "503"} <= route["responses"].keys()
    assert document["components"]["schemas"]["VariantRequest"]["examples"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_of_its_own_is_steered_under_load(versions, subprocess_environment):
    environment = subprocess_environment | {"MLFLOW_TRACKING_URI": versions.uri}
    begun, seen = started(["--model", "models:/mood@champion"], environment), Counter()
    with begun as server, repeating(lambda: seen.update(versions_of(server, 10)), 3):
        wait_until(lambda: seen)
        assert put(server, CANARY_PATH, model="models:/mood@challenger", share=0.3)[0] == 200
        found = versions_of(server, 500)
        assert set(found) == {"1", "2"} and 105 <= found["2"] <= 195
        status, answer = put(server, SHADOW_PATH, model="models:/mood/1", share=1)
        assert status == 200 and answer["shadow"]["version"] == "1"
        wait_until(lambda: traffic(server)["shadow"]["agree"] > 50)
        shadow = traffic(server)["shadow"]
        assert shadow["differ"] == 0
        assert traffic(server)["canary"]["requests"] > found["2"]
        for path in (CANARY_PATH, SHADOW_PATH):
            assert server.ask(path, method="DELETE")[0] == 200
        assert versions_of(server, 50) == {"1": 50}
        wait_until(lambda: not gauges_of(server, "canary") | gauges_of(server, "shadow"))
    assert "failed" not in seen and seen["2"], seen
    told = ("switched from", "has a share of", "is removed")
    said = [each for each in server.said if not any(words in each for words in told)]
    assert said == []


SECRET = "a secret of MLflow's, ünd more"
NOW = 1_800_000_000.0
BODY = '{"entity": "model_version_alias"}'


def signed(delivery="1", at=NOW, body=BODY, secret=SECRET):
    """Headers as MLflow makes them."""
    timestamp = str(int(at))
    return {
        "X-MLflow-Delivery-Id": delivery,
        "X-MLflow-Timestamp": timestamp,
        "X-MLflow-Signature": _generate_hmac_signature(secret, delivery, timestamp, body),
    }


@pytest.fixture
def deliveries():
    return Deliveries(SECRET.encode(), now=lambda: NOW)


def test_what_mlflow_signs_is_new_once(deliveries):
    assert deliveries.is_new(Headers(signed()), BODY.encode())
    assert not deliveries.is_new(Headers(signed()), BODY.encode())
    assert deliveries.is_new(Headers(signed("2")), BODY.encode())
    deliveries.forget(Headers(signed()))
    assert deliveries.is_new(Headers(signed()), BODY.encode())


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (signed(secret="another"), BODY),
        (signed(), BODY + " "),
        (signed("1") | {"X-MLflow-Delivery-Id": "2"}, BODY),
        (signed() | {"X-MLflow-Timestamp": str(int(NOW) + 1)}, BODY),
        (signed() | {"X-MLflow-Signature": "v1,"}, BODY),
        (signed() | {"X-MLflow-Signature": "é"}, BODY),
        ({}, BODY),
        (signed(at=NOW - 301), BODY),
        (signed(at=NOW + 301), BODY),
    ],
)
def test_what_is_forged_or_not_of_these_minutes_is_refused(deliveries, headers, body):
    with pytest.raises(RequestError) as told:
        deliveries.is_new(Headers(headers), body.encode())
    assert told.value.problem.status == 401
    assert deliveries.is_new(Headers(signed()), BODY.encode()), "MLflow's own is still new"


def test_little_is_remembered(monkeypatch):
    monkeypatch.setattr(admin, "_MOST_KNOWN", 10)
    now = [NOW]
    deliveries = Deliveries(SECRET.encode(), now=lambda: now[0])
    for number in range(30):
        assert deliveries.is_new(Headers(signed(str(number))), BODY.encode())
    assert len(deliveries._known) <= 11
    assert not deliveries.is_new(Headers(signed("29")), BODY.encode())
    now[0] += 601
    assert deliveries.is_new(Headers(signed("30", at=now[0])), BODY.encode())
    assert list(deliveries._known) == ["30"]


def test_a_secret_is_a_file_with_something_in_it(tmp_path):
    path = tmp_path / "secret"
    with pytest.raises(UserError, match="no secret"):
        read_secret(path)
    path.write_text(" \n")
    with pytest.raises(UserError, match="no secret in the file"):
        read_secret(path)
    path.write_text(f"{SECRET}\n")
    headers = Headers(signed(at=time.time()))
    assert Deliveries(read_secret(path)).is_new(headers, BODY.encode())


MOVED = {
    "entity": "model_version_alias",
    "action": "created",
    "timestamp": "2026-01-31T12:00:00+00:00",
    "data": {"name": "mood", "alias": "champion", "version": "2"},
}


class Counted(Coordination):
    """A server without others that counts how often it asks MLflow."""

    num_questions = 0

    def ask_now(self):
        self.num_questions += 1
        super().ask_now()


def test_only_what_mlflow_signs_has_mlflow_asked(
    start_rollout, copied_registry, small_models, tmp_path, monkeypatch
):
    path, counted = tmp_path / "keys.json", Counted()
    add_key(path, "boss", ["admin"], None)
    server = start_rollout(
        {"mine": Address("mood", "champion", None), "other": small_models["encoder"]},
        uri=copied_registry.uri,
        coordination=counted,
        keys=read_keys(path),
        webhook_secret=SECRET.encode(),
    )

    def send(event, delivery, **more):
        body = json.dumps(event)
        return server.ask(WEBHOOK_PATH, body, headers=signed(delivery, time.time(), body, **more))

    assert send(MOVED, "1", secret="a guess")[0] == 401
    assert server.ask(WEBHOOK_PATH, MOVED)[1]["field"] == "X-MLflow-Signature"
    assert counted.num_questions == 0
    assert send(MOVED, "1") == (200, {"asked": True}) and counted.num_questions == 1
    assert send(MOVED, "1") == (200, {"asked": False}), "it was sent again"
    others = (
        MOVED | {"data": {"name": "encoder", "alias": "champion"}},
        MOVED | {"entity": "model_version"},
        MOVED | {"data": {}},
        ["something"],
    )
    for number, each in enumerate(others):
        assert send(each, f"other-{number}") == (200, {"asked": False})
    assert counted.num_questions == 1
    assert send(MOVED | {"action": "deleted"}, "2") == (200, {"asked": True})
    large = MOVED | {"more": "x" * (64 << 10)}
    assert send(large, "3")[0] == 413
    monkeypatch.setattr(Engine, "check_room", _is_full)
    assert send(MOVED, "4") == (200, {"asked": True}), "under overload too"
    assert server.ask("/v1/tokenize", {"inputs": "a"})[0] == 429


def _is_full(engine):
    raise OverloadedError(1.0)


def test_without_a_secret_there_is_nothing(start_rollout, small_models):
    server = start_rollout({"mood": small_models["sentiment"]})
    assert server.ask(WEBHOOK_PATH, MOVED)[0] == 404


def test_a_server_follows_as_soon_as_mlflow_says_so(
    registry, mlflow_server, tmp_path, small_models, subprocess_environment
):
    secret = base64.b64encode(os.urandom(24)).decode()
    (tmp_path / "secret").write_text(f"{secret}\n")
    run_id = open_client(mlflow_server.uri).create_run("0").info.run_id
    registry = replace(registry, uri=mlflow_server.uri, run_id=run_id)
    folder = small_models["sentiment"]
    registry.register(folder, "mood", "champion")
    registry.register(other_weights(folder, tmp_path / "better", 2.0), "mood")
    given = ["--model", "models:/mood@champion", "--tracking_uri", mlflow_server.uri]
    given += ["--poll_seconds", "600", "--webhook_secret_file", str(tmp_path / "secret")]
    with started(given, subprocess_environment) as server:
        address = f"http://127.0.0.1:{server.port}{WEBHOOK_PATH}"
        events = ["model_version_alias.created"]
        registry.client.create_webhook("moved", address, events, secret=secret)

        def version():
            return server.ask("/v1/classify", {"inputs": "a cat"})[1]["version"]

        assert version() == "1"
        registry.client.set_registered_model_alias("mood", "champion", "2")
        moved_at = time.monotonic()
        wait_until(lambda: version() == "2", 60)
        seconds = time.monotonic() - moved_at
    assert secret not in "".join(server.said)
    assert seconds < 10
