"""Measure the memory of this process and of the Ray cluster that it has joined."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import ray

_SETTLING_SECONDS = 2


@dataclass
class Memory:
    """Bytes before the work, and `series`, (seconds since the start, bytes) during it."""

    idle: int
    series: list[tuple[float, int]] = field(default_factory=list)

    @property
    def peak_above_idle(self) -> int:
        """The peak during the work, less the bytes before."""
        return max((each for _, each in self.series), default=self.idle) - self.idle


@contextmanager
def watched_memory(every_seconds: float = 0.2) -> Iterator[Memory]:
    """Samples the memory periodically; shared pages count once."""
    time.sleep(_SETTLING_SECONDS)
    memory = Memory(resident_bytes())
    begin = time.monotonic()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(every_seconds):
            memory.series.append((time.monotonic() - begin, resident_bytes()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield memory
    finally:
        done.set()
        watcher.join()


def resident_bytes() -> int:
    """The current memory of this process and of its cluster's processes."""
    total = 0
    session = Path(ray.get_runtime_context().get_session_name()).name
    for process in psutil.process_iter():
        try:
            mine = process.pid == os.getpid()
            command = "" if mine else " ".join(process.cmdline())
            # A worker's title replaces its command; its parent is a process of its cluster.
            if command.startswith("ray::") and (parent := process.parent()):
                command = " ".join(parent.cmdline())
            if mine or session in command:
                total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total
