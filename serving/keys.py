"""API keys: named, kept as hashes, each with scopes and a rate limit."""

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bert_core.disk import flush_to_disk, locked
from bert_core.errors import UserError
from serving.rollout.cache import lock_path


class RateLimitError(Exception):
    """A key has used up its tokens; `retry_after` is in seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"the key's tokens are used up: ask again in {retry_after:.1f} s")
        self.retry_after = retry_after


class TokenBucket:
    """A token bucket that refills evenly, up to the tokens of a minute; thread-safe.

    A request is accepted while tokens are left, and may leave a debt, so that one larger than the
    rest is not refused forever.

    Where several servers share a limit, each has its own bucket and reports what it took
    (`take_paid`) to a central one (`settle`), whose level it continues from (`correct`). Over a
    minute they accept no more than one server, but for what they take between two reports.
    """

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._left = float(per_minute)
        self._paid = 0
        self._at = time.monotonic()
        self._lock = threading.Lock()

    def pay(self, num_tokens: int) -> None:
        """Takes tokens off those that are left; raises `RateLimitError` where none are."""
        with self._lock:
            self._refill()
            if self._left <= 0:
                raise RateLimitError((1 - self._left) * 60 / self.per_minute)
            self._left -= num_tokens
            self._paid += num_tokens

    def settle(self, num_tokens: int) -> float:
        """Takes off tokens that were accepted already; returns what is left, below 0 a debt."""
        with self._lock:
            self._refill()
            self._left -= num_tokens
            return self._left

    def take_paid(self) -> int:
        """The tokens that were paid since this was asked last."""
        with self._lock:
            paid, self._paid = self._paid, 0
            return paid

    def put_back(self, num_tokens: int) -> None:
        """Returns tokens to `take_paid` that could not be reported."""
        with self._lock:
            self._paid += num_tokens

    def correct(self, left: float) -> None:
        """Continues from the common level, less what was paid here since `take_paid`."""
        with self._lock:
            self._left, self._at = left - self._paid, time.monotonic()

    def _refill(self) -> None:
        now = time.monotonic()
        come_back = (now - self._at) * self.per_minute / 60
        self._left = min(float(self.per_minute), self._left + come_back)
        self._at = now


Scope = Literal["predict", "admin"]
"""What a key is for: asking models, or operating the server."""

_PREFIX = "bertline-"


class KeyRecord(BaseModel):
    """A key in the file of keys, without the key itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    scopes: tuple[Scope, ...] = ("predict",)
    tokens_per_minute: int | None = Field(default=None, ge=1)


class KeyFile(BaseModel):
    """The file of keys."""

    model_config = ConfigDict(extra="forbid")

    keys: list[KeyRecord]


class Key:
    """A key in use: what it is for, and the tokens that it has left, None without a limit."""

    def __init__(self, record: KeyRecord) -> None:
        self.record = record
        most = record.tokens_per_minute
        self.bucket = None if most is None else TokenBucket(most)

    @property
    def name(self) -> str:
        """The name of the key."""
        return self.record.name

    def pay(self, num_tokens: int) -> None:
        """Takes tokens off those that are left; raises `RateLimitError` where none are."""
        if self.bucket is not None:
            self.bucket.pay(num_tokens)


class Keys:
    """All keys of a server."""

    def __init__(self, records: Sequence[KeyRecord]) -> None:
        self.records = list(records)
        self._keys = [Key(record) for record in records]

    @property
    def buckets(self) -> dict[str, TokenBucket]:
        """The tokens of those keys that have a limit, by their names."""
        return {key.name: key.bucket for key in self._keys if key.bucket is not None}

    def find(self, given: str) -> Key | None:
        """The key that a client shows, in constant time for any position, and for no key."""
        shown = hash_of(given)
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.record.sha256, shown):
                found = key
        return found


def read_keys(path: Path) -> Keys:
    """The keys of a file.

    Raises `UserError` for one that cannot be read, has no keys, or two of one name.
    """
    make = f"with python -m serving.new_key NAME --file {quote(str(path))}"
    anew = f"restore the file, or move it away and make keys {make}"
    try:
        records = KeyFile.model_validate_json(path.read_bytes()).keys
    except OSError as error:
        remedy = "name a file that this user can read"
        if isinstance(error, FileNotFoundError):
            remedy = f"make a key {make}"
        raise UserError(f"cannot be read ({error.strerror})", str(path), remedy) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(f"no file of keys ({place}: {first['msg']})", str(path), anew) from None
    names = [record.name for record in records]
    if not records:
        raise UserError("no keys", str(path), anew)
    if len(set(names)) < len(names):
        raise UserError("two keys of one name", str(path), "rename one of them in the file")
    return Keys(records)


def hash_of(key: str) -> str:
    """The hash of a key in its file; keys are long and random, so a fast hash is enough."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def add_key(path: Path, name: str, scopes: Sequence[Scope], tokens_per_minute: int | None) -> str:
    """Makes a key, writes its hash to the file, which only its owner may read, and returns it.

    Of several at once each waits for those before it. Raises `UserError` for a name that is taken
    or cannot be printed, a limit below 1, and a file that cannot be read or written.
    """
    if not name.strip() or not name.isprintable():
        what = "a key's name is empty, or has control characters"
        raise UserError(what, repr(name), "take letters, digits and signs, such as ann-1")
    if tokens_per_minute is not None and tokens_per_minute < 1:
        what = f"--tokens_per_minute is {tokens_per_minute}, at least 1 is needed"
        raise UserError(what, name, "pass 1 or more, or leave it out for a key without a limit")
    path = path.resolve()
    lock = lock_path(path)
    try:
        with locked(lock):
            try:
                return _add_key(path, name, scopes, tokens_per_minute)
            finally:
                lock.unlink(missing_ok=True)
    except OSError as error:
        what, remedy = f"no key is made ({error.strerror})", "name a file that can be written"
        raise UserError(what, str(path), remedy) from error


def _add_key(path: Path, name: str, scopes: Sequence[Scope], tokens_per_minute: int | None) -> str:
    records = read_keys(path).records if path.exists() else []
    if name in {record.name for record in records}:
        raise UserError("there is a key of this name", name, f"take another, or edit {path}")
    key = _PREFIX + secrets.token_urlsafe(32)
    record = KeyRecord(
        name=name,
        sha256=hash_of(key),
        scopes=tuple(scopes),
        tokens_per_minute=tokens_per_minute,
    )
    content = KeyFile(keys=[*records, record]).model_dump_json(indent=2)
    fresh = path.with_name(f".{path.name}.new")  # the same each time: a killed one's goes with it
    try:
        fresh.unlink(missing_ok=True)
        fresh.touch(0o600)
        fresh.write_text(content, encoding="utf-8")
        flush_to_disk(fresh)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return key
