"""Replicas on Ray: they share a watcher and agree on variants and keys."""

import multiprocessing
import threading
import time
from pathlib import Path

import httpx2
import pytest
import ray
from ray_serving import HOST, serving_on_ray
from registered_versions import other_weights
from running import wait_until

from bert_core.errors import UserError
from serving.keys import RateLimitError, TokenBucket, add_key
from serving.rollout import replicas
from serving.rollout.aliases import Address, VariantSource, read_pointer
from serving.rollout.replicas import (
    NAMESPACE,
    Desired,
    IdleExit,
    NodeWatcher,
    Replica,
    Reply,
    SharedState,
)
from serving.rollout.watcher import WatchSettings


def forgotten(ended):
    """A process that is asked for twice, and then never more."""
    until = IdleExit(ended.set, seconds=0.6)
    for _ in range(2):
        time.sleep(0.4)
        until.note()
    time.sleep(60)


def test_it_ends_when_nobody_has_asked_for_a_while():
    context = multiprocessing.get_context("forkserver")
    ended = context.Event()
    process = context.Process(target=forgotten, args=(ended,))
    process.start()
    assert ended.wait(30)
    process.join(10)
    assert process.exitcode == 0


CHAMPION = Address("people", "champion", None)


@pytest.fixture
def watch(tmp_path, ray_cluster):
    """What a replica has of the watcher, with a cache of the test's own."""
    made = []

    def begin(uri, *more, addresses=(CHAMPION,), poll_seconds=0.2):
        order = WatchSettings(more or addresses, uri, tmp_path / "models", poll_seconds)
        made.append(NodeWatcher(order))
        made[-1].start()
        return made[-1]

    yield begin
    for each in made:
        each.close()
    for each in watchers():
        ray.kill(ray.get_actor(each["name"], each["namespace"]))


def watchers():
    """The watchers there are, by name."""
    return ray.util.list_named_actors(all_namespaces=True)


def test_replicas_share_one_that_comes_back_when_it_is_lost(
    watch, copied_registry, small_models, monkeypatch
):
    monkeypatch.setattr(replicas, "_CALL_SECONDS", 0.2)
    first, second = (watch(copied_registry.uri) for _ in range(2))
    (one,) = watchers()
    assert first.pointers == second.pointers
    path = first.pointers[CHAMPION]
    assert read_pointer(path).version == 1
    mood = Address("mood", "champion", None)
    added = {each.add(mood) for each in (first, second)}
    assert added == {first.pointers[mood]} == {second.pointers[mood]}
    with pytest.raises(UserError, match="no model models:/people@nobody"):
        first.add(Address("people", "nobody", None))
    ray.kill(ray.get_actor(one["name"], one["namespace"]))
    copied_registry.register(small_models["topics"], "people", "champion")
    wait_until(lambda: read_pointer(path).version == 2)
    copied_registry.register(small_models["paraphrase"], "mood", "champion")
    wait_until(lambda: read_pointer(*added).version == 2)
    assert len(watchers()) == 1
    with pytest.raises(UserError, match="no model models:/people@nobody"):
        watch(copied_registry.uri, Address("people", "nobody", None))


def test_what_was_added_to_none_is_asked_about_when_told(watch, copied_registry, small_models):
    node = watch(copied_registry.uri, addresses=(), poll_seconds=600.0)
    node.ask_now()
    path = node.add(CHAMPION)
    assert read_pointer(path).version == 1 and node.pointers == {CHAMPION: path}
    copied_registry.register(small_models["topics"], "people", "champion")
    node.ask_now()
    wait_until(lambda: read_pointer(path).version == 2)


CANARY = ("canary", "mood")
SHADOW = ("shadow", "mood")
CHALLENGER = VariantSource(Address("mood", "challenger", None), 0.1)
FOLDER = VariantSource(Path("/models/mood"), 1.0)


class Heard:
    """A server that notes what it is told."""

    def __init__(self):
        self.variants, self.num_questions = None, 0

    def want(self, variants):
        self.variants = dict(variants)

    def ask_now(self):
        self.num_questions += 1


@pytest.fixture
def replica(ray_cluster, request):
    """Starts replicas of an application of the test's own."""
    name, made = f"test-{time.monotonic_ns()}", []

    def begin(buckets=None, variants=None):
        made.append(Replica(name, buckets or {}, variants or {}))
        heard = Heard()
        made[-1].start(heard)
        return made[-1], heard

    begin.actor = lambda: ray.get_actor(f"agreement-{name}", NAMESPACE)
    yield begin
    for each in made:
        each.close()
    ray.kill(begin.actor())


def test_a_wish_of_one_comes_to_all_and_outlives_the_actor(replica):
    (first, _), (_, heard) = (replica(variants={SHADOW: FOLDER}) for _ in range(2))
    first.publish(CANARY, CHALLENGER)
    both = {SHADOW: FOLDER, CANARY: CHALLENGER}
    wait_until(lambda: heard.variants == both)
    lost = replica.actor()
    ray.kill(lost)
    first.publish(SHADOW, None)  # by another actor, which is told of the canary
    wait_until(lambda: heard.variants == {CANARY: CHALLENGER})
    assert replica.actor()._actor_id != lost._actor_id
    _, late = replica(variants={SHADOW: FOLDER})
    wait_until(lambda: late.variants == {CANARY: CHALLENGER})


def test_an_alias_that_moved_is_told_to_all_once(replica):
    (first, mine), (_, other) = (replica() for _ in range(2))
    first.publish(CANARY, None)
    wait_until(lambda: other.variants == {})  # it has begun
    first.ask_now()
    wait_until(lambda: other.num_questions)
    time.sleep(0.6)
    assert other.num_questions == 1 and mine.num_questions <= 2
    _, late = replica()
    time.sleep(0.6)
    assert late.num_questions == 0


def test_a_limit_is_one_for_all(replica):
    per_minute, seconds = 60_000, 4.0
    buckets = [TokenBucket(per_minute) for _ in range(2)]
    for each in buckets:
        replica({"ann": each})
    for each in buckets:
        each.pay(per_minute * 51 // 100)  # a debt of 1.2 s
    wait_until(lambda: _are_empty(buckets))
    let_in = [0, 0]

    def ask(number):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                buckets[number].pay(20)
                let_in[number] += 20
            except RateLimitError:
                time.sleep(0.002)

    asking = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
    for each in asking:
        each.start()
    for each in asking:
        each.join()
    by_one_server = per_minute / 60 * seconds
    assert 0.5 * by_one_server < sum(let_in) < 1.4 * by_one_server, let_in
    assert min(let_in) > 0


def _are_empty(buckets):
    for each in buckets:
        try:
            each.pay(0)
            return False
        except RateLimitError:
            continue
    return True


def test_what_is_newer_holds():
    """Without Ray: what an actor does that stands for one that was lost."""
    actor = SharedState()
    assert actor.exchange({}, Desired(0, {CANARY: FOLDER})) == Reply(
        {}, Desired(0, {CANARY: FOLDER}), 0
    )
    newer = Desired(4, {})
    assert actor.exchange({}, newer).desired == newer
    assert actor.exchange({}, Desired(3, {CANARY: FOLDER})).desired == newer
    left = actor.exchange({"ann": (60, 80)}, newer).left
    assert -20 <= left["ann"] < -19
    assert actor.exchange({"ann": (600, 0)}, newer).left == {"ann": 600}  # another limit


def test_who_cannot_tell_says_so(replica, monkeypatch):
    first, _ = replica()
    monkeypatch.setattr("serving.rollout.replicas._ANSWER_SECONDS", 0.0)
    with pytest.raises(UserError, match="other replicas could not be told"):
        first.publish(CANARY, CHALLENGER)


CANARY_PATH = "/admin/traffic/mood/canary"
PER_MINUTE = 6000
QUARTER = ["the cat sat on the mat " * 40] * 6
"""Of about 1,500 tokens."""


@pytest.fixture
def keys(tmp_path):
    """Headers of one who may do all, and of one with few tokens; the file of their keys."""
    path = tmp_path / "keys.json"
    admin = add_key(path, "admin", ["predict", "admin"], None)
    limited = add_key(path, "limited", ["predict"], PER_MINUTE)
    return {"X-API-Key": admin}, {"X-API-Key": limited}, path


def ask(url, method, path, headers, body=None):
    """On a connection of its own: the next request may come to the other replica."""
    response = httpx2.request(method, url + path, json=body, headers=headers, timeout=60)
    return response.status_code, response.json() if response.content else None


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_one_is_told_all_do(
    copied_registry, small_models, keys, subprocess_environment, tmp_path
):
    admin, limited, key_file = keys
    better = other_weights(small_models["sentiment"], tmp_path / "better", 2.0)
    assert copied_registry.register(better, "mood") == 2
    copied_registry.client.set_registered_model_alias("mood", "champion", "1")
    arguments = {
        "model": ["models:/mood@champion"],
        "tracking_uri": copied_registry.uri,
        "cache": str(tmp_path / "models"),
        "api_key_file": str(key_file),
    }
    two = {"num_replicas": 2, "ray_actor_options": {"num_cpus": 1}}
    with serving_on_ray(arguments, subprocess_environment, tmp_path, **two) as serving:
        url = f"http://{HOST}:{serving.port}"

        def running():
            states = serving.states("bertline").items()
            return {name for name, state in states if state == "RUNNING"}

        def versions():
            body = {"model": "mood", "inputs": "a cat"}
            told = [ask(url, "POST", "/v1/classify", admin, body) for _ in range(40)]
            return {answer["version"] for status, answer in told if status == 200}

        wait_until(lambda: len(running()) == 2, 60)
        assert versions() == {"1"}
        assert (
            ask(url, "PUT", CANARY_PATH, limited, {"model": "models:/mood/2", "share": 1.0})[0]
            == 403
        )
        status, told = ask(
            url, "PUT", CANARY_PATH, admin, {"model": "models:/mood/2", "share": 1.0}
        )
        assert (status, told["canary"]["version"]) == (200, "2")
        wait_until(lambda: versions() == {"2"}, 10)
        before = running()
        serving.replicas()[0].kill()
        wait_until(lambda: len(running()) == 2 and running() != before, 90)
        wait_until(lambda: versions() == {"2"}, 10)  # the new one has been told by the other
        assert ask(url, "DELETE", CANARY_PATH, admin)[0] == 200
        wait_until(lambda: versions() == {"1"}, 10)

        let_in, begin = 0, time.monotonic()
        statuses = []
        while time.monotonic() - begin < 12:
            status, answer = ask(url, "POST", "/v1/features", limited, {"inputs": QUARTER})
            statuses.append(status)
            let_in += sum(each["n_tokens"] for each in answer["results"]) if status == 200 else 0
            time.sleep(0.3)
        allowed = PER_MINUTE * (1 + (time.monotonic() - begin) / 60)
        largest = let_in / statuses.count(200)
        assert allowed - largest <= let_in <= allowed + 1.5 * largest, (let_in, statuses)
        assert set(statuses) == {200, 429}
