"""Joining a cluster, tasks on it, and folders that its nodes cannot reach."""

import errno
import functools
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

from bert_core.errors import UserError
from workflows.clusters import tasks
from workflows.clusters.tasks import connect, refuse_folder_out_of_reach, run_tasks
from workflows.output_folder import WorkKeptError

REPOSITORY = Path(__file__).parents[3]


def square(number):
    return number * number


def refuse(number):
    raise UserError("wrong number", str(number), "give another")


def fill_the_disk(number):
    raise OSError(errno.ENOSPC, "No space left on device", f"/disk/{number}")


def crash(number):
    raise ZeroDivisionError(number)


def doze(seconds):
    time.sleep(seconds)


def calls_of(function, num_calls):
    import ray

    task = ray.remote(num_cpus=1)(function)
    return [functools.partial(task.remote, number) for number in range(num_calls)]


@pytest.mark.ray
@pytest.mark.parametrize("num_workers", [None, 1, 3])
def test_every_call_gives_its_result_once(ray_cluster, num_workers):
    connect()  # changes nothing where Ray runs already
    found = list(run_tasks(calls_of(square, 20), num_workers))
    assert sorted(found) == [(number, number * number) for number in range(20)]
    assert list(run_tasks([])) == []


@pytest.mark.ray
def test_no_more_than_asked_for_are_submitted(ray_cluster):
    started = []
    calls = [
        functools.partial(lambda call, n: started.append(n) or call(), call, number)
        for number, call in enumerate(calls_of(square, 10))
    ]
    for done, _ in enumerate(run_tasks(calls, 2), start=1):
        assert len(started) <= done + 1


@pytest.mark.ray
def test_a_users_mistake_arrives_as_it_is(ray_cluster):
    with pytest.raises(UserError, match=r"^wrong number: 0 \(give another\)$"):
        list(run_tasks(calls_of(refuse, 1)))
    with pytest.raises(WorkKeptError, match="the disk is full: /disk/0"):
        list(run_tasks(calls_of(fill_the_disk, 1)))
    with pytest.raises(ZeroDivisionError):
        list(run_tasks(calls_of(crash, 1)))


@pytest.mark.ray
def test_the_driver_is_told_while_it_waits(ray_cluster):
    told = []
    list(run_tasks(calls_of(doze, 3), 1, lambda: told.append(time.monotonic())))
    assert len(told) >= 5 and max(b - a for a, b in itertools.pairwise(told)) < 1.5


GROWING = """
import functools, time, ray
from ray.cluster_utils import Cluster
from workflows.clusters.tasks import connect, run_tasks

def here(number):
    return ray.get_runtime_context().get_node_id()

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
ray.init(address=cluster.address, log_to_driver=False)
started = []
task = ray.remote(num_cpus=1)(here)
calls = [functools.partial(lambda n: started.append(n) or task.remote(n), n) for n in range(20)]
begun, start, grown = 0, time.monotonic(), []

def grow():
    if time.monotonic() > start + 5 and not grown:
        print("submitted before a node came", len(started))
        grown.append(cluster.add_node(num_cpus=4))

for done, _ in enumerate(run_tasks(calls, while_waiting=grow), start=1):
    begun = max(begun, len(started) - done + 1)
print("at a time", begun, "done", done)
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.ray
@pytest.mark.slow
def test_a_cluster_without_cpus_is_waited_for_and_used_when_it_grows(subprocess_environment):
    done = subprocess.run(
        [sys.executable, "-c", GROWING],
        env=subprocess_environment | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("waiting for a node with CPUs; Ray has none\n") == 1
    assert "submitted before a node came 2" in done.stdout
    assert "at a time 8 done 20" in done.stdout


CONNECT = (
    "import sys; from bert_core.errors import UserError; "
    "from workflows.clusters.tasks import connect\n"
    "try:\n    connect()\nexcept UserError as error:\n    sys.exit(error.remedy)"
)


@pytest.mark.slow  # Ray asks for 15 s before it gives up
@pytest.mark.ray
def test_the_remedies_for_a_cluster_that_asks_for_a_token_work(ray_cluster, tmp_path):
    token = os.environ["RAY_AUTH_TOKEN"]
    without = {name: value for name, value in os.environ.items() if "RAY_AUTH" not in name}
    without |= {"RAY_ADDRESS": ray_cluster, "HOME": str(tmp_path)}

    def connected(**given):
        command = [sys.executable, "-c", CONNECT]
        done = subprocess.run(
            command, env=without | given, cwd=REPOSITORY, capture_output=True, text=True
        )
        return done.returncode, done.stderr.splitlines()[-1]

    code, remedy = connected()
    assert code == 1 and "RAY_AUTH_MODE=token" in remedy and "RAY_AUTH_TOKEN" in remedy
    code, remedy = connected(RAY_AUTH_MODE="token")
    assert code == 1 and "RAY_AUTH_TOKEN" in remedy
    assert connected(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token)[0] == 0


def test_ray_that_does_not_start_is_one_line(tmp_path):
    too_long = tmp_path / ("a" * 100)  # for the path of a socket
    environment = os.environ | {"RAY_TMPDIR": str(too_long), "RAY_ADDRESS": ""}
    program = (
        "from workflows.command import run_command\n"
        "from workflows.clusters.tasks import connect\n"
        "raise SystemExit(run_command(connect))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: Ray did not start, ")


OF_EACH_PROCESS = Path("/proc/self/cwd")
"""A path that is another folder in each process: to the driver and to a node as on two machines."""


@pytest.fixture
def another_node(monkeypatch, ray_cluster, tmp_path):
    """The cluster's one node counts as another than the driver's."""
    own = tasks._own_node()
    monkeypatch.setattr(tasks, "_own_node", lambda: "another")
    monkeypatch.chdir(tmp_path)
    return next(node for node in ray.nodes() if node["NodeID"] == own)


@pytest.mark.ray
def test_a_shared_folder_passes_and_is_left_as_it_was(another_node, tmp_path):
    refuse_folder_out_of_reach(tmp_path, {"CPU": 1})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ray
def test_a_folder_of_one_machine_is_refused_with_the_node_that_lacks_it(another_node, tmp_path):
    address = another_node["NodeManagerAddress"]
    with pytest.raises(UserError) as error:
        refuse_folder_out_of_reach(OF_EACH_PROCESS, {"CPU": 1, "GPU": 0, "TPU": 0})
    line = str(error.value)
    assert line.startswith("1 of 1 other nodes cannot reach the folder: ")
    assert f"{OF_EACH_PROCESS} at {address}" in line
    assert "--storage" in line
    assert "\n" not in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ray
@pytest.mark.parametrize("needs", [{"CPU": 3}, {"CPU": 1, "GPU": 1}, {"TPU": 1}])
def test_a_node_that_is_too_small_for_a_worker_need_not_see_it(another_node, needs):
    refuse_folder_out_of_reach(OF_EACH_PROCESS, needs)


@pytest.mark.ray
def test_the_drivers_own_node_is_not_asked(ray_cluster):
    refuse_folder_out_of_reach(OF_EACH_PROCESS, {"CPU": 1})


@pytest.mark.ray
def test_a_node_that_goes_meanwhile_is_not_waited_for(another_node, tmp_path):
    gone = {"ab" * 28: "10.0.0.7"}
    assert tasks._without(tmp_path / "marker", gone) == []
