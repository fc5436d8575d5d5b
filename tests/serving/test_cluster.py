"""Replicas of an application agree through an actor, and go on where that is lost."""

import threading
import time
from pathlib import Path

import pytest
import ray

from bert_core.errors import UserError
from serving.cluster import Agreed, Agreement, Replica, Wish
from serving.model_sources import SharedSource
from serving.pointers import Address
from serving.shared_actor import NAMESPACE
from serving.token_bucket import RateLimitError, TokenBucket

pytestmark = pytest.mark.ray
CANARY = ("canary", "mood")
SHADOW = ("shadow", "mood")
CHALLENGER = SharedSource(Address("mood", "challenger", None), 0.1)
FOLDER = SharedSource(Path("/models/mood"), 1.0)


class Heard:
    """A server that notes what it is told."""

    def __init__(self):
        self.beside, self.num_looks = None, 0

    def want(self, beside):
        self.beside = dict(beside)

    def look(self):
        self.num_looks += 1


@pytest.fixture
def replica(ray_cluster, request):
    """Starts replicas of an application of the test's own."""
    name, made = f"test-{time.monotonic_ns()}", []

    def begin(buckets=None, beside=None):
        made.append(Replica(name, buckets or {}, beside or {}))
        heard = Heard()
        made[-1].start(heard)
        return made[-1], heard

    begin.actor = lambda: ray.get_actor(f"agreement-{name}", NAMESPACE)
    yield begin
    for each in made:
        each.close()
    ray.kill(begin.actor())


def wait_until(holds, seconds=20):
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_wish_of_one_comes_to_all_and_outlives_the_actor(replica):
    (first, _), (_, heard) = (replica(beside={SHADOW: FOLDER}) for _ in range(2))
    first.publish(CANARY, CHALLENGER)
    both = {SHADOW: FOLDER, CANARY: CHALLENGER}
    wait_until(lambda: heard.beside == both)
    lost = replica.actor()
    ray.kill(lost)
    first.publish(SHADOW, None)  # by another actor, which is told of the canary
    wait_until(lambda: heard.beside == {CANARY: CHALLENGER})
    assert replica.actor()._actor_id != lost._actor_id
    _, late = replica(beside={SHADOW: FOLDER})
    wait_until(lambda: late.beside == {CANARY: CHALLENGER})


def test_an_alias_that_moved_is_told_to_all_once(replica):
    (first, mine), (_, other) = (replica() for _ in range(2))
    first.publish(CANARY, None)
    wait_until(lambda: other.beside == {})  # it has begun
    first.look()
    wait_until(lambda: other.num_looks)
    time.sleep(0.6)
    assert other.num_looks == 1 and mine.num_looks <= 2
    _, late = replica()
    time.sleep(0.6)
    assert late.num_looks == 0


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
    actor = Agreement()
    assert actor.exchange({}, Wish(0, {CANARY: FOLDER})) == Agreed({}, Wish(0, {CANARY: FOLDER}), 0)
    newer = Wish(4, {})
    assert actor.exchange({}, newer).wish == newer
    assert actor.exchange({}, Wish(3, {CANARY: FOLDER})).wish == newer
    left = actor.exchange({"ann": (60, 80)}, newer).left
    assert -20 <= left["ann"] < -19
    assert actor.exchange({"ann": (600, 0)}, newer).left == {"ann": 600}  # another limit


def test_who_cannot_tell_says_so(replica, monkeypatch):
    first, _ = replica()
    monkeypatch.setattr("serving.cluster._ANSWER_SECONDS", 0.0)
    with pytest.raises(UserError, match="other replicas could not be told"):
        first.publish(CANARY, CHALLENGER)
