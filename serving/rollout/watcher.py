"""Asks MLflow for a server, with `python -m serving.watch` as a child process.

In: addresses. Out: paths of pointers. The process ends with the server and is restarted if it ends
before. Nothing here imports torch: the actors that do the same for replicas start quickly.
"""

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from bert_core.errors import UserError
from serving.rollout.aliases import Address, Slot, UnreachableError, Variants, VariantSource

_LOG = logging.getLogger(__name__)
_AGAIN_SECONDS = 5.0
_ADD_SECONDS = 120.0
"""A large model may have to be downloaded."""


@dataclass(frozen=True)
class WatchSettings:
    """The addresses to ask MLflow about, now and then every `poll_seconds`; 0 for once.

    Without a tracking URI or a cache those of `serving.watch` are taken. `cache_gib` is the size
    above which unused models are removed from the cache; 0 for never.
    """

    addresses: tuple[Address, ...] = ()
    tracking_uri: str | None = None
    cache: Path | None = None
    poll_seconds: float = 2.0
    cache_gib: float = 20.0

    @property
    def arguments(self) -> list[str]:
        """The command line of `serving.watch`."""
        given = [f"--model={address}" for address in self.addresses]
        given += [f"--tracking_uri={self.tracking_uri}"] if self.tracking_uri is not None else []
        given += [f"--cache={self.cache}"] if self.cache is not None else []
        given += [f"--cache_gib={self.cache_gib}"]
        if self.poll_seconds:
            given += [f"--follow={self.poll_seconds}", "--while_stdin_is_open"]
        return given


class Watcher(Protocol):
    """Asks MLflow for a server: `WatchProcess`, or `NodeWatcher` on Ray."""

    pointers: dict[Address, Path]

    def start(self) -> None:
        """Returns when each address has a pointer; raises `UserError` where one has none."""
        ...

    def add(self, address: Address) -> Path:
        """Asks about one more address from now on; returns its pointer once it exists.

        Raises `UserError` for what MLflow does not have, `UnreachableError` where it does not
        answer in time and no earlier pointer exists.
        """
        ...

    def ask_now(self) -> None:
        """Asks about all addresses now; does not wait for the answers."""
        ...

    def close(self) -> None:
        """Stops asking for this server."""
        ...


class RolloutControl(Protocol):
    """The rollout of one server, which acts on what its replicas publish."""

    def want(self, variants: Variants) -> None:
        """Sets the canaries and shadows of all models; does not wait until they answer."""
        ...

    def ask_now(self) -> None:
        """Has MLflow asked about all addresses; does not wait for the answers."""
        ...


class Coordination:
    """How a server agrees with the other replicas of its application: this one has no others."""

    controller: RolloutControl | None = None

    def start(self, controller: RolloutControl) -> None:
        """Starts to pass on to the controller what other replicas publish."""
        self.controller = controller

    def publish(self, slot: Slot, wanted: VariantSource | None) -> None:
        """Tells every other replica what is wanted in a slot, None for nothing.

        Raises `UserError` where they cannot be told.
        """

    def ask_now(self) -> None:
        """Has every replica, this one too, ask MLflow."""
        if self.controller is not None:
            self.controller.ask_now()

    def close(self) -> None:
        """Stops passing on anything."""
        self.controller = None


class WatchProcess:
    """The process that asks MLflow for a server; its methods are thread-safe."""

    def __init__(self, settings: WatchSettings) -> None:
        self._settings = settings
        self._follows = settings.poll_seconds > 0
        self._is_closed = threading.Event()
        self._lock = threading.Lock()  # of the process and its pipes, and of what is ordered
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._awaited: dict[Address, Future[Path]] = {}
        self.pointers: dict[Address, Path] = {}
        """Where the pointer of each address lies, once it has been started."""

    def start(self) -> None:
        """Returns when each address has a pointer.

        Logs a warning where MLflow does not answer and an earlier pointer exists. Raises
        `UserError` where none exists, and for what MLflow does not have.
        """
        addresses = self._settings.addresses
        if not addresses:
            return
        if not self._follows:
            self._ask_once(addresses)
            return
        with self._lock:
            process = None if self._process is not None else self._begin(addresses)
        if process is None or process.stdout is None:  # something was added before
            for address in addresses:
                self.add(address)
            return
        for line in process.stdout:
            self._take(line)
            if self.pointers.keys() >= set(addresses):
                self._attend_from_now_on()
                return
        with process:
            code = process.wait()
        raise self._ended(code, "", addresses)

    def add(self, address: Address) -> Path:
        """Asks about one more address from now on; returns its pointer once it exists.

        Returns at once for an address that is followed already; raises as `Watcher.add`.
        """
        if self._follows and address in self.pointers:
            return self.pointers[address]
        if not str(address).isprintable():  # it is to be a line
            raise UserError("not a model URI", repr(str(address)), "write models:/name@alias")
        if not self._follows:
            self._ask_once((address,), _ADD_SECONDS)
            return self.pointers[address]
        with self._lock:
            if self._is_closed.is_set():
                raise _closed(address)
            answer = self._awaited.get(address)
            if answer is None:
                answer = self._awaited[address] = Future()
                if self._process is None:
                    self._begin(())
                    self._attend_from_now_on()
                self._write(str(address))
        try:
            return answer.result(_ADD_SECONDS)
        except TimeoutError:
            with self._lock:  # it is not ordered again if the process is restarted
                self._awaited.pop(address, None)
            raise _too_late(address) from None

    def ask_now(self) -> None:
        """Asks about all addresses now; does not wait for the answers."""
        with self._lock:
            self._write("")

    def close(self) -> None:
        """Ends the process."""
        self._is_closed.set()
        with self._lock:
            process = self._process
            if process is not None and process.stdin is not None:
                process.stdin.close()
            for address, answer in self._awaited.items():
                answer.set_exception(_closed(address))
            self._awaited.clear()
        if process is not None:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:  # it is waiting for MLflow
                process.kill()
                process.wait()
        if self._thread is not None:
            self._thread.join()

    def _begin(
        self, addresses: Iterable[Address], *, is_again: bool = False
    ) -> subprocess.Popen[str]:
        """Starts the process that follows addresses; needs the lock."""
        # With a second pipe that is not read the process could block forever.
        arguments = [*_arguments(self._settings, addresses), *(["--again"] if is_again else [])]
        self._process = _popen(arguments, stderr=subprocess.DEVNULL)
        return self._process

    def _write(self, line: str) -> None:
        """Writes a line to the process, if it runs; needs the lock."""
        process = self._process
        if process is None or process.stdin is None or process.stdin.closed:
            return
        with suppress(BrokenPipeError):  # not by the file: what it keeps would break its end
            os.write(process.stdin.fileno(), f"{line}\n".encode())

    def _take(self, line: str) -> None:
        """Reads a line of the process; raises the `UserError` that it may be."""
        if not line.startswith("{"):
            return
        message = json.loads(line)
        if "notice" in message:
            _LOG.info("serving.watch: %s", message["notice"])
            return
        if "remedy" in message:
            kind = UnreachableError if message["kind"] == "unreachable" else UserError
            error = kind(message["what"], message["where"], message["remedy"])
            answer = self._answer_to(message.get("model"))
            if answer is None:
                raise error
            answer.set_exception(error)
            return
        if message["warning"] is not None:
            _LOG.warning("warning: %s", message["warning"])
        path = Path(message["pointer"])
        self.pointers[Address.of(message["model"])] = path
        answer = self._answer_to(message["model"])
        if answer is not None:
            answer.set_result(path)

    def _answer_to(self, model: str | None) -> Future[Path] | None:
        with self._lock:
            return None if model is None else self._awaited.pop(Address.of(model), None)

    def _ask_once(self, addresses: tuple[Address, ...], seconds: float | None = None) -> None:
        """Asks about addresses with another process, once; raises as `start`."""
        process = _popen(_arguments(self._settings, addresses), stderr=subprocess.PIPE)
        with process:
            try:
                output, errors = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                raise _too_late(addresses[0]) from None
        for line in output.splitlines():
            self._take(line)
        if not self.pointers.keys() >= set(addresses):
            raise self._ended(process.returncode, errors, addresses)

    def _ended(self, code: int, errors: str, addresses: Iterable[Address]) -> UserError:
        return UserError(
            f"python -m serving.watch ended with {code}, "
            f"{(errors.strip().splitlines() or ['no output'])[-1][:300]}",
            " ".join(str(address) for address in addresses if address not in self.pointers),
            "run it by hand with the same --model to see more",
        )

    def _attend_from_now_on(self) -> None:
        self._thread = threading.Thread(target=self._attend, daemon=True)
        self._thread.start()

    def _attend(self) -> None:
        """Logs the process's output and restarts the process, until this is closed."""
        process = self._process
        assert process is not None
        while True:
            for line in process.stdout or ():
                try:
                    self._take(line)
                except (UserError, ValueError) as error:  # or half a line, by one that was killed
                    _LOG.warning("warning: serving.watch: %s", error)
            with self._lock, process:  # closes its pipes, and waits for it
                pass
            if self._is_closed.wait(_AGAIN_SECONDS):
                return
            _LOG.warning(
                "warning: serving.watch ended with %s and is restarted", process.returncode
            )
            with self._lock:
                if self._is_closed.is_set():
                    return
                process = self._begin(self.pointers, is_again=True)
                for address in self._awaited:
                    self._write(str(address))


def _arguments(settings: WatchSettings, addresses: Iterable[Address]) -> list[str]:
    return replace(settings, addresses=tuple(addresses)).arguments


def _popen(arguments: list[str], stderr: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "serving.watch", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=_environment(),
        process_group=0,  # Ctrl-C is for the server, which then ends it
    )


def _closed(address: Address) -> UserError:
    return UnreachableError("no longer followed", str(address), "the server is stopping")


def _too_late(address: Address) -> UserError:
    return UnreachableError(
        f"MLflow has not given it within {_ADD_SECONDS:.0f} s",
        str(address),
        "try again later: the download continues",
    )


def _environment() -> dict[str, str]:
    """The environment of the process, which finds this project from any working folder."""
    project = str(Path(__file__).resolve().parent.parent)
    paths = [project, os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
