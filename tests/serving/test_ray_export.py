"""What a replica counts is copied to Ray as it is, and taken back where it is gone."""

import math

import pytest
from prometheus_client import Gauge as OtherGauge
from waiting import wait_until

from serving import ray_export
from serving.metrics import Metrics
from serving.ray_export import RayExport

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

    monkeypatch.setattr(ray_export, "Gauge", Told)
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
