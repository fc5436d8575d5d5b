"""What operators are shown: health, models, limits and metrics, here and exported by Ray."""

import json
import math
import re

import pytest
from prometheus_client import Gauge as OtherGauge
from registered_versions import other_weights
from running import wait_until

from bert_core.lineage import Lineage
from bert_core.model_folder import load_model_folder, save_model_folder
from serving import deployment
from serving.deployment import RayExport
from serving.models import close_models, load_models
from serving.rollout.aliases import Pointer
from serving.rollout.traffic import Variant
from serving.telemetry.metrics import Metrics


def test_the_server_is_well(server):
    assert server.ask("/health") == (200, {"status": "alive"})
    assert server.ask("/ready") == (200, {"status": "ready"})


def test_models_and_limits_are_shown(server):
    _, info = server.ask("/info")
    assert set(info["models"]) == set(server.folders)
    entities = info["models"]["entities"]
    assert entities["task"] == "ner" and "B-PER" in entities["labels"]
    assert entities["max_input_length"] == 32
    assert info["models"]["encoder"]["task"] is None
    assert info["limits"]["max_items"] == 256
    assert info["model_id"] is None and info["auto_truncate"] is False
    assert info["max_client_batch_size"] == 256
    shas = {model["sha256"] for model in info["models"].values()}
    assert len(shas) == len(info["models"]) and None not in shas


def test_the_only_model_has_the_fields_of_tei(start_server, small_models):
    _, info = start_server({"encoder": small_models["encoder"]}).ask("/info")
    assert info["model_id"] == "encoder" and info["max_input_length"] == 384
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert info["model_sha"] == info["models"]["encoder"]["sha256"]


def test_where_a_model_comes_from_is_shown(server, start_server, small_models, tmp_path):
    _, info = server.ask("/info")
    assert all(each["lineage"] is each["registered"] is None for each in info["models"].values())

    config = json.loads((small_models["sentiment"] / "config.json").read_text())
    _, model, tokenizer = load_model_folder(small_models["sentiment"])
    known = Lineage(run="mini-1a2b", data_sha256="ab" * 32, metrics={"dev/accuracy": 0.75})
    save_model_folder(tmp_path / "mine", model, tokenizer, "", extra_config=config, lineage=known)
    pointer = Pointer(
        address="models:/mood/3",
        name="mood",
        version=3,
        alias=None,
        folder=tmp_path / "mine",
        tracking_uri="http://mlflow:5000",
        lineage=Lineage(run_id="1", git_commit="c0" * 20, metrics={"dev/accuracy": 0.7}),
    )
    running = start_server({"mine": tmp_path / "mine", "same": pointer})
    _, info = running.ask("/info")
    of_folder, of_registry = info["models"]["mine"], info["models"]["same"]
    assert of_folder["lineage"] == known.model_dump() and of_folder["registered"] is None
    assert of_registry["registered"] == {"name": "mood", "version": 3, "alias": None}
    assert of_registry["lineage"] == known.model_dump() | {"run_id": "1", "git_commit": "c0" * 20}
    assert str(tmp_path) not in json.dumps(info)
    _, document = running.ask("/openapi.json")
    assert "run_id" in document["components"]["schemas"]["Lineage"]["properties"]


def test_what_a_model_can_be_asked_and_who_stands_beside_it(
    server, start_server, small_models, tmp_path
):
    _, info = server.ask("/info")
    sentiment, entities = info["models"]["sentiment"], info["models"]["entities"]
    assert "/v1/classify" in sentiment["routes"] and "/v1/ner" not in sentiment["routes"]
    assert sentiment["reads_pairs"] is False and entities["reads_pairs"] is None
    assert sentiment["canary"] is sentiment["shadow"] is None

    pointer = Pointer(
        address="models:/mood@next",
        name="mood",
        version=2,
        alias="next",
        folder=small_models["sentiment"],
        tracking_uri="http://mlflow:5000",
        lineage=Lineage(),
    )
    folder = other_weights(small_models["sentiment"], tmp_path / "other", 2.0)
    running = start_server({"mood": small_models["sentiment"]})
    canary, shadow = (load_models({"mood": source})["mood"] for source in (pointer, folder))
    running.engine.set_variant("mood", "canary", Variant(canary, 0.1))
    running.engine.set_variant("mood", "shadow", Variant(shadow, 1.0))
    _, info = running.ask("/info")
    mood = info["models"]["mood"]
    assert mood["canary"] == {"model": "models:/mood@next", "version": "2", "share": 0.1}
    assert mood["shadow"]["model"] == "other" and mood["shadow"]["share"] == 1.0
    assert mood["shadow"]["version"] == shadow.version != mood["version"]
    assert str(tmp_path) not in json.dumps(info)
    close_models([canary, shadow])


@pytest.mark.parametrize(
    "path", ["/health", "/ready", "/info", "/metrics", "/v1/models", "/docs", "/openapi.json", "/"]
)
def test_probes_may_ask_by_head(server, path):
    status, body, headers = server.ask_whole(path, method="HEAD")
    assert status == 200 and body == b""
    assert headers["Content-Type"] == server.ask_whole(path)[2]["Content-Type"]
    assert server.ask("/nothing", method="HEAD")[0] == 404
    assert "head" not in server.ask("/openapi.json")[1]["paths"].get(path, {})


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
