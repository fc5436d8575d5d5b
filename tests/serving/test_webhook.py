"""MLflow's webhook: signatures, repeated deliveries, and what follows."""

import base64
import json
import os
import time
from dataclasses import replace

import pytest
from mlflow.webhooks.delivery import _generate_hmac_signature
from registered_versions import other_weights
from running import started, wait_until
from starlette.datastructures import Headers

from bert_core.errors import UserError
from serving.batching import OverloadedError
from serving.engine import Engine
from serving.errors import RequestError
from serving.keys import add_key, read_keys
from serving.rollout import webhook
from serving.rollout.aliases import Address
from serving.rollout.watcher import Coordination
from serving.rollout.webhook import WEBHOOK_PATH, Deliveries, read_secret
from workflows.runs.mlflow_run import open_client

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
    monkeypatch.setattr(webhook, "_MOST_KNOWN", 10)
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
