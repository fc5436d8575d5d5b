"""Replicas on Ray: they share a watcher and agree on variants and keys."""

import subprocess
import sys
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
    NodeWatcher,
    Replica,
    Reply,
    SharedState,
)
from serving.rollout.watcher import WatchSettings

pytestmark = pytest.mark.ray


def test_it_ends_when_nobody_has_asked_for_a_while():
    script = """if True:
        import time
        from serving.rollout.replicas import IdleExit
        until = IdleExit(lambda: print("ended", flush=True), seconds=0.6)
        for _ in range(2):
            time.sleep(0.4)
            until.note()
        print("noted", flush=True)
        time.sleep(60)
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=50)
    assert (done.returncode, done.stdout.split()) == (0, [b"noted", b"ended"])


CHAMPION = Address("people", "champion", None)


@pytest.fixture
def watch(tmp_path, ray_cluster):
    """What a replica has of the watcher, with a cache of the test's own."""
    made = []

    def begin(uri, *addresses):
        order = WatchSettings(addresses or (CHAMPION,), uri, tmp_path / "models", 600.0)
        made.append(NodeWatcher(order))
        made[-1].start()
        return made[-1]

    yield begin
    for each in made:
        each.close()
    for each in watchers():
        ray.kill(ray.get_actor(each["name"], each["namespace"]))


def watchers():
    """The watchers there are, by name; others' tests leave actors of their own."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    return [each for each in actors if each["namespace"] == NAMESPACE]


@pytest.mark.slow
def test_replicas_share_one_that_asks_when_told_and_comes_back_when_it_is_lost(
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
    copied_registry.register(small_models["topics"], "people", "champion")
    second.ask_now()
    wait_until(lambda: read_pointer(path).version == 2)
    ray.kill(ray.get_actor(one["name"], one["namespace"]))
    copied_registry.register(small_models["grade"], "people", "champion")
    copied_registry.register(small_models["paraphrase"], "mood", "champion")
    wait_until(lambda: read_pointer(path).version == 3 and read_pointer(*added).version == 2)
    assert len(watchers()) == 1
    with pytest.raises(UserError, match="no model models:/people@nobody"):
        watch(copied_registry.uri, Address("people", "nobody", None))


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


PER_MINUTE = 60_000


@pytest.fixture(scope="module")
def start_replica(ray_cluster):
    """Starts replicas of one application with a shadow, each with tokens of a key."""
    name, made = f"test-{time.monotonic_ns()}", []

    def begin():
        made.append(Replica(name, {"ann": TokenBucket(PER_MINUTE)}, {SHADOW: FOLDER}))
        heard = Heard()
        made[-1].start(heard)
        return made[-1], heard

    begin.actor = lambda: ray.get_actor(f"agreement-{name}", NAMESPACE)
    yield begin
    for replica in made:
        replica.close()
    ray.kill(begin.actor())


@pytest.fixture(scope="module")
def two(start_replica):
    """Two replicas that have begun to exchange, each with what it has heard."""
    (first, mine), (second, other) = (start_replica() for _ in range(2))
    first.publish(CANARY, None)
    wait_until(lambda: other.variants == {SHADOW: FOLDER})
    return (first, mine), (second, other)


def test_an_alias_that_moved_is_told_to_all_once(two, start_replica):
    (first, mine), (_, other) = two
    first.ask_now()
    wait_until(lambda: other.num_questions)
    _, late = start_replica()
    time.sleep(0.6)
    assert other.num_questions == 1 and mine.num_questions <= 2 and late.num_questions == 0


def test_a_limit_is_one_for_all(two):
    seconds = 2.0
    buckets = [replica._buckets["ann"] for replica, _ in two]
    for bucket in buckets:
        bucket.pay(PER_MINUTE * 51 // 100)  # a debt of 1.2 s
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
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    by_one_server = PER_MINUTE / 60 * seconds
    assert 0.25 * by_one_server < sum(let_in) < 1.4 * by_one_server, let_in
    assert min(let_in) > 0


def test_a_wish_of_one_comes_to_all_and_outlives_the_actor(two, start_replica):
    (first, _), (_, heard) = two
    first.publish(CANARY, CHALLENGER)
    both = {SHADOW: FOLDER, CANARY: CHALLENGER}
    wait_until(lambda: heard.variants == both)
    lost = start_replica.actor()
    ray.kill(lost)
    first.publish(SHADOW, None)  # by another actor, which is told of the canary
    wait_until(lambda: heard.variants == {CANARY: CHALLENGER})
    assert start_replica.actor()._actor_id != lost._actor_id
    _, late = start_replica()
    wait_until(lambda: late.variants == {CANARY: CHALLENGER})


def test_who_cannot_tell_says_so(two, start_replica, monkeypatch):
    (first, _), _ = two
    monkeypatch.setattr("serving.rollout.replicas._ANSWER_SECONDS", 0.1)
    start_replica.actor().__ray_call__.remote(lambda _: time.sleep(2))  # it answers nobody
    with pytest.raises(UserError, match="other replicas could not be told"):
        first.publish(CANARY, CHALLENGER)


def _are_empty(buckets):
    for bucket in buckets:
        try:
            bucket.pay(0)
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


CANARY_PATH = "/admin/traffic/mood/canary"
FEW = 6000
QUARTER = ["the cat sat on the mat " * 40] * 6
"""Of about 1,500 tokens."""


@pytest.fixture
def keys(tmp_path):
    """Headers of one who may do all, and of one with few tokens; the file of their keys."""
    path = tmp_path / "keys.json"
    admin = add_key(path, "admin", ["predict", "admin"], None)
    limited = add_key(path, "limited", ["predict"], FEW)
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
        wish = {"model": "models:/mood/2", "share": 1.0}
        assert ask(url, "PUT", CANARY_PATH, limited, wish)[0] == 403
        status, told = ask(url, "PUT", CANARY_PATH, admin, wish)
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
            let_in += (
                sum(result["n_tokens"] for result in answer["results"]) if status == 200 else 0
            )
            time.sleep(0.3)
        allowed = FEW * (1 + (time.monotonic() - begin) / 60)
        largest = let_in / statuses.count(200)
        assert allowed - largest <= let_in <= allowed + 1.5 * largest, (let_in, statuses)
        assert set(statuses) == {200, 429}
