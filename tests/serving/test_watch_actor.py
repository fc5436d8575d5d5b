"""The watcher of a node, which its replicas share."""

import time

import pytest
import ray

from bert_core.errors import UserError
from serving import watch_actor
from serving.pointers import Address, read_pointer
from serving.watch_actor import NodeWatch
from serving.watch_process import WatchOrder

CHAMPION = Address("people", "champion", None)


@pytest.fixture
def watch(tmp_path, ray_cluster):
    """What a replica has of the watcher, with a cache of the test's own."""
    made = []

    def begin(uri, *more, addresses=(CHAMPION,), poll_seconds=0.2):
        order = WatchOrder(more or addresses, uri, tmp_path / "models", poll_seconds)
        made.append(NodeWatch(order))
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


def wait_until(holds, seconds=60):
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.ray
def test_replicas_share_one_that_comes_back_when_it_is_lost(
    watch, copied_registry, small_models, monkeypatch
):
    monkeypatch.setattr(watch_actor, "_ASK_SECONDS", 0.2)
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


@pytest.mark.ray
def test_what_was_added_to_none_is_looked_at_when_told(watch, copied_registry, small_models):
    node = watch(copied_registry.uri, addresses=(), poll_seconds=600.0)
    node.look()
    path = node.add(CHAMPION)
    assert read_pointer(path).version == 1 and node.pointers == {CHAMPION: path}
    copied_registry.register(small_models["topics"], "people", "champion")
    node.look()
    wait_until(lambda: read_pointer(path).version == 2)
