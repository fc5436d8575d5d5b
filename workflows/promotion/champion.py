"""The champion of a registered model: its state at MLflow, its history, and how it is moved.

MLflow has no compare-and-set of aliases, so `move_champion` announces each move by a tag first.
"""

import getpass
import hashlib
import platform
import re
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bert_core.disk import locked
from bert_core.errors import UserError, nearest
from serving.registry import (
    as_user_error,
    filter_value,
    lineage_of_tags,
    mlflow_environment,
    sqlite_path,
    store_exists,
)
from workflows.runs.mlflow_run import check_artifacts, open_client

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

CHAMPION = "champion"
_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "15", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
"""Limits of small requests: a server that is down is reported within a minute."""


@dataclass(frozen=True)
class Version:
    """A version of a registered model, with what training recorded.

    `metrics` have the last part of their names, `accuracy` for `dev/accuracy`.
    """

    number: int
    run_id: str | None
    metrics: Mapping[str, float]
    data_sha256: str | None


@dataclass(frozen=True)
class ModelState:
    """Tags of a registered model, and the version of each alias."""

    tags: Mapping[str, str]
    aliases: Mapping[str, int]

    @property
    def champion(self) -> int | None:
        """The champion's version."""
        return self.aliases.get(CHAMPION)


class ModelRegistry:
    """Reads and writes one registered model at MLflow; several threads may share it.

    Every call raises `UserError` if MLflow does not answer or refuses.
    """

    def __init__(self, client: "MlflowClient", name: str, tracking_uri: str) -> None:
        self.name = name
        self.tracking_uri = tracking_uri
        self._client = client

    def state(self) -> ModelState:
        """Returns tags and aliases; raises `UserError` for an unknown model."""
        from mlflow.exceptions import MlflowException

        with self._requesting():
            try:
                found = self._client.get_registered_model(self.name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                others = self._client.search_registered_models(max_results=1000)
                raise _unknown("model", self.name, [other.name for other in others]) from error
        aliases = {str(alias): int(number) for alias, number in found.aliases.items()}
        return ModelState(dict(found.tags), aliases)

    def versions(self) -> dict[int, Version]:
        """Returns all versions by their numbers."""
        with self._requesting():
            found: list[ModelVersion] = []
            token = None
            while True:
                condition = f"name = {filter_value(self.name)}"
                page = self._client.search_model_versions(condition, page_token=token)
                found += page
                token = page.token
                if not token:
                    break
        return {int(version.version): _version(version) for version in found}

    def version(self, text: str) -> Version:
        """Returns the version of a number or an alias; raises `UserError` for an unknown one."""
        versions, aliases = self.versions(), self.state().aliases
        if text.isdecimal():
            if int(text) in versions:
                return versions[int(text)]
            newest = sorted(versions)[-5:]
            raise _unknown(f"version of {self.name}", text, [str(number) for number in newest])
        if aliases.get(text) in versions:
            return versions[aliases[text]]
        raise _unknown(f"alias of {self.name}", text, sorted(aliases))

    def set_tag(self, key: str, value: str) -> None:
        """Writes a tag of the model atomically."""
        with self._requesting():
            self._client.set_registered_model_tag(self.name, key, value)

    def delete_tag(self, key: str) -> None:
        """Removes a tag of the model, if it is there."""
        with self._requesting():
            self._client.delete_registered_model_tag(self.name, key)

    def replace_version_tags(self, number: int, prefix: str, tags: Mapping[str, str]) -> None:
        """Writes tags of a version, and removes its other tags with this prefix."""
        version = str(number)
        with self._requesting():
            there = self._client.get_model_version(self.name, version).tags
            for key, value in tags.items():
                self._client.set_model_version_tag(self.name, version, key, value)
            for key in there:
                if key.startswith(prefix) and key not in tags:
                    self._client.delete_model_version_tag(self.name, version, key)

    def log_json(self, run_id: str, content: dict[str, Any], path: str) -> None:
        """Writes a JSON file among the artifacts of a run."""
        with self._requesting():
            check_artifacts(self._client, run_id)
            self._client.log_dict(run_id, content, path)

    def set_champion(self, number: int) -> None:
        """Points the alias at a version, in one transaction of MLflow's.

        If the response is lost, the alias itself tells whether it was moved.
        """
        try:
            with self._requesting():
                self._client.set_registered_model_alias(self.name, CHAMPION, str(number))
        except UserError:
            if self.state().champion != number:
                raise

    @contextmanager
    def _requesting(self) -> Iterator[None]:
        remedy = "repeat the command when MLflow answers"
        with as_user_error(f"the registry refused a request about {self.name}", remedy):
            yield


@contextmanager
def open_registry(name: str, tracking_uri: str) -> Iterator[ModelRegistry]:
    """Opens a registered model, with MLflow's environment set for the block.

    Raises `UserError` without a store or without the model.
    """
    if not store_exists(tracking_uri):
        remedy = "register a model first, or give another --storage or --tracking_uri"
        raise UserError(f"no registered model {name}", f"no MLflow store at {tracking_uri}", remedy)
    with mlflow_environment(tracking_uri, _PATIENCE):
        with as_user_error("MLflow not reached", "is --tracking_uri right?"):
            client = open_client(tracking_uri)
        registry = ModelRegistry(client, name, tracking_uri)
        registry.state()
        yield registry


def _version(found: "ModelVersion") -> Version:
    lineage = lineage_of_tags(found.tags)
    metrics = {name.rpartition("/")[2]: value for name, value in lineage.metrics.items()}
    return Version(int(found.version), found.run_id or None, metrics, lineage.data_sha256)


def _unknown(kind: str, text: str, known: list[str]) -> UserError:
    there = f"there are {', '.join(known)}" if known else "there is none"
    return UserError(f"unknown {kind}{nearest(text, known)}", text, there[:300])


HISTORY_TAG = "bertline.history."
"""Prefix of the tags; the number of the entry follows, and a token that makes it unique."""

MOST_SHOWN = 60
"""Characters of the gate's verdict in the table; the version's tags have all of it."""
_KEY = re.compile(re.escape(HISTORY_TAG) + r"(\d+)(-\w+)?")


class Entry(BaseModel):
    """One promotion or rollback, kept as a tag of the registered model.

    It is `moving` before the alias is moved and `done` after it. If the process is killed between
    the two, the next promotion reads from the alias whether it is `done` or `interrupted`.
    """

    model_config = ConfigDict(frozen=True)

    action: Literal["promote", "rollback"]
    state: Literal["moving", "done", "interrupted", "refused"]
    before: int | None = Field(description="champion before, none before the first")
    after: int = Field(description="champion after")
    who: str = Field(description="user@host")
    when: str = Field(description="UTC, to the second")
    why: str
    gate: str = Field(default="", description="verdict of the gate, in one line")

    def settled(self, champion: int | None) -> "Entry":
        """The entry, closed according to the present champion."""
        if self.state != "moving":
            return self
        state = "done" if champion == self.after else "interrupted"
        return self.model_copy(update={"state": state})


def read_entries(tags: Mapping[str, str]) -> dict[str, Entry]:
    """Returns the entries among a model's tags by their keys, oldest first; skips other tags."""
    entries = {}
    for key in sorted(key for key in tags if _KEY.fullmatch(key)):
        try:
            entries[key] = Entry.model_validate_json(tags[key])
        except ValidationError:
            continue
    return entries


def next_key(tags: Mapping[str, str]) -> str:
    """Returns the key of an entry after all others; a random token makes it unique."""
    numbers = [int(match[1]) for key in tags if (match := _KEY.fullmatch(key))]
    return f"{HISTORY_TAG}{max(numbers, default=0) + 1:06d}-{secrets.token_hex(4)}"


def version_before(
    entries: Sequence[Entry], champion: int | None, existing: Collection[int]
) -> int | None:
    """Returns the version that was champion before the present one and still exists, or None.

    A rollback undoes what it rolls back: the next one goes one version further back. Champions that
    were set by hand have no entry and do not count.
    """
    champions: list[int] = []
    for entry in entries:
        if entry.state != "done":
            continue
        if entry.action == "rollback":
            while champions and champions[-1] != entry.after:
                champions.pop()
        elif entry.before is not None and entry.before not in champions[-1:]:
            champions.append(entry.before)
        if entry.after not in champions[-1:]:
            champions.append(entry.after)
    while champions and (champions[-1] == champion or champions[-1] not in existing):
        champions.pop()
    return champions[-1] if champions else None


def utc_now() -> str:
    """Returns the time in UTC, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())


def user_and_host() -> str:
    """Returns user@host; users of a container may have no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{platform.node() or 'unknown'}"


def history_table(entries: Sequence[Entry]) -> list[list[str]]:
    """Builds the rows of `aligned_lines`: titles, then entries, newest last."""
    actions = {"promote": "promoted", "rollback": "rolled back"}
    lines = [["when (UTC)", "who", "what", "from", "to", "gate", "why"]]
    for entry in entries:
        is_done = entry.state == "done"
        what = actions[entry.action] if is_done else f"{entry.action}: {entry.state}"
        before = "none" if entry.before is None else str(entry.before)
        gate = shorten(entry.gate, MOST_SHOWN, placeholder=" …")
        lines.append([entry.when, entry.who, what, before, str(entry.after), gate, entry.why])
    return lines


@dataclass(frozen=True)
class Times:
    """The timing of a move where processes share no file lock, in seconds.

    Between reading the history and having written its own entry a process takes less than
    `announce`; after that it waits `announce` and reads again. So of two processes at least the one
    with the later entry sees the other one. A process requests the alias within `decide` of its
    announcement. An entry that is still open after `abandoned`, which includes the request's
    timeouts, belongs to a process that was killed.
    """

    announce: float = 2.0
    decide: float = 10.0
    abandoned: float = 90.0
    poll: float = 0.5


@contextmanager
def promotion_lock(registry: ModelRegistry) -> Iterator[bool]:
    """Locks a file next to a SQLite store; yields False for other stores, which have no file.

    Raises `UserError` if another process holds the lock. A killed process releases it.
    """
    store = sqlite_path(registry.tracking_uri)
    if store is None:
        yield False
        return
    store = store.resolve()
    digest = hashlib.sha256(registry.name.encode()).hexdigest()[:12]
    lock = store.with_name(f"{store.name}.promotion-{digest}.lock")
    try:
        lock.touch()
    except OSError as error:
        what = f"cannot lock the store, {error.strerror}"
        raise UserError(what, str(store.parent), "promote as its owner") from error

    def give_up() -> None:
        raise _under_way(registry.name, f"it holds {lock}")

    with locked(lock, give_up):
        yield True


def move_champion(
    registry: ModelRegistry, entry: Entry, *, is_locked: bool, times: Times | None = None
) -> None:
    """Moves the alias from `entry.before` to `entry.after`, unless another process moves it.

    The entry is written as `moving`, the alias is moved, the entry becomes `done`: killed between
    two of these steps, the next move reads from the alias what happened. `is_locked` says that
    other processes are kept out by a file lock.

    Raises `UserError` if the champion is no longer `entry.before` or another move is under way;
    then nothing has changed.
    """
    times = times or Times()
    _close_interrupted(registry, times, is_locked=is_locked)
    began = time.monotonic()
    tags = _state_before(registry, entry).tags
    key = next_key(tags)
    registry.set_tag(key, entry.model_dump_json())
    try:
        _require_within(times.announce, began, registry.name)
        if not is_locked:
            time.sleep(times.announce)
        entries = read_entries(_state_before(registry, entry).tags)
        moving = [name for name, other in entries.items() if other.state == "moving"]
        if key not in moving:
            raise _under_way(registry.name, "it has closed the entry of this one")
        if moving[0] != key:
            first = entries[moving[0]]
            raise _under_way(registry.name, f"by {first.who} since {first.when} UTC")
        _require_within(times.decide, began, registry.name)
    except BaseException:
        with suppress(UserError):
            registry.delete_tag(key)
        raise
    registry.set_champion(entry.after)
    with suppress(UserError):  # the alias has moved; the next move corrects the entry
        registry.set_tag(key, entry.model_copy(update={"state": "done"}).model_dump_json())


def _state_before(registry: ModelRegistry, entry: Entry) -> ModelState:
    """The model's state; raises `UserError` unless the champion is the one before the move."""
    state = registry.state()
    if state.champion != entry.before:
        what = f"the champion of {registry.name} was moved by another program"
        where = f"from {named(entry.before)} to {named(state.champion)}"
        raise UserError(what, where, "repeat the command to compare with the new champion")
    return state


def _close_interrupted(registry: ModelRegistry, times: Times, *, is_locked: bool) -> None:
    """Closes the entries of killed processes; waits for those of processes that may be alive."""
    state = registry.state()
    entries = read_entries(state.tags)
    waiting = {key for key, entry in entries.items() if entry.state == "moving"}
    if waiting and not is_locked:
        who = entries[min(waiting)].who
        print(f"waiting  up to {times.abandoned:.0f} s for a promotion by {who}", flush=True)
    end = time.monotonic() + (0 if is_locked else times.abandoned)
    while waiting and time.monotonic() < end:
        time.sleep(times.poll)
        state = registry.state()
        entries = read_entries(state.tags)
        waiting = {key for key in waiting & entries.keys() if entries[key].state == "moving"}
    for key in waiting:
        registry.set_tag(key, entries[key].settled(state.champion).model_dump_json())


def _require_within(seconds: float, began: float, name: str) -> None:
    if time.monotonic() - began > seconds:
        what = f"MLflow is too slow to move the champion of {name}"
        raise UserError(what, f"more than {seconds:g} s", "repeat the command; nothing has moved")


def _under_way(name: str, where: str) -> UserError:
    what = f"another promotion of {name} is under way"
    return UserError(what, where, "try again when it is over")


def named(version: int | None) -> str:
    """A version as messages have it."""
    return "none" if version is None else f"version {version}"
