"""Servers as processes: started, asked whether they answer as they should, watched, ended.

A server is all of its processes: their processor time and memory are counted together.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.serving_load import Connection, request_of

ROOT = Path(__file__).parent.parent
START_SECONDS = 300
_POLL_SECONDS = 0.05
_END_SECONDS = 10

Command = Sequence[str | int | Path]
Scores = dict[str, float]
"""The score of each label that a server says."""


@dataclass(frozen=True)
class Kind:
    """A kind of server: how it is started, asked and understood.

    `command` makes the command line of a folder, a port and a working folder. `packages` are what
    the environment of a peer has; none of ours, which run in this one.
    """

    name: str
    command: Callable[[Path, int, Path], Command]
    path: str
    body: Callable[[Any], Any]
    scores: Callable[[Any], Scores]
    packages: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_peer(self) -> bool:
        """Whether it is somebody else's."""
        return bool(self.packages)

    def request(self, text: str | Sequence[str]) -> bytes:
        """The request that asks about a text, or where that is possible about several."""
        return request_of(self.path, json.dumps(self.body(text)).encode())


class Served:
    """A server that runs."""

    def __init__(self, kind: Kind, folder: Path, work: Path, threads: int | None = None) -> None:
        self.kind = kind
        self.port = free_port()
        self.log = work / f"{kind.name.replace(' ', '-')}.log"
        environment = {**os.environ, **kind.environment, "PYTHONPATH": str(ROOT)}
        if kind.is_peer:
            del environment["PYTHONPATH"]
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(each) for each in kind.command(folder, self.port, work)],
                env=environment,
                cwd=work,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._root = psutil.Process(self._process.pid)

    def wait(self, text: str, right: Scores, *, tolerance: float) -> None:
        """Waits until it answers; asserts that its best label has the right score.

        Raises `RuntimeError`, with the end of its log, where it never does.
        """
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            with suppress(OSError):
                connection = Connection(self.port)
                status, body = connection.ask(self.kind.request(text))
                connection.close()
                if status == 200:
                    found = self.kind.scores(json.loads(body))
                    best = max(found, key=lambda label: found[label])
                    assert abs(found[best] - right[best]) < tolerance, (self.kind.name, found)
                    return
                if status < 500 and status != 404:  # nothing is routed there yet
                    raise RuntimeError(f"{self.kind.name}: {status} {body[:500]!r}")
            time.sleep(_POLL_SECONDS)
        raise RuntimeError(f"{self.kind.name} did not start: {self.log.read_text()[-2000:]}")

    def processor_seconds(self) -> dict[int, float]:
        """What each of its processes has had until now."""
        found = {}
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                found[process.pid] = times.user + times.system
        return found

    def processor_seconds_since(self, before: Mapping[int, float]) -> float:
        """What they have had since then, together."""
        return sum(now - before.get(pid, 0.0) for pid, now in self.processor_seconds().items())

    @property
    def resident_bytes(self) -> int:
        """Their memory; pages that processes share count once."""
        total = 0
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                total += process.memory_full_info().pss
        return total

    @property
    def own_size(self) -> dict[str, int]:
        """Memory, threads and open files of its first process alone."""
        memory = self._root.memory_full_info()
        return {
            "resident_bytes": memory.rss,
            "unshared_bytes": memory.uss,
            "threads": self._root.num_threads(),
            "open_files": self._root.num_fds(),
        }

    def end(self) -> None:
        """Ends it, all of its processes."""
        processes = self._processes()
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def _processes(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return [self._root, *self._root.children(recursive=True)]
        return []


def make_environment(kind: Kind, work: Path) -> None:
    """Makes the virtual environment of a peer, once; raises `CalledProcessError` if it cannot."""
    folder = environment_of(kind, work)
    done = folder / ".installed"
    if done.is_file() and done.read_text() == "\n".join(kind.packages):
        return
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, *kind.packages], check=True)
    done.write_text("\n".join(kind.packages))


def environment_of(kind: Kind, work: Path) -> Path:
    """The virtual environment of a peer."""
    return work / "environments" / kind.name.replace(" ", "-")


def free_port() -> int:
    """A port that nothing listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
