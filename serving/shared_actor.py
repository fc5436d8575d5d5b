"""Actors that replicas share: found by name, without a CPU of their own, ended when forgotten."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import ray

NAMESPACE = "bertline"
_FORGOTTEN_SECONDS = 60.0


def shared_actor(kind: type, name: str, *arguments: object, **options: object) -> Any:  # noqa: ANN401 - a handle of Ray's
    """The actor of this name, which is started where there is none; `options` are Ray's."""
    actor: Any = ray.remote(kind)
    named = actor.options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        **options,
    )
    return named.remote(*arguments)


class UntilForgotten:
    """Ends the process that it is made in when nobody has asked for it for a while.

    Ray would keep an actor that outlives who has started it for as long as the cluster runs. `end`
    is called before.
    """

    def __init__(
        self, end: Callable[[], None] = lambda: None, seconds: float = _FORGOTTEN_SECONDS
    ) -> None:
        self._end, self._seconds = end, seconds
        self._asked_at = time.monotonic()
        threading.Thread(target=self._wait, daemon=True).start()

    def note(self) -> None:
        """Somebody has asked."""
        self._asked_at = time.monotonic()

    def _wait(self) -> None:
        while time.monotonic() - self._asked_at < self._seconds:
            time.sleep(self._seconds / 12)
        self._end()
        os._exit(0)
