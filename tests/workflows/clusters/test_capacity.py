"""A cluster's capacity: what is missing is named; test_pretrain_tpu.py has simulated TPU nodes."""

import time

import pytest
import ray
from ray.util import placement_group, remove_placement_group

from bert_core import errors
from bert_core.errors import UserError
from workflows.clusters import capacity
from workflows.clusters.capacity import Waiting, join_cluster_with_room
from workflows.clusters.channel import WorkerStatus
from workflows.clusters.settings import ClusterSettings
from workflows.messages import RunProgress


@pytest.fixture
def impatient(monkeypatch, ray_cluster):
    monkeypatch.setattr(capacity, "QUIET_SECONDS", 0.3)
    monkeypatch.setattr(capacity, "LOOK_SECONDS", 0.1)


@pytest.fixture
def reserve():
    """Reserves CPUs as Ray Train does, and gives them back."""
    groups = []

    def reserve(*cpus, wait=True):
        groups.append(placement_group([{"CPU": number} for number in cpus]))
        if wait:
            assert groups[-1].wait(60)
        return groups[-1]

    yield reserve
    for group in groups:
        remove_placement_group(group)


def seen(waiting, status, wanted):
    """The text, as soon as it is what is wanted: what nodes have free is known a little late."""
    end = time.monotonic() + 30
    while not (text := waiting.text(status)).startswith(wanted):
        assert time.monotonic() < end, f"{text!r} is not {wanted!r}"
        time.sleep(0.05)
    return text


@pytest.mark.ray
def test_more_workers_than_this_machine_holds_are_refused(impatient):
    join_cluster_with_room(ClusterSettings(num_workers=2))
    join_cluster_with_room(ClusterSettings(num_workers=(1, 50)))
    with pytest.raises(UserError, match=r"3 workers need 3 CPU: Ray sees 2 \(lower --cluster"):
        join_cluster_with_room(ClusterSettings(num_workers=3))
    with pytest.raises(UserError, match="2 workers need 8 CPU"):
        join_cluster_with_room(ClusterSettings(num_workers=2, cpus_per_worker=4))
    with pytest.raises(UserError, match="1 worker needs 1 GPU: Ray sees 0"):
        join_cluster_with_room(ClusterSettings(use_gpu=True))


@pytest.mark.ray
def test_a_cluster_that_is_busy_is_waited_for(impatient, reserve):
    other = ray.remote(num_cpus=1)(Other).remote()
    ray.get(other.ready.remote())
    waiting = Waiting(ClusterSettings(num_workers=2))
    assert waiting.text(WorkerStatus()) == "", "not at once"
    text = seen(waiting, WorkerStatus(), "waiting for 2 workers (2 CPU); Ray has 1 CPU free  ")
    assert text.endswith(" s")
    reserve(1, 1, wait=False)
    seen(waiting, WorkerStatus(), "waiting for 2 workers (2 CPU); Ray has 1 CPU free")
    assert not waiting.at_work
    elastic = Waiting(ClusterSettings(num_workers=(2, 8)))
    seen(elastic, WorkerStatus(), "waiting for at least 2 workers (2 CPU); Ray has 1 CPU free")
    ray.kill(other)
    seen(waiting, WorkerStatus(), "starting 2 workers")


class Other:
    """Work of somebody else."""

    def ready(self):
        return True


@pytest.mark.ray
def test_workers_that_start_are_waited_for_until_they_have_begun(impatient, reserve):
    waiting = Waiting(ClusterSettings(num_workers=1))
    seen(waiting, WorkerStatus(), "starting Ray Train")
    group = reserve(1)
    seen(waiting, WorkerStatus(), "starting 1 worker")
    begun = WorkerStatus(group=group.id.hex())
    seen(waiting, begun, "")
    time.sleep(0.5)
    assert waiting.text(begun) == "" and waiting.at_work, (
        "it may say nothing for as long as it has to"
    )
    remove_placement_group(group)
    seen(waiting, begun, "starting Ray Train")
    assert not waiting.at_work
    reserve(1)
    seen(waiting, begun, "starting 1 worker")
    assert waiting.text(WorkerStatus(ended=True)) == ""


@pytest.mark.ray
def test_progress_ends_the_wait(impatient):
    waiting = Waiting(ClusterSettings())
    seen(waiting, WorkerStatus(), "starting Ray Train")
    assert waiting.text(WorkerStatus({0: RunProgress(step=1)})) == "" and waiting.at_work
    assert waiting.text(WorkerStatus({0: RunProgress(step=1)})) == "", "not at once"


HEAD = {
    "Alive": True,
    "NodeManagerAddress": "10.0.0.1",
    "Resources": {"CPU": 8.0, "memory": 1e9, "node:10.0.0.1": 1.0},
    "Labels": {},
}
HOST = {
    "Alive": True,
    "NodeManagerAddress": "10.0.0.2",
    "Resources": {"CPU": 24.0, "TPU": 4.0, "TPU-v4-16-head": 1.0, "accelerator_type:TPU-V4": 1.0},
    "Labels": {
        "ray.io/tpu-slice-name": "slice-0",
        "ray.io/tpu-worker-id": "0",
        "ray.io/tpu-pod-type": "v4-16",
        "ray.io/tpu-topology": "2x2x2",
    },
}
SECOND = HOST | {
    "NodeManagerAddress": "10.0.0.3",
    "Resources": {"CPU": 24.0, "TPU": 4.0, "accelerator_type:TPU-V4": 1.0},
    "Labels": HOST["Labels"] | {"ray.io/tpu-worker-id": "1"},
}


@pytest.fixture
def cluster(monkeypatch):
    """Makes Ray say that it has these nodes."""
    monkeypatch.setattr(capacity.ray, "is_initialized", lambda: True)

    def of(*nodes):
        monkeypatch.setattr(capacity.ray, "nodes", lambda: list(nodes))

    return of


def wanted(num_slices=1):
    return ClusterSettings(tpu="v4", topology="2x2x2", num_slices=num_slices)


def test_without_a_tpu_it_is_said_what_ray_sees(cluster):
    cluster(HEAD, HOST | {"Alive": False})
    with pytest.raises(UserError, match=r"^no TPU found: Ray sees 10\.0\.0\.1 with 8 CPU \(join"):
        capacity.refuse_missing_slices(wanted())


def test_part_of_a_slice_is_none(cluster):
    cluster(HEAD, HOST)
    with pytest.raises(UserError, match="0 whole TPU slices v4 2x2x2 found, 1 needed") as caught:
        capacity.refuse_missing_slices(wanted())
    assert caught.value.where == (
        "Ray sees 10.0.0.1 with 8 CPU; 10.0.0.2 with 24 CPU, 4 TPU, 1 TPU-v4-16-head, "
        "1 accelerator_type:TPU-V4, in slice slice-0 of 2x2x2"
    )
    other = HOST["Labels"] | {"ray.io/tpu-slice-name": "slice-1"}
    cluster(HEAD, HOST, SECOND | {"Labels": other})
    with pytest.raises(UserError, match="0 whole TPU slices"):
        capacity.refuse_missing_slices(wanted())


def test_as_many_slices_as_are_needed_are_enough(cluster):
    cluster(HEAD, HOST, SECOND)
    capacity.refuse_missing_slices(wanted())
    capacity.refuse_missing_slices(wanted([1, 2]))
    with pytest.raises(UserError, match="1 whole TPU slices v4 2x2x2 found, 2 needed"):
        capacity.refuse_missing_slices(wanted(2))


def test_a_large_cluster_is_not_listed_to_the_end(cluster):
    cluster(*[HEAD] * 20)
    with pytest.raises(UserError) as caught:
        capacity.refuse_missing_slices(wanted())
    assert caught.value.where.count("10.0.0.1") == 8 and caught.value.where.endswith("12 more")


def test_a_missing_extra_is_named_before_anything_starts(monkeypatch):
    monkeypatch.setattr(errors, "find_spec", lambda name: None if name == "optax" else object())
    with pytest.raises(UserError, match=r"needs optax: .*pip install -e '\.\[tpu\]'"):
        capacity.refuse_missing_packages()
    monkeypatch.setattr(errors, "find_spec", lambda _: object())
    capacity.refuse_missing_packages()
