"""One promotion of a model at a time, on one machine and on several.

Beside a SQLite store a file is locked, which ends with its process. At a server there is no file
in common: processes claim the model by tags, by Lamport's bakery algorithm (1974), which needs no
more than that a tag that was written is seen by all who read after that.
"""

import fcntl
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO

from pydantic import BaseModel, ConfigDict, ValidationError

from bert_core.errors import UserError
from bert_core.strict_json import parse_json
from serving.registry import sqlite_path
from workflows.promotion.aliases import ModelRegistry
from workflows.promotion.history import user_and_host, utc_now

CLAIM_TAG = "bertline.promotion."
"""What the tags begin with by which a model is claimed."""


@dataclass(frozen=True)
class Times:
    """How a claim is kept and when it counts as dead, in seconds.

    A claim says every `beat` that its process lives. One that has not for `lease` is watched for
    `watch`, because the clocks of two machines may differ, and is dead if it says nothing then.
    """

    beat: float = 10.0
    lease: float = 60.0
    watch: float = 30.0
    poll: float = 0.5
    choosing: float = 5.0


class Claim(BaseModel):
    """A process that promotes, or wants to.

    Its number is None while it is chosen: one more than those of all other claims. The lowest one
    holds the model; of equal ones, that with the lower token.
    """

    model_config = ConfigDict(frozen=True)

    token: str
    number: int | None
    who: str
    since: str
    beat: float
    with_file: bool  # that its process holds the lock beside the store too

    @property
    def rank(self) -> tuple[int, str]:
        """What the claims are ordered by; one that is still choosing comes before all others."""
        return self.number or 0, self.token


class Held:
    """The right to promote, as long as `check` does not raise."""

    def __init__(self, registry: ModelRegistry, claim: Claim, times: Times) -> None:
        self.token = claim.token
        self._registry = registry
        self._claim = claim
        self._times = times
        self._last_beat = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises `UserError` where the claim was lost: this process or the server slept too long.

        Between this and what follows it a process must not sleep for longer than the lease: MLflow
        moves an alias whatever it was before.
        """
        # Whoever is still choosing will come after this one.
        claims = [each for each in read_claims(self._registry) if each.number is not None]
        first = min(claims, key=lambda each: each.rank, default=None)
        is_first = first is not None and first.token == self.token
        if not is_first or time.monotonic() - self._last_beat > self._times.lease:
            what = f"the claim on {self._registry.name} was lost"
            raise UserError(what, "no answer for too long", "repeat the command; nothing has moved")

    def release(self) -> None:
        """Ends the claim; where MLflow does not answer it ends by itself."""
        self._stop.set()
        self._thread.join()
        with suppress(UserError):
            self._registry.delete_tag(CLAIM_TAG + self.token)

    def _keep(self) -> None:
        while not self._stop.wait(self._times.beat):
            began = time.monotonic()
            with suppress(UserError):
                if self.token not in {each.token for each in read_claims(self._registry)}:
                    return  # somebody took it for dead: to write it again would wake the dead
                _write(self._registry, self._claim.model_copy(update={"beat": time.time()}))
                self._last_beat = began


@contextmanager
def promotion_lock(registry: ModelRegistry, times: Times | None = None) -> Iterator[Held]:
    """Keeps every other promotion of this model out; raises `UserError`, saying who is in.

    A process that was killed keeps others out of a SQLite store for no time, and at a server until
    it has been silent for the lease and the watch.
    """
    times = times or Times()
    with _file_lock(registry) as with_file:
        claim = _claimed(registry, times, with_file=with_file)
        held = Held(registry, claim, times)
        try:
            yield held
        finally:
            held.release()


def read_claims(registry: ModelRegistry) -> list[Claim]:
    """All claims on a model."""
    found = []
    for key, value in registry.state().tags.items():
        if key.startswith(CLAIM_TAG):
            with suppress(ValidationError):
                found.append(Claim.model_validate_json(value))
    return found


def _claimed(registry: ModelRegistry, times: Times, *, with_file: bool) -> Claim:
    """A claim before which there is no other one that lives."""
    claim = Claim(
        token=secrets.token_hex(8),
        number=None,
        who=user_and_host(),
        since=utc_now(),
        beat=time.time(),
        with_file=with_file,
    )
    _write(registry, claim)
    try:
        numbers = [each.number or 0 for each in read_claims(registry)]
        claim = claim.model_copy(update={"number": 1 + max(numbers, default=0)})
        _write(registry, claim)
        patience = time.monotonic() + times.choosing
        while first := _before(registry, claim):
            if (with_file and first.with_file) or _is_dead(registry, first, times):
                registry.delete_tag(CLAIM_TAG + first.token)
            elif first.number is not None or time.monotonic() > patience:
                raise _under_way(registry.name, first.who, first.since)
            else:
                time.sleep(times.poll)  # it is choosing, and may come after this one
    except BaseException:
        with suppress(UserError):
            registry.delete_tag(CLAIM_TAG + claim.token)
        raise
    return claim


def _before(registry: ModelRegistry, claim: Claim) -> Claim | None:
    """The first of the claims that come before this one."""
    before = [each for each in read_claims(registry) if each.rank < claim.rank]
    return min(before, key=lambda each: each.rank, default=None)


def _is_dead(registry: ModelRegistry, claim: Claim, times: Times) -> bool:
    """Whether a claim is silent, by its time and by what is seen of it."""
    if abs(time.time() - claim.beat) < times.lease:
        return False
    print(f"waiting  whether the promotion by {claim.who} since {claim.since} lives", flush=True)
    end = time.monotonic() + times.watch
    while time.monotonic() < end:
        time.sleep(times.poll)
        if claim not in read_claims(registry):
            return False
    return True


def _write(registry: ModelRegistry, claim: Claim) -> None:
    registry.set_tag(CLAIM_TAG + claim.token, claim.model_dump_json())


@contextmanager
def _file_lock(registry: ModelRegistry) -> Iterator[bool]:
    """Locks a file beside a SQLite store; False where there is no such store."""
    store = sqlite_path(registry.tracking_uri)
    if store is None:
        yield False
        return
    store = store.resolve()
    digest = hashlib.sha256(registry.name.encode()).hexdigest()[:12]
    path = store.with_name(f"{store.name}.promotion-{digest}.lock")
    try:
        lock = path.open("a+", encoding="utf-8")
    except OSError as error:
        what = f"cannot lock the store, {error.strerror}"
        raise UserError(what, str(path.parent), "promote as its owner") from error
    with lock:
        try:
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _under_way(registry.name, *_holder(lock)) from None
        lock.truncate(0)
        lock.write(json.dumps({"who": user_and_host(), "since": utc_now()}))
        lock.flush()
        try:
            yield True
        finally:
            lock.truncate(0)


def _holder(lock: IO[str]) -> tuple[str, str]:
    """Who holds a locked file and since when, as far as it is written there already."""
    lock.seek(0)
    try:
        said = parse_json(lock.read(1 << 16).encode(), lock.name)
        return str(said["who"]), str(said["since"])
    except (UserError, ValueError, KeyError, TypeError):
        return "another process", utc_now()


def _under_way(name: str, who: str, since: str) -> UserError:
    what = f"another promotion of {name} is under way"
    return UserError(what, f"by {who} since {since} UTC", "try again when it is over")
