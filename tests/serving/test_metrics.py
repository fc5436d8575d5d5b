"""Metrics, here and exported by Ray."""

import math
import re

import pytest
from prometheus_client import Gauge as OtherGauge
from registered_versions import other_weights
from running import wait_until

from serving import deployment
from serving.deployment import RayExport
from serving.models import load_models
from serving.rollout.traffic import Variant
from serving.telemetry.metrics import Metrics


def counts(server):
    """The samples of /metrics."""
    status, content = server.ask("/metrics")
    assert status == 200
    found = {}
    for line in content.decode().splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


@pytest.fixture
def counted(server):
    """How much samples have grown, by the beginning of their names, after some requests."""
    before = counts(server)

    def grown(pattern):
        after = counts(server)
        return sum(
            value - before.get(name, 0) for name, value in after.items() if re.match(pattern, name)
        )

    return grown


def test_requests_are_counted_by_route_model_and_status(server, counted):
    for inputs in ("a cat", "a", 3):
        server.ask("/v1/ner", {"inputs": inputs})
    route = r'bertline_requests_total\{model="entities",route="/v1/ner",status="200"'
    assert counted(route) == 2
    assert counted(r'bertline_requests_total.*"/v1/ner",status="422"') == 1
    assert counted(r'bertline_request_seconds_count.*model="entities".*"/v1/ner"') == 2


def test_unknown_addresses_are_one(server, counted):
    for number in range(5):
        server.ask(f"/nothing/{number}")
    assert counted(r'bertline_requests_total.*route="none",status="404"') == 5


def test_tokens_and_micro_batches_are_counted(server, counted):
    server.ask("/v1/ner", {"inputs": ["a cat", "a"]})
    wait_until(lambda: counted("bertline_batch_requests_sum") >= 1)  # counted after the answer
    assert counted("bertline_tokens_total") == 7
    assert counted("bertline_padding_total") == 0
    assert counted("bertline_batch_seconds_count") >= 1
    assert 0 < counted("bertline_batch_fill_sum") < 1


def test_cut_texts_are_counted(server, counted):
    long = "a cat " * 100
    server.ask("/v1/ner", {"inputs": [long, "a"], "overflow": "right"})
    server.ask("/v1/ner", {"inputs": [long, "a"], "overflow": "window"})
    server.ask("/embed", {"inputs": [long * 3, "a"], "truncate": True})
    assert counted(r'bertline_truncated_texts_total\{model="entities"') == 1
    assert counted(r'bertline_truncated_texts_total\{model="encoder"') == 1


def test_what_waits_is_shown(server):
    waiting = [value for name, value in counts(server).items() if "waiting_tokens" in name]
    assert waiting == [0.0]


def test_versions_count_what_they_were_given_until_they_are_retired(
    start_server, small_models, tmp_path
):
    folder = small_models["sentiment"]
    other = other_weights(folder, tmp_path / "other", 2.0)
    server = start_server({"mood": folder})
    engine, second = server.engine, load_models({"mood": other})["mood"]
    first = engine.models["mood"]
    engine.set_variant("mood", "canary", Variant(second, 0.5))

    def given():
        pattern = r'bertline_version_requests_total\{model="mood",role="(\w+)",version="(\w+)"\}'
        found = {re.fullmatch(pattern, name): value for name, value in counts(server).items()}
        return {match.groups(): value for match, value in found.items() if match}

    for _ in range(60):
        assert server.ask("/v1/classify", {"inputs": "a cat"})[0] == 200
    server.ask("/health")
    active, canary = ("active", first.version), ("canary", second.version)
    found = given()
    assert found.keys() == {active, canary} and sum(found.values()) == 60
    assert 10 < found[canary] < 50

    engine.retire(engine.set_variant("mood", "canary", None), 1)
    assert given() == {active: found[active]}
    third = load_models({"mood": other})["mood"]
    engine.retire(engine.switch(third), 1)
    assert given() == {}
    server.ask("/v1/classify", {"inputs": "a cat"})
    assert given() == {("active", third.version): 1}
    engine.close()


TAGS = {"application": "a", "replica": "r1"}


@pytest.fixture
def told(monkeypatch):
    """What Ray has been told: (name, labels) -> value."""
    values = {}

    class Told:
        def __init__(self, name, description, tag_keys):
            assert description
            self.name, self.keys = name, tag_keys

        def set(self, value, tags):
            assert set(tags) == set(self.keys)
            values[self.name, frozenset(tags.items())] = value

    monkeypatch.setattr(deployment, "Gauge", Told)
    return values


@pytest.fixture
def export(told):
    """Starts one that copies when it is told to, or so often."""
    begun = []

    def begin(metrics, seconds=3600.0):
        begun.append(RayExport(metrics.registry, TAGS, seconds))
        return begun[-1]

    yield begin
    for each in begun:
        each.close()
        assert not each._thread.is_alive()


def series(name, **labels):
    return name, frozenset((labels | TAGS).items())


def test_counts_gauges_and_histograms_have_their_names_and_labels(told, export):
    metrics = Metrics()
    OtherGauge("process_like", "not ours", registry=metrics.registry).set(1)
    metrics.count_request("/v1/ner", "ner", 200, 0.015)
    metrics.count_request("/v1/ner", "ner", 200, 0.3)
    metrics.note_version("ner", 4)
    export(metrics).copy()
    route = {"route": "/v1/ner", "model": "ner"}
    assert told[series("bertline_requests_total", status="200", **route)] == 2
    assert told[series("bertline_request_seconds_count", **route)] == 2
    assert told[series("bertline_request_seconds_sum", **route)] == pytest.approx(0.315)
    assert told[series("bertline_request_seconds_bucket", le="0.02", **route)] == 1
    assert told[series("bertline_request_seconds_bucket", le="+Inf", **route)] == 2
    assert told[series("bertline_model_version", model="ner")] == 4
    names = {name for name, _ in told}
    assert all(each.startswith("bertline_") for each in names)
    assert not any(each.endswith("_created") for each in names)


def test_what_is_there_no_more_is_no_number(told, export):
    metrics = Metrics()
    metrics.note_version("old", 1)
    metrics.note_version("new", 2)
    copying = export(metrics)
    copying.copy()
    metrics.forget("old")
    copying.copy()
    assert math.isnan(told[series("bertline_model_version", model="old")])
    assert told[series("bertline_model_version", model="new")] == 2


def test_it_goes_on_by_itself_whatever_goes_wrong(told, export, caplog):
    metrics = Metrics()
    broken = OtherGauge("bertline_broken", "raises", registry=metrics.registry)
    broken.set_function(lambda: 1 / 0)
    export(metrics, 0.01)
    wait_until(lambda: "exporting metrics" in caplog.text)
    broken.set_function(lambda: 7.0)
    wait_until(lambda: told.get(series("bertline_broken")) == 7)
