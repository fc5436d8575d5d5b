"""`serving.watch` on a Ray cluster: one for all replicas of a node that serve the same addresses.

An actor without a CPU of its own; it ends when no replica has asked for it for a while.
"""

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from bert_core.errors import UserError
from serving.pointers import Address
from serving.shared_actor import UntilForgotten, shared_actor
from serving.watch_process import WatchOrder, WatchProcess

_ASK_SECONDS = 5.0
_TRIES = 3
_CONCURRENCY = 32
"""An address that is added takes until its model is downloaded; nobody else is to wait for that."""


class _Watcher:
    """The actor: a `WatchProcess` of which there is one for each node and order."""

    def __init__(self, order: WatchOrder) -> None:
        self._process = WatchProcess(order)
        self._until_forgotten = UntilForgotten(self._process.close)
        self._starting = threading.Lock()
        self._is_started = False

    def pointers(self) -> dict[Address, Path]:
        """Where the pointer of each address lies; raises as `WatchProcess.start` does."""
        self._until_forgotten.note()
        with self._starting:
            if not self._is_started:
                self._process.start()
                self._is_started = True
        return dict(self._process.pointers)

    def add(self, address: Address) -> Path:
        """As `WatchProcess.add`."""
        self.pointers()
        return self._process.add(address)

    def look(self) -> None:
        """As `WatchProcess.look`."""
        self._process.look()


class NodeWatch:
    """What a replica has of its node's watcher: used like a `WatchProcess`.

    Starts the actor where there is none, and another where that was lost.
    """

    def __init__(self, order: WatchOrder) -> None:
        self._order = order
        node = ray.get_runtime_context().get_node_id()
        digest = hashlib.sha256(repr(order).encode()).hexdigest()[:12]
        self._name = f"watch-{node[:12]}-{digest}"
        self._on_this_node = NodeAffinitySchedulingStrategy(node, soft=False)
        self._is_closed = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._watcher: Any = None
        self.pointers: dict[Address, Path] = {}

    def start(self) -> None:
        """As `WatchProcess.start`."""
        with _its_user_error():
            self.pointers |= ray.get(self._actor().pointers.remote())
        self._go_on_from_now()

    def add(self, address: Address) -> Path:
        """As `WatchProcess.add`; each replica that wants an address has it added."""
        if self._order.poll_seconds is not None and address in self.pointers:
            return self.pointers[address]
        self._go_on_from_now()  # it is not to be forgotten while it downloads
        for _ in range(_TRIES):
            try:
                with _its_user_error():
                    path: Any = ray.get(self._actor().add.remote(address))
            except RayActorError:  # lost on the way
                time.sleep(1)
                continue
            self.pointers[address] = path
            return path
        remedy = "look into Ray's logs for why it ends"
        raise UserError("the actor that asks MLflow is lost again and again", self._name, remedy)

    def look(self) -> None:
        """As `WatchProcess.look`: for all replicas of the node."""
        if self._watcher is not None:
            self._watcher.look.remote()

    def close(self) -> None:
        """Leaves the actor to the other replicas."""
        self._is_closed.set()

    def _actor(self) -> Any:  # noqa: ANN401 - a handle of Ray's
        """The node's actor, which is started where there is none."""
        self._watcher = shared_actor(
            _Watcher,
            self._name,
            self._order,
            max_concurrency=_CONCURRENCY,
            scheduling_strategy=self._on_this_node,
        )
        return self._watcher

    def _go_on_from_now(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._go_on_asking, daemon=True)
                self._thread.start()

    def _go_on_asking(self) -> None:
        adding: list[Any] = []
        while not self._is_closed.wait(_ASK_SECONDS):
            try:
                watcher = self._actor()
                there: Any = ray.get(watcher.pointers.remote())
                _, adding = ray.wait(adding, num_returns=len(adding), timeout=0)
                if not adding:  # a new actor does not know what was added to the one before
                    missing = [each for each in list(self.pointers) if each not in there]
                    adding = [watcher.add.remote(each) for each in missing]
            except (RayActorError, RayTaskError):
                continue  # the next time starts another


@contextmanager
def _its_user_error() -> Iterator[None]:
    """Raises the `UserError` that the actor has raised."""
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from None
        raise
