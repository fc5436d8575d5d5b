"""What starts a server's models, and those beside them."""

import http.client
import json
import threading
import time
from collections import Counter

import pytest
import torch
from registered_versions import broken_weights, other_weights

from bert_core.errors import UserError
from serving.limits import Limits
from serving.model_sources import SharedSource
from serving.startup import RegistryAccess, RunningEngine, loader_for


@pytest.fixture
def serve(small_models, start_server):
    """Starts servers of the sentiment with another version beside it."""
    running = []

    def begin(**beside):
        limits = Limits()
        loader = loader_for(torch.device("cpu"), limits, 1, "float32")
        shared = {
            role: {"mood": SharedSource(folder, share)} for role, (folder, share) in beside.items()
        }
        models = {"mood": small_models["sentiment"]}
        running.append(RunningEngine.start(models, loader, limits, RegistryAccess(), shared))
        return start_server(running[-1].engine, {})

    yield begin
    for each in running:
        each.close()


def metric(server, name):
    """The value of a line of the metrics, 0 where it is not there."""
    lines = server.ask("/metrics")[1].decode().splitlines()
    return next((float(each.rpartition(" ")[2]) for each in lines if each.startswith(name)), 0.0)


def test_the_shadow_of_the_same_version_agrees_always(serve, small_models):
    server = serve(shadow=(small_models["sentiment"], 1.0))
    texts = [f"{word} cat number {number}" for word in ("good", "bad") for number in range(20)]
    for each in texts:
        assert server.ask("/v1/classify", {"inputs": [each, "a dog"]})[0] == 200
    agree = 'bertline_shadow_items_total{model="mood",result="agree"}'
    until = time.monotonic() + 30
    while metric(server, agree) < 80 and time.monotonic() < until:
        time.sleep(0.02)
    assert metric(server, agree) == 80
    assert not metric(server, 'bertline_shadow_items_total{model="mood",result="differ"}')
    assert not metric(server, "bertline_shadow_missed")


def test_a_shadow_of_another_task_is_refused_at_the_start(serve, small_models):
    with pytest.raises(UserError, match="another task or other labels than mood"):
        serve(shadow=(small_models["topics"], 1.0))


def test_what_was_opened_before_a_model_that_is_damaged_is_closed(small_models, tmp_path):
    """A thread that computes when a process ends takes the process down with it."""

    def encoders():
        return [each for each in threading.enumerate() if each.name.startswith("encoder-")]

    before = encoders()
    damaged = broken_weights(small_models["topics"], tmp_path / "damaged")
    models = {"mood": small_models["sentiment"], "topics": damaged}
    limits = Limits()
    loader = loader_for(torch.device("cpu"), limits, 2, "float32")
    with pytest.raises(UserError, match="damaged"):
        RunningEngine.start(models, loader, limits, RegistryAccess())
    assert encoders() == before


@pytest.mark.slow
def test_a_canary_of_a_tenth_gets_a_tenth_of_5000_requests(serve, small_models, tmp_path):
    better = other_weights(small_models["sentiment"], tmp_path / "better", 2.0)
    server = serve(canary=(better, 0.1))
    connection = http.client.HTTPConnection(server.host, server.port)
    body = json.dumps({"inputs": "a cat"})
    versions = Counter()
    for _ in range(5000):
        connection.request("POST", "/v1/classify", body, {"Content-Type": "application/json"})
        versions[json.loads(connection.getresponse().read())["version"]] += 1
    canary = server.engine.traffic.beside("mood", "canary").model
    print(f"the canary of a tenth answered {versions[canary.version]} of 5,000 requests")
    assert len(versions) == 2 and 400 <= versions[canary.version] <= 600
