"""When workers leave for other nodes, on made-up nodes; test_multi_node.py has real ones."""

import threading
from types import SimpleNamespace

import pytest
from ray.exceptions import RayActorError

from workflows.clusters import regrouping
from workflows.clusters.regrouping import NodeWatch, Regrouping, places, within_room
from workflows.clusters.settings import ClusterSettings

ELASTIC = ClusterSettings(num_workers=(1, 3), cpus_per_worker=2)
TPU = ClusterSettings(tpu="v4", topology="2x2x2", num_slices=(1, 2))


@pytest.fixture
def nodes(monkeypatch):
    """Makes Ray say what stands here: the time, free and whole CPUs by node, the workers' nodes."""
    said = SimpleNamespace(
        time=1000.0, free={}, total={}, draining={}, holds=["here"], state="CREATED", labels={}
    )

    def table():
        places = dict(enumerate(said.holds))
        return {"group": {"state": said.state, "bundles_to_node_id": places}}

    def listed():
        return [
            {"NodeID": node, "NodeManagerAddress": f"10.0.0.{number}", "Labels": labels}
            for number, (node, labels) in enumerate(said.labels.items())
        ]

    monkeypatch.setattr(regrouping, "placement_group_table", table)
    monkeypatch.setattr(regrouping, "available_resources_per_node", lambda: said.free)
    monkeypatch.setattr(regrouping, "total_resources_per_node", lambda: said.total)
    monkeypatch.setattr(regrouping.state, "get_draining_nodes", lambda: said.draining)
    monkeypatch.setattr(regrouping.ray, "nodes", listed)
    monkeypatch.setattr(regrouping.time, "monotonic", lambda: said.time)
    return said


def after(nodes, decide, seconds):
    """What is decided so many seconds later, looking every second."""
    for _ in range(seconds):
        nodes.time += 1
        if reason := decide.reason("group"):
            return reason
    return ""


def test_workers_leave_a_node_that_is_about_to_go_and_no_other(nodes):
    nodes.labels = {"here": {}, "there": {}}
    nodes.draining = {"there": 0}
    decide = Regrouping(ClusterSettings())
    assert after(nodes, decide, 3) == ""
    nodes.holds = ["here", "there"]
    assert decide.reason("group").startswith("node 10.0.0.1 is about to go")
    assert decide.reason("another group") == ""
    nodes.state = "RESCHEDULING"
    assert decide.reason("group") == "", "they are lost, and others take their place"


def test_more_workers_begin_when_there_has_been_room_for_a_while(nodes):
    decide = Regrouping(ELASTIC)
    nodes.free = {"here": {"CPU": 1.0}, "there": {"CPU": 5.0}}
    assert after(nodes, decide, 29) == ""
    nodes.free = {"there": {"CPU": 1.0}}  # somebody else has taken it
    assert after(nodes, decide, 5) == ""
    nodes.free = {"there": {"CPU": 5.0}}
    assert after(nodes, decide, 30) == ""
    assert after(nodes, decide, 2).startswith("there is room for 3 workers")


def test_room_that_turned_out_to_be_none_is_tried_less_and_less_often(nodes):
    decide = Regrouping(ELASTIC)
    nodes.free = {"there": {"CPU": 2.0}}
    waits = []
    for _ in range(3):
        begin = nodes.time
        assert "room for 2 workers" in after(nodes, decide, 1000)
        waits.append(nodes.time - begin)
    assert waits[0] == pytest.approx(30, abs=2)
    assert waits[1] == pytest.approx(60, abs=2) and waits[2] == pytest.approx(120, abs=2)
    nodes.holds = ["here", "there"]
    begin = nodes.time
    assert "room for 3 workers" in after(nodes, decide, 1000)
    assert nodes.time - begin < 35, "once it has come true, the next is as soon as the first"


def test_there_are_never_more_workers_than_asked_for_nor_on_a_node_that_goes(nodes):
    nodes.free = {"there": {"CPU": 50.0}, "going": {"CPU": 50.0}}
    assert "room for 3 workers" in after(nodes, Regrouping(ELASTIC), 100)
    assert after(nodes, Regrouping(ClusterSettings(cpus_per_worker=2)), 100) == ""
    nodes.holds = ["here"] * 3
    assert after(nodes, Regrouping(ELASTIC), 100) == ""
    nodes.holds, nodes.free = ["here"], {"going": {"CPU": 50.0}}
    nodes.draining = {"going": 123}
    assert after(nodes, Regrouping(ELASTIC), 100) == ""


@pytest.mark.parametrize(
    ("draining", "expected"),
    [({}, (1, 3)), ({"a": 1}, (1, 2)), ({"b": 1}, (1, 1)), ({"a": 1, "b": 1}, (1, 1))],
)
def test_a_group_starts_with_those_that_fit_on_nodes_that_stay(nodes, draining, expected):
    nodes.total = {"a": {"CPU": 2.0}, "b": {"CPU": 5.0}, "head": {"memory": 1e9}}
    nodes.draining = draining
    assert within_room(ELASTIC).num_workers == expected
    assert within_room(ClusterSettings(num_workers=2)).num_workers == 2, "it waits for them"


def test_places_need_each_kind_of_resource():
    settings = ClusterSettings(use_gpu=True, cpus_per_worker=4)
    assert places(settings, {"a": {"CPU": 9.0, "GPU": 8.0}, "b": {"CPU": 64.0}}) == 2
    assert places(settings, {"a": {"CPU": 64.0, "GPU": 3.0}, "b": {"CPU": 4.0, "GPU": 1.0}}) == 4
    assert places(ClusterSettings(cpus_per_worker=0.1), {"a": {"CPU": 0.3}}) == 3


def test_of_a_tpu_only_whole_slices_count(nodes):
    def host_of(name, pod_type="v4-16"):
        return {regrouping.SLICE_LABEL: name, regrouping.POD_TYPE_LABEL: pod_type}

    nodes.labels = {"a": host_of("one"), "b": host_of("one"), "c": host_of("two"), "d": {}}
    host = {"CPU": 8.0, "TPU": 4.0}
    assert places(TPU, dict.fromkeys("abcd", host)) == 2
    assert places(TPU, dict.fromkeys("acd", host)) == 0
    nodes.labels["d"] = host_of("two")
    assert places(TPU, dict.fromkeys("abcd", host)) == 4
    assert places(TPU, dict.fromkeys("abc", host) | {"d": {"CPU": 8.0}}) == 2
    nodes.labels |= {"c": host_of("two", "v4-32"), "d": host_of("two", "v4-32")}
    assert places(TPU, dict.fromkeys("abcd", host)) == 2, "two hosts of a larger slice are none"


@pytest.fixture
def watched(nodes):
    """A watch whose workers' group can be set, and the groups that were asked to leave."""
    now, left = SimpleNamespace(group="group"), []
    return now, left, NodeWatch(ELASTIC, lambda: now.group, left.append)


def test_a_group_is_asked_once_and_the_reason_stands_until_the_next_begins(nodes, watched):
    now, left, watch = watched
    nodes.labels, now.group = {"here": {}}, None
    nodes.draining = {"here": 1}
    watch.look()
    assert not left and not watch.reason, "nobody has begun"
    now.group = "group"
    watch.look()
    nodes.draining = {}
    watch.look()
    assert left == ["group"] and "is about to go" in watch.reason
    now.group = "next"
    watch.look()
    assert left == ["group"] and watch.reason == ""


def test_the_watch_goes_on_where_ray_does_not_answer(monkeypatch, nodes, watched):
    monkeypatch.setattr(regrouping, "LOOK_SECONDS", 0.01)
    _, left, watch = watched
    nodes.labels, nodes.draining = {"here": {}}, {"here": 1}
    calls, asked = [], threading.Event()

    def group():
        calls.append(1)
        if len(calls) < 3:
            raise RayActorError
        return "group"

    watch._group, watch._leave = group, lambda name: (left.append(name), asked.set())
    with watch:
        assert asked.wait(10)
    watch._thread.join(10)
    assert left == ["group"] and not watch._thread.is_alive()
