"""MLflow tells a server that an alias has moved."""

import base64
import json
import os
import time
from dataclasses import replace

import pytest
from cryptography.fernet import Fernet
from mlflow.webhooks.delivery import _generate_hmac_signature
from registered_versions import other_weights
from started import started
from waiting import wait_until

from benchmarks.mlflow_server import MlflowServer
from serving.batching import OverloadedError
from serving.coordination import Alone
from serving.engine import Engine
from serving.keys import add_key, read_keys
from serving.pointers import Address
from serving.webhook import WEBHOOK_PATH
from workflows.tracking.mlflow_run import open_client

SECRET = "known to two"
MOVED = {
    "entity": "model_version_alias",
    "action": "created",
    "timestamp": "2026-01-31T12:00:00+00:00",
    "data": {"name": "mood", "alias": "champion", "version": "2"},
}


def signed(body, delivery, secret=SECRET):
    timestamp = str(int(time.time()))
    return {
        "Content-Type": "application/json",
        "X-MLflow-Delivery-Id": delivery,
        "X-MLflow-Timestamp": timestamp,
        "X-MLflow-Signature": _generate_hmac_signature(secret, delivery, timestamp, body),
    }


class Counted(Alone):
    """A server without others that counts how often it asks MLflow."""

    looks = 0

    def look(self):
        self.looks += 1
        super().look()


def test_only_what_mlflow_signs_has_mlflow_asked(
    steered, copied_registry, small_models, tmp_path, monkeypatch
):
    path, counted = tmp_path / "keys.json", Counted()
    add_key(path, "boss", ["admin"], None)
    server = steered(
        {"mine": Address("mood", "champion", None), "other": small_models["encoder"]},
        uri=copied_registry.uri,
        coordination=counted,
        keys=read_keys(path),
        webhook_secret=SECRET.encode(),
    )

    def send(event, delivery, **more):
        body = json.dumps(event)
        return server.ask(WEBHOOK_PATH, body, headers=signed(body, delivery, **more))

    assert send(MOVED, "1", secret="a guess")[0] == 401
    assert server.ask(WEBHOOK_PATH, MOVED)[1]["field"] == "X-MLflow-Signature"
    assert counted.looks == 0
    assert send(MOVED, "1") == (200, {"asked": True}) and counted.looks == 1
    assert send(MOVED, "1") == (200, {"asked": False}), "it was sent again"
    others = (
        MOVED | {"data": {"name": "encoder", "alias": "champion"}},
        MOVED | {"entity": "model_version"},
        MOVED | {"data": {}},
        ["something"],
    )
    for number, each in enumerate(others):
        assert send(each, f"other-{number}") == (200, {"asked": False})
    assert counted.looks == 1
    assert send(MOVED | {"action": "deleted"}, "2") == (200, {"asked": True})
    large = MOVED | {"more": "x" * (64 << 10)}
    assert send(large, "3")[0] == 413
    monkeypatch.setattr(Engine, "check_room", _is_full)
    assert send(MOVED, "4") == (200, {"asked": True}), "under overload too"
    assert server.ask("/v1/tokenize", {"inputs": "a"})[0] == 429


def _is_full(engine):
    raise OverloadedError(1.0)


def test_without_a_secret_there_is_nothing(steered, small_models):
    server = steered({"mood": small_models["sentiment"]})
    assert server.ask(WEBHOOK_PATH, MOVED)[0] == 404


@pytest.mark.timeout(400)
def test_a_server_follows_as_soon_as_mlflow_says_so(
    registry, tmp_path, small_models, subprocess_environment, monkeypatch
):
    for name, value in {
        "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http,https",
        "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
        "MLFLOW_WEBHOOK_CACHE_TTL": "0",  # else MLflow knows a new webhook after a minute
        "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": Fernet.generate_key().decode(),
    }.items():
        monkeypatch.setenv(name, value)
    secret = base64.b64encode(os.urandom(24)).decode()
    (tmp_path / "secret").write_text(f"{secret}\n")
    mlflow = MlflowServer(tmp_path)
    mlflow.start()
    try:
        run_id = open_client(mlflow.uri).create_run("0").info.run_id
        registry = replace(registry, uri=mlflow.uri, run_id=run_id)
        folder = small_models["sentiment"]
        registry.register(folder, "mood", "champion")
        registry.register(other_weights(folder, tmp_path / "better", 2.0), "mood")
        given = ["--model", "models:/mood@champion", "--tracking_uri", mlflow.uri]
        given += ["--poll_seconds", "600", "--webhook_secret_file", str(tmp_path / "secret")]
        with started(given, subprocess_environment) as server:
            registry.client.create_webhook(
                "moved",
                f"http://127.0.0.1:{server.port}{WEBHOOK_PATH}",
                ["model_version_alias.created"],
                secret=secret,
            )

            def version():
                return server.ask("/v1/classify", {"inputs": "a cat"})[1]["version"]

            assert version() == "1"
            registry.client.set_registered_model_alias("mood", "champion", "2")
            moved_at = time.monotonic()
            wait_until(lambda: version() == "2", 60)
            seconds = time.monotonic() - moved_at
        assert secret not in "".join(server.said)
    finally:
        mlflow.kill()
    print(f"{seconds:.1f} s after the alias moved")
    assert seconds < 10
