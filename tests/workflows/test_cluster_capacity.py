import time

import pytest
import ray
from ray.util import placement_group, remove_placement_group

from bert_core.errors import UserError
from workflows import cluster_capacity
from workflows.cluster_capacity import Waiting, WorkerStatus, join_cluster_with_room
from workflows.cluster_settings import ClusterSettings
from workflows.messages import RunProgress

pytestmark = pytest.mark.ray


@pytest.fixture(autouse=True)
def impatient(monkeypatch, ray_cluster):
    monkeypatch.setattr(cluster_capacity, "QUIET_SECONDS", 0.3)
    monkeypatch.setattr(cluster_capacity, "LOOK_SECONDS", 0.1)


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


def test_more_workers_than_this_machine_holds_are_refused():
    join_cluster_with_room(ClusterSettings(num_workers=2))
    join_cluster_with_room(ClusterSettings(num_workers=(1, 50)))
    with pytest.raises(UserError, match=r"3 workers need 3 CPU: Ray sees 2 \(lower --cluster"):
        join_cluster_with_room(ClusterSettings(num_workers=3))
    with pytest.raises(UserError, match="2 workers need 8 CPU"):
        join_cluster_with_room(ClusterSettings(num_workers=2, cpus_per_worker=4))
    with pytest.raises(UserError, match="1 worker needs 1 GPU: Ray sees 0"):
        join_cluster_with_room(ClusterSettings(use_gpu=True))


def test_a_cluster_that_is_busy_is_waited_for(reserve):
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


def test_workers_that_start_are_waited_for_until_they_have_begun(reserve):
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


def test_news_end_the_wait():
    waiting = Waiting(ClusterSettings())
    seen(waiting, WorkerStatus(), "starting Ray Train")
    assert waiting.text(WorkerStatus({0: RunProgress(step=1)})) == "" and waiting.at_work
    assert waiting.text(WorkerStatus({0: RunProgress(step=1)})) == "", "not at once"
