"""Slots follow what is wanted there and what MLflow says."""

import re
import threading
import time
import weakref
from collections import Counter
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import pytest
from registered_versions import broken_weights, other_encoder, other_weights
from running import repeating, wait_until

from bert_core.errors import UserError
from serving.engine import Engine
from serving.models import ModelLoader, load_models, open_model
from serving.rollout import controller
from serving.rollout.aliases import Address, VariantSource
from serving.rollout.controller import Switcher
from serving.rollout.watcher import Coordination

MOOD = Address("mood", "champion", None)
CANARY, SHADOW = ("canary", "mood"), ("shadow", "mood")


@pytest.fixture
def follow(copied_registry, start_rollout):
    """Starts servers of `mood@champion`, or of `models`, over one cache."""
    return lambda **models: start_rollout(models or {"mood": MOOD}, uri=copied_registry.uri)


def classify(server):
    """The version that answered, and the whole answer."""
    status, answer, headers = server.ask_whole("/v1/classify", {"model": "mood", "inputs": "a cat"})
    assert status == 200, answer
    assert headers["X-Model"] == "mood" and headers["X-Model-Version"] == answer["version"]
    return int(answer["version"]), answer["results"][0]["scores"]


def test_an_alias_that_moves_is_followed_while_all_are_answered(
    follow, copied_registry, small_models, tmp_path
):
    server = follow()
    before = classify(server)[1]
    changed = other_weights(small_models["sentiment"], tmp_path / "changed", -1.0)
    seen = []  # the times and versions of all answers

    def ask():
        version, _ = classify(server)
        seen.append((time.monotonic(), version))

    with repeating(ask, 4):
        wait_until(lambda: seen)
        assert copied_registry.register(changed, "mood", "champion") == 2
        moved_at = time.monotonic()
        wait_until(lambda: seen[-1][1] == 2)
        switched_at = time.monotonic()
        time.sleep(0.4)
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


@pytest.mark.slow
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
    again = second.ask("/info")[1]["models"]["mood"]["refused"]
    assert (again["version"], again["reason"]) == (3, refused["reason"])
    copied_registry.client.set_registered_model_alias("mood", "champion", "2")
    for each in (server, second):
        wait_until(lambda each=each: classify(each)[0] == 2)
        assert each.ask("/info")[1]["models"]["mood"]["refused"] is None


def test_an_alias_that_moves_while_a_server_starts_is_followed(
    follow, copied_registry, small_models, tmp_path, monkeypatch
):
    first = follow()
    changed = other_weights(small_models["sentiment"], tmp_path / "changed", -1.0)

    def open_slowly(*arguments):
        model = open_model(*arguments)
        copied_registry.register(changed, "mood", "champion")
        wait_until(lambda: classify(first)[0] == 2)
        return model

    monkeypatch.setattr("serving.app.open_model", open_slowly)
    second = follow()
    wait_until(lambda: classify(second)[0] == 2)
    assert second.ask("/info")[1]["models"]["mood"]["refused"] is None


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


def test_a_canary_that_cannot_be_had_comes_later(
    start_rollout, copied_registry, small_models, tmp_path, monkeypatch, caplog
):
    """A fault of the canary's address is none of the model's, at a start either."""
    monkeypatch.setattr("serving.rollout.controller._AGAIN_SECONDS", 0.1)
    better = other_weights(small_models["sentiment"], tmp_path / "better", 2.0)
    location = copied_registry.client.get_logged_model(
        copied_registry.client.get_model_version(
            "mood", str(copied_registry.register(better, "mood", "next"))
        ).source.removeprefix("models:/")
    ).artifact_location
    copied_registry.move_artifacts("http://[", "mood", 2)
    wanted = {
        CANARY: VariantSource(Address("mood", "next", None), 0.5),
        SHADOW: VariantSource(Address("mood", "nobody", None), 1.0),
    }
    models = {"mood": small_models["sentiment"]}
    engine = start_rollout(models, wanted, copied_registry.uri).engine
    assert engine.traffic.variant("mood", "canary") is None
    assert "models:/mood@next" in caplog.text
    for slot, said in ((CANARY, "Invalid IPv6"), (SHADOW, "the MLflow UI lists")):
        wait_until(lambda slot=slot: slot in engine.slots)
        wait_until(lambda slot=slot: engine.slots[slot].refused)
        assert said in engine.slots[slot].refused.reason
    copied_registry.move_artifacts(location, "mood", 2)
    wait_until(lambda: engine.traffic.variant("mood", "canary"))
    assert engine.traffic.variant("mood", "canary").share == 0.5


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


@pytest.mark.slow
def test_nothing_stays_of_many_versions_before(
    follow, copied_registry, small_models, tmp_path, monkeypatch
):
    opened, load = weakref.WeakSet(), ModelLoader.load

    def noted(*given, **named):
        model = load(*given, **named)
        opened.add(model)
        return model

    def left():
        return [model.version for model in opened if model.name == "mood"], len(encoders())

    def open_files():
        return len([*Path("/proc/self/fd").iterdir()])

    monkeypatch.setattr(ModelLoader, "load", noted)
    server = follow(mood=MOOD, mine=small_models["encoder"])
    folder = other_encoder(small_models["sentiment"], tmp_path / "second")
    copied_registry.register(folder, "mood")
    copied_registry.register(other_weights(folder, tmp_path / "third", 2.0), "mood")  # one encoder
    after, files = [], []
    for number in range(1, 7):
        version = str(number % 3 + 1)
        copied_registry.client.set_registered_model_alias("mood", "champion", version)
        wait_until(lambda v=int(version): classify(server)[0] == v)
        if number in (3, 6):
            wait_until(lambda v=version: left()[0] == [v])
            after.append(left())
            files.append(open_files())
            counted = server.ask("/metrics")[1].decode()
            assert set(re.findall(r'version_requests_total.*version="(\d)"', counted)) == {version}
            # Of the first version both have one encoder.
            assert re.findall(r'_waiting_tokens{encoder="(.*?)"}', counted) == ["mood+mine"]
    wait_until(lambda: left() == after[0])
    # Fewer is well: what other tests of this process left open may close meanwhile.
    wait_until(lambda: open_files() <= files[0])


@pytest.fixture
def alone(start_rollout, small_models):
    """An engine of the sentiment's folder, and its controller."""
    coordination = Coordination()
    server = start_rollout(
        {"mood": small_models["sentiment"]}, poll_seconds=0, coordination=coordination
    )
    return server.engine, coordination.controller


def test_what_others_want_is_done_and_what_is_not_well_is_refused(alone, small_models, tmp_path):
    engine, following = alone
    better = other_weights(small_models["sentiment"], tmp_path / "better", 2.0)
    broken = broken_weights(small_models["sentiment"], tmp_path / "broken")

    def shares():
        found = {each: engine.traffic.variant(each[1], each[0]) for each in (CANARY, SHADOW)}
        return {key: (each.model.folder, each.share) for key, each in found.items() if each}

    def refused(slot):
        return slot in engine.slots and engine.slots[slot].refused

    following.want({CANARY: VariantSource(better, 0.1), SHADOW: VariantSource(broken, 1.0)})
    wait_until(lambda: shares() == {CANARY: (better, 0.1)} and refused(SHADOW))
    canary = engine.traffic.variant("mood", "canary").model
    assert "damaged" in refused(SHADOW).reason and refused(SHADOW).version is None
    refused_at = refused(SHADOW).at
    following.want({CANARY: VariantSource(better, 0.4), SHADOW: VariantSource(broken, 0.5)})
    wait_until(lambda: shares() == {CANARY: (better, 0.4)})
    time.sleep(0.6)
    assert refused(SHADOW).at == refused_at, "it is the same folder, and not tried again"
    assert engine.traffic.variant("mood", "canary").model is canary, "only its share is another"
    same = small_models["sentiment"]
    following.want(
        {SHADOW: VariantSource(same, 1.0), ("canary", "unknown"): VariantSource(same, 1.0)}
    )
    wait_until(lambda: shares() == {SHADOW: (same, 1.0)})
    assert engine.slots.keys() == {(None, "mood"), SHADOW} and not refused(SHADOW)


def test_what_is_set_is_so_when_it_returns(alone, small_models, tmp_path):
    engine, following = alone
    better = other_weights(small_models["sentiment"], tmp_path / "better", 2.0)
    broken = broken_weights(small_models["sentiment"], tmp_path / "broken")
    following.set_variant(CANARY, VariantSource(better, 0.1))
    share = engine.traffic.variant("mood", "canary")
    assert (share.model.folder, share.share) == (better, 0.1)
    for wrong in (broken, small_models["topics"]):
        with pytest.raises(UserError):
            following.set_variant(CANARY, VariantSource(wrong, 0.9))
        assert engine.traffic.variant("mood", "canary") is share
    time.sleep(0.4)  # it stays, as its thread looks
    assert engine.traffic.variant("mood", "canary") is share
    following.set_variant(CANARY, None)
    assert engine.traffic.variant("mood", "canary") is None
    assert engine.slots.keys() == {(None, "mood")}


def test_a_canary_of_other_labels_comes_back_with_a_version_like_it(
    start_rollout, copied_registry, small_models, tmp_path
):
    canary = other_weights(small_models["sentiment"], tmp_path / "canary", 2.0)
    copied_registry.register(small_models["topics"], "mood")
    canaries = {CANARY: VariantSource(canary, 0.5)}
    server = start_rollout({"mood": MOOD}, canaries, copied_registry.uri)

    def alias(version):
        copied_registry.client.set_registered_model_alias("mood", "champion", version)

    def at_canary():
        variant = server.engine.traffic.variant("mood", "canary")
        return variant and variant.model.folder

    wait_until(lambda: at_canary() == canary)
    for _ in range(2):
        alias("2")
        wait_until(lambda: at_canary() is None and server.engine.slots[CANARY].refused)
        assert "another task or other labels" in server.engine.slots[CANARY].refused.reason
        for _ in range(8):
            assert server.ask("/v1/classify", {"inputs": ["a cat"]})[1]["version"] == "2"
        alias("1")
        wait_until(lambda: at_canary() == canary and not server.engine.slots[CANARY].refused)


@pytest.fixture
def engine(small_models):
    made = Engine(load_models({"mood": small_models["sentiment"]}))
    yield made
    made.close()


def encoders():
    return {thread for thread in threading.enumerate() if thread.name.startswith("encoder")}


def test_a_version_comes_gets_another_share_and_goes(engine, small_models, tmp_path):
    switcher, before = Switcher(engine), encoders()
    folder = other_encoder(small_models["sentiment"], tmp_path / "other")
    switcher.put(CANARY, folder, 0.25, None)
    first = switcher.at(CANARY)
    switcher.put(CANARY, other_encoder(folder, tmp_path / "third"), 0.25, None)
    wait_until(lambda: not first.batcher.is_alive)
    canary = switcher.at(CANARY)
    assert engine.traffic.variant("mood", "canary").share == 0.25
    switcher.set_share(CANARY, 0.5)
    assert engine.traffic.variant("mood", "canary").share == 0.5 and switcher.at(CANARY) is canary
    assert encoders() > before and canary.batcher.is_alive
    text = engine.metrics.text.decode()
    assert 'bertline_waiting_tokens{encoder="mood (canary)"}' in text and canary.version in text
    for _ in range(2):
        switcher.clear(CANARY)
        assert switcher.at(CANARY) is None
    wait_until(lambda: encoders() == before)
    wait_until(lambda: canary.version not in engine.metrics.text.decode())
    assert 'waiting_tokens{encoder="mood (canary)' not in engine.metrics.text.decode()


def test_what_is_not_well_changes_nothing(engine, small_models, tmp_path):
    switcher, before = Switcher(engine), encoders()
    broken = broken_weights(small_models["sentiment"], tmp_path / "broken")
    with pytest.raises(UserError, match="damaged"):
        switcher.put(CANARY, broken, 0.5, None)
    other = other_encoder(small_models["topics"], tmp_path / "other")
    with pytest.raises(UserError, match="another task or other labels than mood"):
        switcher.put(CANARY, other, 0.5, None)
    assert switcher.at(CANARY) is None and switcher.at((None, "mood")) is engine.models["mood"]
    wait_until(lambda: encoders() == before)


class QuickThread(Thread):
    """A thread that has ended before whoever started it goes on."""

    def start(self):
        super().start()
        self.join()


def test_memory_is_given_back_when_the_version_before_is_gone(small_models, tmp_path, monkeypatch):
    engine = Engine(load_models({"mood": small_models["sentiment"]}))
    before, gone = weakref.ref(engine.models["mood"]), SimpleQueue()
    monkeypatch.setattr(controller, "release_memory", lambda: gone.put(before() is None))
    folder = other_encoder(small_models["sentiment"], tmp_path / "second")
    monkeypatch.setattr(controller, "Thread", QuickThread)
    Switcher(engine).put((None, "mood"), folder, 1.0, None)
    assert gone.get(timeout=60) is True
    engine.close()


class Heard:
    """A controller that counts how often it is to ask MLflow."""

    num_questions = 0

    def ask_now(self):
        self.num_questions += 1


def test_a_server_without_others_asks_mlflow_itself():
    alone, heard = Coordination(), Heard()
    alone.ask_now()
    alone.start(heard)
    alone.publish(("canary", "mood"), None)
    alone.ask_now()
    alone.close()
    alone.ask_now()
    assert heard.num_questions == 1
