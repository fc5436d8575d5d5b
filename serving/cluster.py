"""What replicas on Ray agree on: versions beside models, when to ask MLflow, tokens that keys have.

Each replica exchanges a few numbers with one actor of its application, a few times a second; no
request waits for that. Without the actor each goes on with what was agreed last, and tells the next
one of it.
"""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from bert_core.errors import UserError
from serving.coordination import Beside, Listener
from serving.followed import Place
from serving.model_sources import SharedSource
from serving.shared_actor import UntilForgotten, shared_actor
from serving.token_bucket import TokenBucket

_LOG = logging.getLogger(__name__)

_EXCHANGE_SECONDS = 0.25
"""What replicas let in meanwhile may go beyond a key's limit; it is a debt then."""
_ANSWER_SECONDS = 5.0
_AGAIN_SECONDS = 0.2


@dataclass(frozen=True)
class Wish:
    """Who is to stand beside the models; of two wishes the one with more revisions holds."""

    revision: int
    beside: Beside


@dataclass(frozen=True)
class Agreed:
    """What an exchange gives: what keys have left, the wish, how often MLflow was to be asked."""

    left: Mapping[str, float]
    wish: Wish
    num_looks: int


class Agreement:
    """What all replicas have told."""

    def __init__(self) -> None:
        self._wish = Wish(-1, {})
        self._num_looks = 0
        self._buckets: dict[str, TokenBucket] = {}

    def exchange(self, paid: Mapping[str, tuple[int, int]], wish: Wish) -> Agreed:
        """Takes what keys have paid since, each with its tokens per minute, and a replica's wish.

        The wish comes to be held if it is newer: then this stands for one that was lost.
        """
        if wish.revision > self._wish.revision:
            self._wish = wish
        left: dict[str, float] = {}
        for name, (per_minute, num_tokens) in paid.items():
            if name not in self._buckets or self._buckets[name].per_minute != per_minute:
                self._buckets[name] = TokenBucket(per_minute)
            left[name] = self._buckets[name].settle(num_tokens)
        return Agreed(left, self._wish, self._num_looks)

    def publish(self, place: Place, wanted: SharedSource | None, wish: Wish) -> Wish:
        """Has all want this at a place, or nobody; `wish` as in `exchange`. The new wish."""
        self.exchange({}, wish)
        beside = {each: source for each, source in self._wish.beside.items() if each != place}
        if wanted is not None:
            beside[place] = wanted
        self._wish = Wish(self._wish.revision + 1, beside)
        return self._wish

    def look(self) -> None:
        """Has all replicas ask MLflow."""
        self._num_looks += 1


class _Kept(Agreement):
    """The actor, which ends when no replica has exchanged with it for a while."""

    def __init__(self) -> None:
        super().__init__()
        self._until_forgotten = UntilForgotten()

    def exchange(self, paid: Mapping[str, tuple[int, int]], wish: Wish) -> Agreed:
        self._until_forgotten.note()
        return super().exchange(paid, wish)


class Replica:
    """A replica's side; `serving.coordination` says what its methods are for.

    `application` names those that agree, `buckets` are the tokens of its keys by their names,
    `beside` whom it begins with.
    """

    def __init__(
        self, application: str, buckets: Mapping[str, TokenBucket], beside: Beside
    ) -> None:
        self._name = f"agreement-{application}"
        self._buckets = buckets
        self._wish = Wish(0, dict(beside))
        self._num_looks: int | None = None
        self._listener: Listener | None = None
        self._actor: Any = None
        self._is_well = True
        self._is_closed = threading.Event()
        self._exchanging = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="agreement", daemon=True)

    def start(self, listener: Listener) -> None:
        """Begins to exchange, and tells the listener what is new."""
        self._listener = listener
        self._thread.start()

    def publish(self, place: Place, wanted: SharedSource | None) -> None:
        """Returns when the actor has it; raises `UserError` where that does not answer."""
        try:
            with self._exchanging:
                # Known here too, so that it is not lost with the actor.
                self._wish = self._ask("publish", place, wanted, self._wish)
        except RayError as error:
            raise UserError(
                f"the other replicas could not be told ({type(error).__name__})",
                self._name,
                "this one does as it was told; set it again",
            ) from error

    def look(self) -> None:
        """Has all ask MLflow, this one at once."""
        if self._listener is not None:
            self._listener.look()
        try:
            self._ask("look")
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
            except Exception as error:  # noqa: BLE001 - it goes on by itself meanwhile
                self._note_fault(error)
            self._is_closed.wait(_EXCHANGE_SECONDS)

    def exchange(self) -> None:
        """One exchange; raises `RayError` where there is no answer."""
        with self._exchanging:
            paid = {name: each.take_paid() for name, each in self._buckets.items()}
            rates = {
                name: (self._buckets[name].per_minute, number) for name, number in paid.items()
            }
            try:
                agreed: Agreed = self._ask("exchange", rates, self._wish)
            except BaseException:
                for name, number in paid.items():
                    self._buckets[name].put_back(number)
                raise
            self._is_well = True
            for name, left in agreed.left.items():
                self._buckets[name].correct(left)
            self._heed(agreed)

    def _heed(self, agreed: Agreed) -> None:
        listener = self._listener
        assert listener is not None
        if agreed.wish != self._wish:
            self._wish = agreed.wish
            listener.want(agreed.wish.beside)
        before, self._num_looks = self._num_looks, agreed.num_looks
        if before is not None and before != agreed.num_looks:
            listener.look()

    def _ask(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - the method's
        """Calls the actor; starts one where there is none, or none any more."""
        until = time.monotonic() + _ANSWER_SECONDS
        while True:
            try:
                return self._call(method, *arguments)
            except RayActorError:
                if time.monotonic() > until:
                    raise
                time.sleep(_AGAIN_SECONDS)  # the name of one that has ended is free after a while

    def _call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - as above
        if self._actor is None:
            self._actor = shared_actor(_Kept, self._name)
        try:
            return ray.get(getattr(self._actor, method).remote(*arguments), timeout=_ANSWER_SECONDS)
        except RayError:
            self._actor = None
            raise

    def _note_fault(self, error: Exception) -> None:
        if self._is_well and not self._is_closed.is_set():
            self._is_well = False
            _LOG.warning(
                "warning: replicas do not hear of each other (%s): each counts by itself",
                type(error).__name__,
            )
