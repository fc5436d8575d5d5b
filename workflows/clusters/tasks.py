"""Ray for commands: joining a cluster, running tasks, and a folder that all nodes must reach."""

import itertools
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import AuthenticationError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from bert_core.disk import is_disk_full
from bert_core.errors import UserError, reason_of
from workflows.output_folder import WorkKeptError

_POLL_SECONDS = 0.5
_ANSWER_SECONDS = 10
_LOOK_SECONDS = 2.0
_FIRST_TASK_SECONDS = 90.0
"""A node's first task brings the job's files there and starts a process."""
_VISIBLE_SECONDS = 3.0
"""How long a shared file system may take to show on one machine what another has written."""


def connect() -> None:
    """Joins the cluster of the job or of RAY_ADDRESS, or this machine's; without one, starts one.

    Takes seconds, and says so on standard error. Raises `UserError` where RAY_ADDRESS leads
    nowhere or Ray does not start, and `KeyboardInterrupt` on SIGTERM meanwhile.
    """
    if ray.is_initialized():
        return
    address = os.environ.get("RAY_ADDRESS", "")
    print(f"joining Ray at {address}…" if address else "starting Ray…", file=sys.stderr, flush=True)
    _refuse_a_silent_address(address)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        what = " ".join(str(error).split())
        if os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
            remedy = "start the cluster, give its RAY_AUTH_TOKEN, or unset RAY_ADDRESS"
        else:
            remedy = (
                "start the cluster, or, where it asks for a token, set RAY_AUTH_MODE=token and its "
                "RAY_AUTH_TOKEN, or unset RAY_ADDRESS"
            )
        raise UserError(what, f"RAY_ADDRESS={address}", remedy) from error
    except AuthenticationError as error:
        what = "RAY_AUTH_MODE is token, and there is no token"
        remedy = "set RAY_AUTH_TOKEN to the cluster's, or run ray get-auth-token --generate"
        raise UserError(what, f"RAY_ADDRESS={address}", remedy) from error
    except SystemExit as error:
        if error.code == signal.SIGTERM:  # Ray's own handler, which ends a program without a word
            raise KeyboardInterrupt from None
        raise
    except Exception as error:  # of many types; a start that takes too long is a plain Exception
        if is_disk_full(error):
            raise
        where = f"RAY_ADDRESS={address}" if address else "ray.init"
        remedy = "mend it; where the machine is busy, repeat the command later"
        raise UserError(f"Ray did not start, {reason_of(error)}", where, remedy) from error
    finally:
        signal.signal(signal.SIGTERM, handler)


def beside_the_driver(kind: type, *arguments: object) -> Any:  # noqa: ANN401 - a handle of Ray's
    """An actor on this process's node, which needs no CPU.

    Ray would put it on any node, and it would be lost with that one.
    """
    node = ray.get_runtime_context().get_node_id()
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    actor: Any = ray.remote(num_cpus=0)(kind)
    return actor.options(scheduling_strategy=here).remote(*arguments)


def _refuse_a_silent_address(address: str) -> None:
    """Raises `UserError` where nobody listens: Ray would ask again for ever."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or "://" in host:  # empty, `auto` or Ray's own kinds of address
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
    except OSError as error:
        what = f"no Ray cluster answers, {error.strerror or error}"
        raise UserError(what, f"RAY_ADDRESS={address}", "start it, or unset it") from error


def run_tasks(
    calls: Sequence[Callable[[], Any]],
    num_workers: int | None = None,
    while_waiting: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, Any]]:
    """Yields (index of the call, result) in the order of arrival.

    At most `num_workers` tasks run at a time, by default as many as the cluster has CPUs; twice as
    many are submitted, so that no CPU waits for the driver. A cluster may grow meanwhile; that it
    has no CPU at all is said once. A task's `UserError` is raised as it is, a full disk as a
    `WorkKeptError`; everything else as Ray gives it.
    """
    window = _Window(num_workers)
    running: dict[Any, int] = {}
    pending = enumerate(calls)
    while True:
        for index, call in itertools.islice(pending, max(window.tasks() - len(running), 0)):
            running[call()] = index
        if not running:
            return
        ready, _ = ray.wait(list(running), num_returns=1, timeout=_POLL_SECONDS)
        while_waiting()
        for reference in ready:
            yield running.pop(reference), _result(reference)


class _Window:
    """How many tasks may be on their way, by what the cluster has now."""

    def __init__(self, num_workers: int | None) -> None:
        self._num_workers = num_workers
        self._num_cpus = self._look()
        self._next_look = time.monotonic() + _LOOK_SECONDS
        self._said = False

    def tasks(self) -> int:
        """The most; prints once that there is no CPU to run them, when none has come by itself."""
        if time.monotonic() >= self._next_look:
            self._num_cpus = self._look()
            self._next_look = time.monotonic() + _LOOK_SECONDS
            if not self._num_cpus and not self._said:
                self._said = True
                print("waiting for a node with CPUs; Ray has none", file=sys.stderr, flush=True)
        return self._num_workers or 2 * max(self._num_cpus, 1)

    def _look(self) -> int:
        return int(ray.cluster_resources().get("CPU", 0))


def _result(reference: Any) -> Any:  # noqa: ANN401 - whatever the task returns
    try:
        return ray.get(reference)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, Exception) and is_disk_full(cause):
            named = cause.where if isinstance(cause, UserError) else None
            where = str(named or getattr(cause, "filename", None) or "the output folder")
            remedy = "free some space, then run the same command again: it goes on"
            raise WorkKeptError("the disk is full", where, remedy) from error
        if isinstance(cause, UserError):
            raise cause from None
        raise


def refuse_folder_out_of_reach(folder: Path, needs: Mapping[str, float]) -> None:
    """Looks for a file of the driver's from each other node that has what a task needs.

    Nodes that do not answer are not waited for: they may be on their way out. Takes no time where
    there is one node. The driver is connected to Ray, and the folder exists.

    Raises `UserError` where a node sees the folder without the file, or does not see it.
    """
    nodes = _other_nodes(needs)
    if not nodes:
        return
    marker = folder / f".reached-{uuid4().hex}"
    marker.touch()
    try:
        missing = _without(marker, nodes)
    finally:
        marker.unlink(missing_ok=True)
    if missing:
        raise UserError(
            f"{len(missing)} of {len(nodes)} other nodes cannot reach the folder",
            f"{folder} at {', '.join(missing)}",
            "give --storage, --output or --shards in a folder that all nodes share; a run may lie "
            "at an address too, --storage s3://bucket/folder",
        )


def _other_nodes(needs: Mapping[str, float]) -> dict[str, str]:
    """Addresses by id of the living nodes that have what is needed, but the driver's own."""
    own = _own_node()
    return {
        node["NodeID"]: node["NodeManagerAddress"]
        for node in ray.nodes()
        if node["Alive"]
        and node["NodeID"] != own
        and all(node["Resources"].get(kind, 0) >= need for kind, need in needs.items())
    }


def _own_node() -> str:
    return ray.get_runtime_context().get_node_id()


def _without(marker: Path, nodes: Mapping[str, str]) -> list[str]:
    """The addresses of the nodes that answer and do not see the file, sorted."""
    look: Any = ray.remote(num_cpus=0, max_retries=0)(_sees)
    answers = {
        look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            str(marker)
        ): address
        for node, address in nodes.items()
    }
    answered, late = ray.wait(list(answers), num_returns=len(answers), timeout=_FIRST_TASK_SECONDS)
    for reference in late:
        ray.cancel(reference, force=True)
    return sorted(answers[reference] for reference in answered if not _sees_it(reference))


def _sees_it(reference: Any) -> bool:  # noqa: ANN401 - Ray's reference
    try:
        return ray.get(reference)
    except RayError:  # the node has gone
        return True


def _sees(path: str) -> bool:
    """Runs on a node: whether the file is there."""
    end = time.monotonic() + _VISIBLE_SECONDS
    while not Path(path).exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
