"""Workers of a run, without whole trainers: those run in test_pretrain.py."""

import os
import socket
import threading
from types import SimpleNamespace

import pytest
import ray
import torch
from ray.exceptions import RayActorError
from ray.train.torch import TorchTrainer
from ray.train.v2.jax import JaxTrainer

from bert_core.errors import UserError
from workflows.clusters import workers as ray_workers
from workflows.clusters.channel import Channel, WorkerStatus
from workflows.clusters.settings import ClusterSettings
from workflows.messages import Outcome, RunProgress


def test_cores_are_shared_out_among_the_fewest_workers():
    cores = os.cpu_count() or 1
    assert ray_workers._share_of_cores(ClusterSettings()) == cores
    assert ray_workers._share_of_cores(ClusterSettings(num_workers=(cores, 99))) == 1
    assert ray_workers._share_of_cores(ClusterSettings(tpu="v4", topology="2x2x2")) == cores, (
        "a host"
    )


@pytest.mark.ray
def test_a_leader_that_is_lost_is_said_in_one_line(ray_cluster):
    channel = ray.remote(num_cpus=0)(Channel).remote()
    workers = ray_workers.WorkersAtJobs(
        channel, ray_workers.InThread(lambda: None), ClusterSettings()
    )
    assert len(list(workers.progress(0))) == 1
    ray.kill(channel)
    with pytest.raises(RayActorError):  # it still answers until the order has reached it
        while True:
            ray.get(channel.status.remote())
    for ask in (lambda: list(workers.progress(0)), lambda: workers.outcome(0)):
        with pytest.raises(
            UserError, match=r"lost the coordinator actor .*the same command goes on"
        ):
            ask()


class LocalChannel:
    """A channel in this process, called as Ray calls an actor; `ray.get` gives back values."""

    def __init__(self):
        self.channel = Channel()

    def __getattr__(self, name):
        method = getattr(self.channel, name)
        return type("Method", (), {"remote": staticmethod(method)})


def test_a_mistake_in_a_worker_is_told_once_and_not_tried_again(monkeypatch):
    monkeypatch.setattr(ray_workers.ray, "get", lambda value: value)
    channel, calls = LocalChannel(), []
    threads = torch.get_num_threads()

    def train(config):
        calls.append(config["name"])
        assert torch.get_num_threads() == 1
        raise UserError("the disk is full", config["name"], "free some")

    payload = {
        "channel": channel,
        "config": {"name": "a"},
        "num_threads": 1,
        "train_worker": train,
        "through_xla": False,
    }
    try:
        with pytest.raises(UserError, match="the disk is full"):
            ray_workers._enter_worker(payload)
        assert ray_workers._enter_worker(payload) is None, "the one in its place does not try"
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)
    assert calls == ["a"]
    failure = channel.channel.failure()
    channel.channel.fail(UserError("another", "b", "c"))
    assert channel.channel.failure() is failure, "the first is the cause"


def test_workers_in_the_place_of_lost_ones_begin_without_news():
    channel = Channel()
    channel.begin("first")
    channel.publish(RunProgress(step=7))
    assert channel.status() == WorkerStatus({0: RunProgress(step=7)}, group="first")
    channel.begin("second")
    assert channel.status() == WorkerStatus(group="second")
    channel.end()
    assert channel.status().ended


def test_a_job_is_followed_until_the_next_begins_and_the_last_until_the_workers_go(monkeypatch):
    monkeypatch.setattr(ray_workers.ray, "get", lambda value: value)
    monkeypatch.setattr(ray_workers, "POLL_SECONDS", 0.01)
    channel, go = LocalChannel().channel, threading.Event()
    fit = ray_workers.InThread(lambda: go.wait(30) and FINISHED)
    remote = LocalChannel()
    remote.channel = channel
    workers = ray_workers.WorkersAtJobs(remote, fit, ClusterSettings())
    rank_zero = ray_workers.Worker(0, 1, torch.device("cpu"), remote)

    rank_zero.begin_job(0)
    first = workers.progress(0)
    assert next(first) == RunProgress()
    rank_zero.publish(RunProgress(step=1))
    assert next(first) == RunProgress(step=1)
    rank_zero.end_job(FINISHED.return_value[0])
    assert next(first).step == 1, "the next may not have begun"
    rank_zero.begin_job(1)
    rank_zero.publish(RunProgress(step=7))
    assert [each.step for each in first] == [1], "its last news are seen, and no other's"
    assert workers.outcome(0) == Outcome(1, stopped=False)

    channel.begin("another group")  # the workers were lost
    rank_zero.begin_job(0)
    second = workers.progress(1)
    assert next(second) == RunProgress()
    rank_zero.end_job(FINISHED.return_value[0])
    rank_zero.begin_job(1)
    rank_zero.publish(RunProgress(step=9))
    assert next(second) == RunProgress(step=9)
    workers.request_stop()
    assert channel.stop_requested()
    go.set()
    assert [each.step for each in second][-1] == 9
    assert workers.outcome(1) == Outcome(9, stopped=True), "Ray says what was not heard"
    assert workers.outcome(2) is None, "it was not begun"
    with pytest.raises(KeyboardInterrupt):
        workers.request_stop()


FINISHED = SimpleNamespace(return_value=[Outcome(1, stopped=False), Outcome(9, stopped=True)])


def test_other_ranks_say_nothing_of_jobs():
    channel = LocalChannel()
    worker = ray_workers.Worker(1, 2, torch.device("cpu"), channel)
    worker.begin_job(3)
    worker.end_job(Outcome(1, stopped=False))
    assert channel.channel.status() == WorkerStatus()


@pytest.mark.parametrize(
    ("settings", "trainer", "scaling"),
    [
        ({"num_workers": 2}, TorchTrainer, {"num_workers": 2, "use_gpu": False, "use_tpu": False}),
        ({"use_gpu": True}, TorchTrainer, {"use_gpu": True}),
        (
            {"tpu": "v5e", "topology": "4x4", "num_slices": [1, 2], "cpus_per_worker": 3},
            JaxTrainer,
            {
                "num_workers": (4, 8),
                "use_tpu": True,
                "topology": "4x4",
                "accelerator_type": "TPU-V5LITEPOD",
                "resources_per_worker": {"CPU": 3, "TPU": 4},
            },
        ),
    ],
)
def test_what_is_asked_of_ray_for_a_tpu_is_a_host_each(tmp_path, settings, trainer, scaling):
    made = ray_workers._trainer({}, ClusterSettings(**settings), tmp_path)
    assert type(made) is trainer
    assert {name: getattr(made.scaling_config, name) for name in scaling} == scaling
    assert made.run_config.failure_config.max_failures == 3


def test_a_free_address_can_be_listened_at():
    host, port = ray_workers.free_address().rsplit(":", 1)
    with socket.create_server(("", int(port))):
        socket.create_connection((host.strip("[]"), int(port)), 5).close()


def test_hosts_of_a_tpu_agree_over_a_group_of_their_own(monkeypatch):
    joined = []
    monkeypatch.setattr(ray_workers, "broadcast_from_rank_zero", lambda said: said or "there:1")
    monkeypatch.setattr(ray_workers, "free_address", lambda: "here:1")
    monkeypatch.setattr(
        ray_workers.dist, "init_process_group", lambda kind, **how: joined.append((kind, how))
    )
    monkeypatch.setattr(ray_workers.dist, "destroy_process_group", lambda: joined.append("left"))
    for rank, world_size, through_xla in ((0, 2, True), (1, 2, True), (0, 1, True), (0, 2, False)):
        worker = ray_workers.Worker(
            rank, world_size, torch.device("cpu"), None, through_xla=through_xla
        )
        with ray_workers._host_group(worker):
            pass
    first, left, second, again = joined
    assert first == ("gloo", {"init_method": "tcp://here:1", "rank": 0, "world_size": 2})
    assert second == ("gloo", {"init_method": "tcp://there:1", "rank": 1, "world_size": 2})
    assert left == again == "left", "one alone has nobody to agree with, and torch has its own"


STOPPED = Outcome(4, stopped=True)


def test_workers_that_leave_for_others_are_no_end_of_a_job():
    channel = Channel()
    channel.begin("first")
    channel.leave("an earlier group")
    assert not channel.stop_requested(), "it has gone already"
    channel.leave("first")
    assert channel.stop_requested()
    channel.end_job(STOPPED)
    channel.end()
    assert not channel.status().outcomes and not channel.status().ended
    assert channel.begin_again() and not channel.begin_again()
    channel.begin("second")
    assert not channel.stop_requested()
    channel.leave("second")
    channel.begin("in the place of lost ones")
    assert not channel.stop_requested(), "they need not leave once more"
    channel.leave("in the place of lost ones")
    channel.end_job(Outcome(9, stopped=False))
    assert channel.status().outcomes == {0: Outcome(9, stopped=False)}


def test_a_request_to_stop_or_a_mistake_is_an_end_for_workers_that_leave_too():
    channel = Channel()
    channel.begin("first")
    channel.leave("first")
    channel.request_stop()
    channel.end_job(STOPPED)
    channel.end()
    assert channel.status().outcomes == {0: STOPPED} and channel.status().ended
    assert not channel.begin_again()
    channel = Channel()
    channel.begin("first")
    channel.leave("first")
    channel.fail(UserError("a", "b", "c"))
    assert not channel.begin_again()


def test_groups_follow_each_other_until_the_last_job_is_done(monkeypatch, tmp_path):
    monkeypatch.setattr(ray_workers.ray, "get", lambda value: value)
    monkeypatch.setattr(ray_workers, "within_room", lambda settings: settings)
    channel, settings = LocalChannel(), ClusterSettings()
    payload = {"channel": channel, "config": {"jobs": ["a", "b"]}}
    returned = []

    def fit():
        channel.channel.begin("group")
        channel.channel.leave("group")
        return SimpleNamespace(return_value=returned.pop(0))

    monkeypatch.setattr(ray_workers, "_trainer", lambda *_: SimpleNamespace(fit=fit))
    done = Outcome(9, stopped=False)
    returned += [[STOPPED], [done], [done, STOPPED], [done, done], "one too many"]
    assert ray_workers._fit_in_groups(payload, settings, tmp_path).return_value == [done, done]
    assert returned == ["one too many"], "left before, in and between the jobs, and none after"
    channel.channel.request_stop()
    returned[:] = [[STOPPED], "one too many"]
    assert ray_workers._fit_in_groups(payload, settings, tmp_path).return_value == [STOPPED]
    channel.channel.fail(UserError("a", "b", "c"))
    returned[:] = [None, "one too many"]
    assert ray_workers._fit_in_groups(payload, settings, tmp_path).return_value is None


def test_the_driver_says_why_workers_leave_while_nothing_else_is_waited_for(monkeypatch):
    monkeypatch.setattr(ray_workers.ray, "get", lambda value: value)
    monkeypatch.setattr(ray_workers, "POLL_SECONDS", 0.01)
    go = threading.Event()
    fit = ray_workers.InThread(lambda: go.wait(30))
    workers = ray_workers.WorkersAtJobs(
        LocalChannel(), fit, ClusterSettings(), lambda: "a node goes"
    )
    progress = workers.progress(0)
    assert next(progress).waiting == "a node goes"
    go.set()
    assert list(progress)[-1].waiting == ""
