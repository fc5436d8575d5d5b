import errno
import functools
import itertools
import time

import pytest

from bert_core.errors import UserError
from workflows.output_folder import WorkKeptError
from workflows.ray_tasks import connect, run_tasks


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
