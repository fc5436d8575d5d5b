"""`python -m serving.watch --model models:/NAME@ALIAS`: fetches models from MLflow for servers.

In: addresses of MLflow's registry. Out: model folders in a cache, and for each address a pointer
file that says which of them it stands for now. It is a process of its own, so that a server never
loads MLflow. Prints a line of JSON for each address: its pointer, and a warning where MLflow did
not answer and the pointer is an earlier one; with `--follow`, one whenever that has changed. With
`--while_stdin_is_open` a line of standard input is one more address, or empty, to ask at once.
"""

import argparse
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Literal

from bert_core.errors import UserError
from serving.registry import (
    KnownDamage,
    NotThereError,
    UnreachableError,
    default_cache,
    default_tracking_uri,
    fetch_model,
    import_mlflow,
    mlflow_environment,
    newest_version,
)
from serving.rollout.aliases import (
    Address,
    Pointer,
    WatchStatus,
    pointer_path,
    read_pointer,
    switch_pointer,
    without_password,
    write_status,
)
from serving.rollout.cache import evict

CACHE_GIB = 20.0
_GIB = 1 << 30
_PATIENCE_SECONDS = 5.0
"""After which the next address is asked about, while this one continues."""

_STILL_ASKED = "is as fetched before: MLflow, or the store of its artifacts, is still being asked"

Wanted = Literal["answer", "pointer", "nothing"]
"""What an address needs: MLflow's answer, a pointer of now or before, or neither."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetches each model, once or for as long as it runs; 2 for a `UserError`, a line of JSON too.

    Later errors, while it follows, are in the status next to a pointer instead.
    """
    options = _parse(arguments)
    cache = (options.cache or default_cache()).expanduser().absolute()
    tracking_uri = options.tracking_uri or default_tracking_uri(default_cache().parent)
    follows = options.while_stdin_is_open or options.follow is not None
    wanted = "nothing" if options.again else "pointer" if follows else "answer"
    commands = Commands()
    with mlflow_environment(tracking_uri):  # of all threads
        import_mlflow()  # once, and not on each of them
        try:
            addresses = [Address.of(address) for address in options.model]
            watch = Watch(addresses, tracking_uri, cache, options.cache_gib)
            watch.look(commands, wanted)
        except UserError as error:
            _print_line(_problem(error))
            print(f"error: {error}", file=sys.stderr)
            return 2
        if options.while_stdin_is_open:
            lines = sys.stdin.buffer
            threading.Thread(target=commands.read, args=(lines,), daemon=True).start()
        if follows:
            watch.follow(commands, options.follow)
    return 0


class Commands:
    """What standard input says: more addresses, wake-ups, and the end; in order, none is lost.

    A line is an address; an empty line wakes up: all addresses are asked about at once. Several
    wake-ups that nobody has taken are one.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._addresses: deque[str] = deque()
        self._is_woken = False
        self._has_ended = False

    @property
    def have_ended(self) -> bool:
        """Whether no more come, and all addresses are taken."""
        with self._changed:
            return self._has_ended and not self._addresses

    def read(self, lines: Iterable[bytes]) -> None:
        """Reads lines until they end; on a thread of its own, so that no writer waits."""
        for line in lines:
            text = line.decode("utf-8", errors="replace").rstrip("\r\n")
            with self._changed:
                if text.strip():
                    self._addresses.append(text)
                else:
                    self._is_woken = True
                self._changed.notify()
        with self._changed:
            self._has_ended = True
            self._changed.notify()

    def take_address(self) -> str | None:
        """The next address as it was written; None if there is none now."""
        with self._changed:
            return self._addresses.popleft() if self._addresses else None

    def wait(self, seconds: float | None) -> bool:
        """Returns when there is something to do, or after so many seconds; None for never.

        True is to ask about all: it was woken up, or the time is over.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._addresses or self._is_woken or self._has_ended, seconds
            )
            if self._addresses or self._has_ended:
                return False
            self._is_woken = False
            return True


AGAIN_SECONDS = 60.0
"""Between two questions about a model; alerts on the answer wait for hours."""


class NewestVersions:
    """The newest versions in one store; `ask` gets one by name and tracking URI."""

    def __init__(self, tracking_uri: str, ask: Callable[[str, str], int | None]) -> None:
        self._tracking_uri, self._ask = tracking_uri, ask
        self._known: dict[str, int | None] = {}
        self._asked_at: dict[str, float] = {}

    def of(self, address: Address) -> int | None:
        """The newest version of the model of an alias, as known for a minute at most.

        Where MLflow does not answer, the answer before. None where nothing is known, and for a
        version by its number: that is meant to stay.
        """
        if address.alias is None:
            return None
        name, now = address.name, time.monotonic()
        if now - self._asked_at.get(name, -AGAIN_SECONDS) >= AGAIN_SECONDS:
            self._asked_at[name] = now
            try:
                self._known[name] = self._ask(name, self._tracking_uri)
            except UserError:
                self._known.setdefault(name, None)
        return self._known[name]


class Watch:
    """Addresses, and the state that was printed of each last.

    Each is asked about on a thread of its own: one that takes long does not keep the others.
    """

    def __init__(
        self, addresses: Sequence[Address], tracking_uri: str, cache: Path, cache_gib: float
    ) -> None:
        self._addresses = dict.fromkeys(addresses)
        self._tracking_uri, self._cache = tracking_uri, cache
        self._cache_gib = cache_gib
        self._printed: dict[Address, str] = {}
        self._known_damage = KnownDamage()
        self._newest_versions = NewestVersions(tracking_uri, newest_version)
        self._has_switched = False
        self._asking: dict[Address, Future[None]] = {}
        self._ordered: list[Future[None]] = []
        self._locks: dict[Address, threading.Lock] = {}

    def follow(self, commands: Commands, seconds: float | None) -> None:
        """Obeys the commands, and asks about all every `seconds`, until the commands end."""
        next_at = _after(seconds)
        while not commands.have_ended:
            is_time = commands.wait(
                None if next_at is None else max(0.0, next_at - time.monotonic())
            )
            self._answer(commands)
            if is_time:
                self.look(commands)
                next_at = _after(seconds)
        wait(self._ordered)

    def look(self, commands: Commands, wanted: Wanted = "nothing") -> None:
        """Asks about each address, and prints what is new; does what is commanded in between.

        One that is still being asked about is left to that. Raises `UserError` for an address that
        does not have what is wanted.
        """
        for address in list(self._addresses):
            self._answer(commands)
            if commands.have_ended:
                return
            before = self._asking.get(address)
            if before is not None and not before.done():
                self._report(address, f"{address} {_STILL_ASKED}")
                continue
            has_what_is_wanted = wanted == "nothing" or (
                wanted == "pointer" and self._pointer(address) is not None
            )
            patience = _PATIENCE_SECONDS if has_what_is_wanted else None
            asking = _apart(lambda address=address: self._ask(address, wanted), patience)
            self._asking[address] = asking
            if not asking.done():
                self._report(address, f"{address} {_STILL_ASKED}")
            elif wanted != "nothing":
                asking.result()
        self._make_room()

    def _answer(self, commands: Commands) -> None:
        while (text := commands.take_address()) is not None:
            answering = _apart(lambda text=text: self._follow_too(text), _PATIENCE_SECONDS)
            self._ordered = [future for future in (*self._ordered, answering) if not future.done()]
            self._make_room()

    def _follow_too(self, text: str) -> None:
        try:
            address = Address.of(text)
            self._printed.pop(address, None)  # so that a repeated command is answered too
            self._ask(address, "answer")
        except UserError as error:
            _print_line(_problem(error) | {"model": text})
        except Exception as error:  # noqa: BLE001 - one order is not to end the others
            reason = f"{type(error).__name__}: {error}"[:300]
            problem = UserError(f"no model {text}", reason, "run serving.watch by hand")
            _print_line(_problem(problem) | {"model": text})
        else:
            self._addresses[address] = None

    def _pointer(self, address: Address) -> Pointer | None:
        return read_pointer(pointer_path(self._cache, address, self._tracking_uri))

    def _ask(self, address: Address, wanted: Wanted) -> None:
        path = pointer_path(self._cache, address, self._tracking_uri)
        with self._locks.setdefault(address, threading.Lock()):
            before = read_pointer(path)
            try:
                # A command by hand is tried at once, even if the model was damaged before.
                known_damage = self._known_damage if wanted == "nothing" else None
                warning = bring_up_to_date(address, self._tracking_uri, self._cache, known_damage)
            except UserError as error:
                if wanted == "answer" or (wanted == "pointer" and before is None):
                    raise
                warning = f"{address}: {error}"
            newest = self._newest_versions.of(address) if warning is None else None
            self._report(address, warning, newest)
            self._has_switched |= read_pointer(path) != before

    def _report(self, address: Address, warning: str | None, newest: int | None = None) -> None:
        path = pointer_path(self._cache, address, self._tracking_uri)
        status = WatchStatus(asked_at=time.time(), fault=warning, newest_version=newest)
        unwritten = write_status(path, status)
        if unwritten:
            warning = warning or f"{address}: what became of it cannot be written: {unwritten}"
        pointer = read_pointer(path)
        version = None if pointer is None else pointer.version
        state = json.dumps([version, warning is not None])
        if self._printed.get(address) != state:
            self._printed[address] = state
            _print_line({"model": str(address), "pointer": str(path), "warning": warning})

    def _make_room(self) -> None:
        if not self._has_switched or not self._cache_gib:
            return
        self._has_switched = False
        try:
            removed = evict(self._cache, self._cache_gib * _GIB)
        except OSError as error:
            _print_line({"notice": f"no room made in {self._cache}: {error}"})
            return
        if removed:
            _print_line({"notice": f"removed from {self._cache}, unused: {', '.join(removed)}"})


def _after(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _problem(error: UserError) -> dict[str, str]:
    kind = "unreachable" if isinstance(error, UnreachableError) else "unknown"
    return {"what": error.what, "where": error.where, "remedy": error.remedy, "kind": kind}


def _print_line(line: Mapping[str, str | None]) -> None:
    sys.stdout.write(f"{json.dumps(line)}\n")  # at once, whatever another thread says
    sys.stdout.flush()


def _apart(function: Callable[[], None], seconds: float | None) -> Future[None]:
    """Calls a function on a thread; returns when it has ended, or after so many seconds."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - the future has it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    wait([future], seconds)
    return future


def bring_up_to_date(
    address: Address, tracking_uri: str, cache: Path, known_damage: KnownDamage | None = None
) -> str | None:
    """Brings the pointer of an address up to date with MLflow.

    Gives a warning, where that version does not come, whatever the reason, and the pointer stays as
    it is. Raises `UserError` where there is none to stay, and for what MLflow does not have.
    """
    path = pointer_path(cache, address, tracking_uri)
    before = read_pointer(path)
    try:
        model = fetch_model(str(address), tracking_uri, cache, known_damage)
        pointer = Pointer(
            address=str(address),
            name=model.name,
            version=model.version,
            alias=address.alias,
            folder=model.folder,
            tracking_uri=without_password(tracking_uri),
            lineage=model.lineage,
        )
        if pointer != before:
            switch_pointer(path, pointer)
    except NotThereError:
        raise
    except Exception as error:
        problem = error
        if not isinstance(error, UserError):
            reason = f"{type(error).__name__}: {error}"[:300]
            remedy = f"can {cache} be written? If so, run serving.watch by hand to see more"
            problem = UnreachableError(f"no model {address}", reason, remedy)
        if before is None:
            raise problem from error
        return f"{address} is version {before.version}, as fetched before: {problem}"
    return None


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m serving.watch",
        description="Fetches models from MLflow's registry into the cache that servers read.",
    )
    parser.add_argument(
        "--model", action="append", default=[], help="models:/NAME@ALIAS or models:/NAME/3"
    )
    parser.add_argument(
        "--tracking_uri", help="MLflow's; by default MLFLOW_TRACKING_URI, or ~/.bertline's store"
    )
    parser.add_argument(
        "--cache", type=Path, help="folder of fetched models; by default ~/.bertline/models"
    )
    parser.add_argument(
        "--follow",
        type=float,
        metavar="SECONDS",
        help="continue, and ask again so many seconds after each time; by default it asks once",
    )
    parser.add_argument(
        "--while_stdin_is_open",
        action="store_true",
        help="continue until standard input ends, as that of a server's child does with the server;"
        " a line of it is one more model, an empty line asks at once",
    )
    parser.add_argument(
        "--cache_gib",
        type=float,
        default=CACHE_GIB,
        metavar="N",
        help="after a switch, remove models that no pointer names, and that were not used for an"
        f" hour, until the cache has N GiB; {CACHE_GIB:g} by default, 0 keeps all",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="these models were there before: what is wrong with one is a warning from the start",
    )
    options = parser.parse_args(arguments)
    if not options.model and not options.while_stdin_is_open:
        parser.error("give --model, or commands with --while_stdin_is_open")
    if not 0 <= options.cache_gib < float("inf"):
        parser.error("--cache_gib: give 0 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
