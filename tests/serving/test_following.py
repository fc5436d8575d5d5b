"""A server whose models follow the registry while it answers."""

import re
import threading
import time
from collections import Counter
from contextlib import contextmanager

import pytest
import torch
from registered_versions import broken_weights, other_weights

from bert_core.errors import UserError
from serving.coordination import Alone
from serving.limits import Limits
from serving.model_sources import SharedSource
from serving.pointers import Address
from serving.startup import RegistryAccess, RunningEngine, loader_for

MOOD = Address("mood", "champion", None)


@pytest.fixture
def follow(copied_registry, start_server, tmp_path):
    """Starts servers of `mood@champion` over one cache; the folder of the cache is `models`."""
    running = []

    def begin(**models):
        limits = Limits()
        loader = loader_for(torch.device("cpu"), limits, 1, "float32")
        access = RegistryAccess(copied_registry.uri, tmp_path / "models", poll_seconds=0.1)
        running.append(RunningEngine.start(models or {"mood": MOOD}, loader, limits, access))
        return start_server(running[-1].engine, {})

    yield begin
    for each in running:
        each.close()


def classify(server):
    """The version that answered, and the whole answer."""
    status, answer, headers = server.ask_whole("/v1/classify", {"model": "mood", "inputs": "a cat"})
    assert status == 200, answer
    assert headers["X-Model"] == "mood" and headers["X-Model-Version"] == answer["version"]
    return int(answer["version"]), answer["results"][0]["scores"]


def wait_until(holds, seconds=30):
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


@contextmanager
def clients(server, number=4):
    """Asks all the time; gives the times and versions of all answers, in the end."""
    ended, seen = threading.Event(), []

    def ask():
        while not ended.is_set():
            version, _ = classify(server)
            seen.append((time.monotonic(), version))

    threads = [threading.Thread(target=ask) for _ in range(number)]
    for each in threads:
        each.start()
    try:
        yield seen
    finally:
        ended.set()
        for each in threads:
            each.join()


def test_an_alias_that_moves_is_followed_while_all_are_answered(
    follow, copied_registry, small_models, tmp_path
):
    server = follow()
    before = classify(server)[1]
    changed = other_weights(small_models["sentiment"], tmp_path / "changed", -1.0)
    with clients(server) as seen:
        wait_until(lambda: seen)
        assert copied_registry.register(changed, "mood", "champion") == 2
        moved_at = time.monotonic()
        wait_until(lambda: seen[-1][1] == 2)
        switched_at = time.monotonic()
        time.sleep(0.5)
    assert switched_at - moved_at < 5
    assert {version for at, version in seen if at > switched_at + 0.3} == {2}
    assert Counter(version for _, version in seen).keys() == {1, 2}
    assert classify(server)[1] != before
    metrics = server.ask("/metrics")[1].decode()
    assert 'bertline_model_version{model="mood"} 2.0' in metrics
    assert 'bertline_switches_total{model="mood",result="switched"} 1.0' in metrics
    info = server.ask("/info")[1]["models"]["mood"]
    assert info["registered"]["version"] == 2 and info["refused"] is None
    assert info["registry"]["fault"] is None


def test_a_broken_version_takes_no_traffic_nor_stops_a_start(
    follow, copied_registry, small_models, tmp_path
):
    server = follow()
    better = other_weights(small_models["sentiment"], tmp_path / "better", 2.0)
    assert copied_registry.register(better, "mood") == 2
    broken = broken_weights(small_models["sentiment"], tmp_path / "broken")
    copied_registry.register(broken, "mood", "champion")
    wait_until(lambda: server.ask("/info")[1]["models"]["mood"]["refused"])
    refused = server.ask("/info")[1]["models"]["mood"]["refused"]
    assert refused["version"] == 3 and refused["reason"]
    assert classify(server)[0] == 1
    metrics = server.ask("/metrics")[1].decode()
    assert 'bertline_switches_total{model="mood",result="refused"} 1.0' in metrics
    second = follow()  # as a replica that is started anew
    assert classify(second)[0] == 1
    assert second.ask("/info")[1]["models"]["mood"]["refused"]["version"] == 3
    copied_registry.client.set_registered_model_alias("mood", "champion", "2")
    for each in (server, second):
        wait_until(lambda each=each: classify(each)[0] == 2)
        assert each.ask("/info")[1]["models"]["mood"]["refused"] is None


def test_a_registry_that_is_gone_is_seen_and_nothing_else(follow, copied_registry):
    server = follow()
    copied_registry.database.unlink()
    wait_until(lambda: server.ask("/info")[1]["models"]["mood"]["registry"]["fault"])
    assert server.ask("/ready")[0] == 200 and classify(server)[0] == 1
    assert 'bertline_registry_reachable{model="mood"} 0.0' in server.ask("/metrics")[1].decode()
    second = follow()
    assert second.ask("/ready")[0] == 200 and classify(second)[0] == 1


def test_a_fault_of_one_address_is_shown_and_the_others_go_on_after_a_restart_too(
    follow, copied_registry, small_models, tmp_path
):
    people = Address("people", "champion", None)
    server = follow(mood=MOOD, people=people)
    copied_registry.register(small_models["topics"], "mood")
    copied_registry.move_artifacts("http://[", "mood", 2)
    copied_registry.client.set_registered_model_alias("mood", "champion", "2")

    def known(server, name):
        return server.ask("/info")[1]["models"][name]

    wait_until(lambda: known(server, "mood")["registry"]["fault"])
    for each in (server, follow(mood=MOOD, people=people)):
        assert "ValueError: Invalid IPv6" in known(each, "mood")["registry"]["fault"]
        assert known(each, "people")["registry"]["fault"] is None
        assert classify(each)[0] == 1 and each.ask("/ready")[0] == 200
        assert each.ask("/v1/ner", {"inputs": "a cat"})[0] == 200


def test_a_version_beside_a_model_that_cannot_be_had_comes_later(
    copied_registry, small_models, tmp_path, monkeypatch, caplog
):
    """A fault of the canary's address is none of the model's, at a start either."""
    monkeypatch.setattr("serving.following._AGAIN_SECONDS", 0.1)
    better = other_weights(small_models["sentiment"], tmp_path / "better", 2.0)
    location = copied_registry.client.get_logged_model(
        copied_registry.client.get_model_version(
            "mood", str(copied_registry.register(better, "mood", "next"))
        ).source.removeprefix("models:/")
    ).artifact_location
    copied_registry.move_artifacts("http://[", "mood", 2)
    loader = loader_for(torch.device("cpu"), Limits(), 1, "float32")
    wanted = {
        "canary": {"mood": SharedSource(Address("mood", "next", None), 0.5)},
        "shadow": {"mood": SharedSource(Address("mood", "nobody", None), 1.0)},
    }
    access = RegistryAccess(copied_registry.uri, tmp_path / "models", poll_seconds=0.1)
    models = {"mood": small_models["sentiment"]}
    running = RunningEngine.start(models, loader, Limits(), access, wanted)
    try:
        engine = running.engine
        assert engine.traffic.beside("mood", "canary") is None
        assert "begins without models:/mood@next" in caplog.text
        for place, said in ((CANARY, "Invalid IPv6"), (SHADOW, "the MLflow UI lists")):
            wait_until(lambda place=place: place in engine.followed)
            wait_until(lambda place=place: engine.followed[place].refused)
            assert said in engine.followed[place].refused.reason
        copied_registry.move_artifacts(location, "mood", 2)
        wait_until(lambda: engine.traffic.beside("mood", "canary"))
        assert engine.traffic.beside("mood", "canary").share == 0.5
    finally:
        running.close()


def test_a_newer_version_that_the_alias_is_not_at_is_in_the_metrics(
    follow, copied_registry, small_models, tmp_path
):
    better = other_weights(small_models["sentiment"], tmp_path / "better", 2.0)
    assert copied_registry.register(better, "mood") == 2
    pinned = Address("mood", None, 1)
    text = follow(mood=MOOD, pinned=pinned).ask("/metrics")[1].decode()
    for line in (
        'bertline_model_version{model="mood"} 1.0',
        'bertline_registry_newest_version{model="mood"} 2.0',
        'bertline_model_version{model="pinned"} 1.0',
    ):
        assert line in text.splitlines()
    assert 'bertline_registry_newest_version{model="pinned"}' not in text


def test_what_is_switched_off_is_let_go_of(follow, copied_registry, small_models):
    server = follow(mood=MOOD, mine=small_models["encoder"])
    copied_registry.register(small_models["encoder"], "mood")
    batchers = set()
    for version in (2, 1, 2):
        copied_registry.client.set_registered_model_alias("mood", "champion", str(version))
        wait_until(lambda v=version: server.engine.models["mood"].pointer.version == v)
        batchers |= set(server.engine.traffic.batchers)
    assert len(server.engine.traffic.batchers) == 1 and len(batchers) == 1, "one encoder"
    metrics = server.ask("/metrics")[1].decode()
    assert re.findall(r'bertline_waiting_tokens{encoder="(.*?)"}', metrics) == ["mood+mine"]


CANARY, SHADOW = ("canary", "mood"), ("shadow", "mood")


@pytest.fixture
def beside(small_models):
    """A server of the sentiment's folder, and what has versions of folders stand beside it."""
    loader = loader_for(torch.device("cpu"), Limits(), 1, "float32")
    models = {"mood": small_models["sentiment"]}
    told = Told()
    running = RunningEngine.start(
        models, loader, Limits(), RegistryAccess(poll_seconds=0), coordination=told
    )
    yield running.engine, told.listener
    running.close()


class Told(Alone):
    """A coordination that shows whom it tells."""

    @property
    def listener(self):
        return self._listener


def test_what_others_want_is_done_and_what_is_not_well_is_refused(beside, small_models, tmp_path):
    engine, listener = beside
    better = other_weights(small_models["sentiment"], tmp_path / "better", 2.0)
    broken = broken_weights(small_models["sentiment"], tmp_path / "broken")

    def shares():
        found = {each: engine.traffic.beside(each[1], each[0]) for each in (CANARY, SHADOW)}
        return {key: (each.model.folder, each.share) for key, each in found.items() if each}

    def refused(place):
        return place in engine.followed and engine.followed[place].refused

    listener.want({CANARY: SharedSource(better, 0.1), SHADOW: SharedSource(broken, 1.0)})
    wait_until(lambda: shares() == {CANARY: (better, 0.1)} and refused(SHADOW))
    canary = engine.traffic.beside("mood", "canary").model
    assert "damaged" in refused(SHADOW).reason and refused(SHADOW).version is None
    refused_at = refused(SHADOW).at
    listener.want({CANARY: SharedSource(better, 0.4), SHADOW: SharedSource(broken, 0.5)})
    wait_until(lambda: shares() == {CANARY: (better, 0.4)})
    time.sleep(1.0)
    assert refused(SHADOW).at == refused_at, "it is the same folder, and not tried again"
    assert engine.traffic.beside("mood", "canary").model is canary, "only its share is another"
    same = small_models["sentiment"]
    listener.want({SHADOW: SharedSource(same, 1.0), ("canary", "unknown"): SharedSource(same, 1.0)})
    wait_until(lambda: shares() == {SHADOW: (same, 1.0)})
    assert engine.followed.keys() == {(None, "mood"), SHADOW} and not refused(SHADOW)


def test_what_is_set_is_so_when_it_returns(beside, small_models, tmp_path):
    engine, listener = beside
    better = other_weights(small_models["sentiment"], tmp_path / "better", 2.0)
    broken = broken_weights(small_models["sentiment"], tmp_path / "broken")
    listener.set_beside(CANARY, SharedSource(better, 0.1))
    share = engine.traffic.beside("mood", "canary")
    assert (share.model.folder, share.share) == (better, 0.1)
    for wrong in (broken, small_models["topics"]):
        with pytest.raises(UserError):
            listener.set_beside(CANARY, SharedSource(wrong, 0.9))
        assert engine.traffic.beside("mood", "canary") is share
    time.sleep(0.6)  # it stays, as its thread looks
    assert engine.traffic.beside("mood", "canary") is share
    listener.set_beside(CANARY, None)
    assert engine.traffic.beside("mood", "canary") is None
    assert engine.followed.keys() == {(None, "mood")}
