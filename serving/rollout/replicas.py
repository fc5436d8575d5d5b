"""Replicas on Ray: one watcher a node, and what all replicas of an application agree on.

The replicas agree on canaries and shadows, on when to ask MLflow, and on the tokens that keys have
left. Each exchanges a few numbers with one actor a few times a second; no request waits for that.
Without the actor each continues with the last reply state and passes it to the next actor.
"""

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from bert_core.errors import UserError
from serving.keys import TokenBucket
from serving.rollout.aliases import Address, Slot, Variants, VariantSource
from serving.rollout.watcher import Coordination, RolloutControl, WatchProcess, WatchSettings

_LOG = logging.getLogger(__name__)

NAMESPACE = "bertline"
_IDLE_SECONDS = 60.0

_CALL_SECONDS = 5.0
_TRIES = 3
_CONCURRENCY = 32
"""An address is added when its model is downloaded; the other calls must not wait for that."""

_EXCHANGE_SECONDS = 0.25
"""What replicas let in meanwhile beyond a key's limit becomes a debt."""
_ANSWER_SECONDS = 5.0
_AGAIN_SECONDS = 0.2


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


class IdleExit:
    """Ends its process when no replica has called it for a while, after calling `end`.

    Ray keeps a detached actor for as long as the cluster runs.
    """

    def __init__(
        self, end: Callable[[], None] = lambda: None, seconds: float = _IDLE_SECONDS
    ) -> None:
        self._end, self._seconds = end, seconds
        self._called_at = time.monotonic()
        threading.Thread(target=self._wait, daemon=True).start()

    def note(self) -> None:
        """A replica has called."""
        self._called_at = time.monotonic()

    def _wait(self) -> None:
        while time.monotonic() - self._called_at < self._seconds:
            time.sleep(self._seconds / 12)
        self._end()
        os._exit(0)


class _WatcherActor:
    """The actor: one `WatchProcess` for each node and settings."""

    def __init__(self, settings: WatchSettings) -> None:
        self._process = WatchProcess(settings)
        self._idle_exit = IdleExit(self._process.close)
        self._starting = threading.Lock()
        self._is_started = False

    def pointers(self) -> dict[Address, Path]:
        """Where the pointer of each address lies; raises as `Watcher.start`."""
        self._idle_exit.note()
        with self._starting:
            if not self._is_started:
                self._process.start()
                self._is_started = True
        return dict(self._process.pointers)

    def add(self, address: Address) -> Path:
        self.pointers()
        return self._process.add(address)

    def ask_now(self) -> None:
        self._process.ask_now()


class NodeWatcher:
    """A `Watcher` that all replicas of a node with the same settings share, as an actor.

    It starts the actor where there is none, and again where that was lost.
    """

    def __init__(self, settings: WatchSettings) -> None:
        self._settings = settings
        node = ray.get_runtime_context().get_node_id()
        digest = hashlib.sha256(repr(settings).encode()).hexdigest()[:12]
        self._name = f"watch-{node[:12]}-{digest}"
        self._on_this_node = NodeAffinitySchedulingStrategy(node, soft=False)
        self._is_closed = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._watcher: Any = None
        self.pointers: dict[Address, Path] = {}

    def start(self) -> None:
        """As `Watcher.start`."""
        with _user_errors():
            self.pointers |= ray.get(self._actor().pointers.remote())
        self._keep_actor()

    def add(self, address: Address) -> Path:
        """As `Watcher.add`; each replica that wants an address has it added."""
        if self._settings.poll_seconds and address in self.pointers:
            return self.pointers[address]
        self._keep_actor()  # so that it does not end while it downloads
        for _ in range(_TRIES):
            try:
                with _user_errors():
                    path: Any = ray.get(self._actor().add.remote(address))
            except RayActorError:  # lost on the way
                time.sleep(1)
                continue
            self.pointers[address] = path
            return path
        remedy = "see Ray's logs for why it ends"
        raise UserError("the actor that asks MLflow is lost repeatedly", self._name, remedy)

    def ask_now(self) -> None:
        """As `Watcher.ask_now`, for all replicas of the node."""
        if self._watcher is not None:
            self._watcher.ask_now.remote()

    def close(self) -> None:
        """Leaves the actor to the other replicas."""
        self._is_closed.set()

    def _actor(self) -> Any:  # noqa: ANN401 - a handle of Ray's
        self._watcher = shared_actor(
            _WatcherActor,
            self._name,
            self._settings,
            max_concurrency=_CONCURRENCY,
            scheduling_strategy=self._on_this_node,
        )
        return self._watcher

    def _keep_actor(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._call_often, daemon=True)
                self._thread.start()

    def _call_often(self) -> None:
        adding: list[Any] = []
        while not self._is_closed.wait(_CALL_SECONDS):
            try:
                watcher = self._actor()
                there: Any = ray.get(watcher.pointers.remote())
                _, adding = ray.wait(adding, num_returns=len(adding), timeout=0)
                if not adding:  # a new actor does not know what was added to the one before
                    missing = [address for address in list(self.pointers) if address not in there]
                    adding = [watcher.add.remote(address) for address in missing]
            except (RayActorError, RayTaskError):
                continue  # the next time starts another


@contextmanager
def _user_errors() -> Iterator[None]:
    """Raises the `UserError` that the actor has raised."""
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from None
        raise


@dataclass(frozen=True)
class Desired:
    """The wanted canaries and shadows; of two the one with the higher revision counts."""

    revision: int
    variants: Variants


@dataclass(frozen=True)
class Reply:
    """The tokens that keys have left, what is desired, and how often MLflow was to be asked."""

    left: Mapping[str, float]
    desired: Desired
    num_questions: int


class SharedState:
    """What the replicas of an application agree on."""

    def __init__(self) -> None:
        self._desired = Desired(-1, {})
        self._num_questions = 0
        self._buckets: dict[str, TokenBucket] = {}

    def exchange(self, paid: Mapping[str, tuple[int, int]], desired: Desired) -> Reply:
        """Takes each key's tokens per minute and the tokens paid since, and what a replica desires.

        The latter counts if it is newer: then this actor replaces one that was lost.
        """
        if desired.revision > self._desired.revision:
            self._desired = desired
        left: dict[str, float] = {}
        for name, (per_minute, num_tokens) in paid.items():
            if name not in self._buckets or self._buckets[name].per_minute != per_minute:
                self._buckets[name] = TokenBucket(per_minute)
            left[name] = self._buckets[name].settle(num_tokens)
        return Reply(left, self._desired, self._num_questions)

    def publish(self, slot: Slot, wanted: VariantSource | None, desired: Desired) -> Desired:
        """Changes what is desired in one slot, on top of `desired` if that is newer."""
        self.exchange({}, desired)
        others = {
            other: source for other, source in self._desired.variants.items() if other != slot
        }
        variants = others if wanted is None else others | {slot: wanted}
        self._desired = Desired(self._desired.revision + 1, variants)
        return self._desired

    def ask_now(self) -> None:
        """Has all replicas ask MLflow."""
        self._num_questions += 1


class _SharedStateActor(SharedState):
    """The actor, which ends when no replica has exchanged with it for a while."""

    def __init__(self) -> None:
        super().__init__()
        self._idle_exit = IdleExit()

    def exchange(self, paid: Mapping[str, tuple[int, int]], desired: Desired) -> Reply:
        self._idle_exit.note()
        return super().exchange(paid, desired)


class Replica(Coordination):
    """Agrees with the other replicas of an application through an actor.

    `buckets` are the tokens of the server's keys by their names, `variants` those it starts with.
    """

    def __init__(
        self, application: str, buckets: Mapping[str, TokenBucket], variants: Variants
    ) -> None:
        self._name = f"agreement-{application}"
        self._buckets = buckets
        self._desired = Desired(0, dict(variants))
        self._num_questions: int | None = None
        self._actor: Any = None
        self._is_well = True
        self._is_closed = threading.Event()
        self._exchanging = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="agreement", daemon=True)

    def start(self, controller: RolloutControl) -> None:
        """Starts to exchange, and passes news on to the controller."""
        self.controller = controller
        self._thread.start()

    def publish(self, slot: Slot, wanted: VariantSource | None) -> None:
        """Returns when the actor knows it; raises `UserError` where that does not answer."""
        try:
            with self._exchanging:
                # Known here too, so that it is not lost with the actor.
                self._desired = self._ask("publish", slot, wanted, self._desired)
        except RayError as error:
            what = f"the other replicas could not be told ({type(error).__name__})"
            raise UserError(what, self._name, "this one has changed; set it again") from error

    def ask_now(self) -> None:
        """Has all replicas ask MLflow, this one at once."""
        super().ask_now()
        try:
            self._ask("ask_now")
        except RayError as error:
            self._note_fault(error)

    def close(self) -> None:
        """Leaves the actor to the other replicas."""
        self._is_closed.set()
        if self._thread.is_alive():
            self._thread.join(_ANSWER_SECONDS)

    def _run(self) -> None:
        while not self._is_closed.is_set():
            try:
                self.exchange()
            except Exception as error:  # noqa: BLE001 - it works alone meanwhile
                self._note_fault(error)
            self._is_closed.wait(_EXCHANGE_SECONDS)

    def exchange(self) -> None:
        """One exchange; raises `RayError` where there is no answer."""
        with self._exchanging:
            paid = {name: bucket.take_paid() for name, bucket in self._buckets.items()}
            rates = {
                name: (self._buckets[name].per_minute, number) for name, number in paid.items()
            }
            try:
                reply: Reply = self._ask("exchange", rates, self._desired)
            except BaseException:
                for name, number in paid.items():
                    self._buckets[name].put_back(number)
                raise
            self._is_well = True
            for name, left in reply.left.items():
                self._buckets[name].correct(left)
            self._apply(reply)

    def _apply(self, reply: Reply) -> None:
        assert self.controller is not None
        if reply.desired != self._desired:
            self._desired = reply.desired
            self.controller.want(reply.desired.variants)
        before, self._num_questions = self._num_questions, reply.num_questions
        if before is not None and before != reply.num_questions:
            self.controller.ask_now()

    def _ask(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - the method's
        until = time.monotonic() + _ANSWER_SECONDS
        while True:
            try:
                return self._call(method, *arguments)
            except RayActorError:
                if time.monotonic() > until:
                    raise
                time.sleep(_AGAIN_SECONDS)  # the name of a lost actor is free after a while

    def _call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - as above
        if self._actor is None:
            self._actor = shared_actor(_SharedStateActor, self._name)
        try:
            return ray.get(getattr(self._actor, method).remote(*arguments), timeout=_ANSWER_SECONDS)
        except RayError:
            self._actor = None
            raise

    def _note_fault(self, error: Exception) -> None:
        if self._is_well and not self._is_closed.is_set():
            self._is_well = False
            _LOG.warning(
                "warning: replicas cannot reach each other (%s): each counts by itself",
                type(error).__name__,
            )
