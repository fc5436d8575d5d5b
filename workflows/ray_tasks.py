"""Calls that start Ray tasks go in, their results come out as they arrive; few wait at a time."""

import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayTaskError

from bert_core.errors import UserError
from workflows.output_folder import WorkKeptError

_POLL_SECONDS = 0.5
_ANSWER_SECONDS = 10


def connect() -> None:
    """Joins the cluster of the job or of RAY_ADDRESS, or this machine's; without one, starts one.

    Takes seconds, and says so on standard error. Raises `UserError` where RAY_ADDRESS leads
    nowhere, and `KeyboardInterrupt` on SIGTERM meanwhile.
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
        remedy = "start the cluster, give its RAY_AUTH_TOKEN, or unset RAY_ADDRESS"
        raise UserError(what, f"RAY_ADDRESS={address}", remedy) from error
    except SystemExit as error:
        if error.code == signal.SIGTERM:  # Ray's own handler, which ends a program without a word
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)


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
    many are submitted, so that no CPU waits for the driver. A task's `UserError` is raised as it
    is, a full disk as a `WorkKeptError`; everything else as Ray gives it.
    """
    num_cpus = int(ray.cluster_resources().get("CPU", 1))
    window = num_workers or 2 * max(num_cpus, 1)
    running: dict[Any, int] = {}
    pending = iter(enumerate(calls))
    while True:
        for index, call in pending:
            running[call()] = index
            if len(running) >= window:
                break
        if not running:
            return
        ready, _ = ray.wait(list(running), num_returns=1, timeout=_POLL_SECONDS)
        while_waiting()
        for reference in ready:
            yield running.pop(reference), _result(reference)


def _result(reference: Any) -> Any:  # noqa: ANN401 - whatever the task returns
    try:
        return ray.get(reference)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, UserError):
            raise cause from None
        if isinstance(cause, OSError) and cause.errno == errno.ENOSPC:
            where = str(cause.filename or "the output folder")
            remedy = "free some space, then run the same command again: it goes on"
            raise WorkKeptError("the disk is full", where, remedy) from error
        raise
