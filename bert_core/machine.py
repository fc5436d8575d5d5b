"""The machine: the processor's name, its memory, and a thread that prepares steps."""

import ctypes
import gc
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1  # of glibc's mallopt
_LARGE = 20 << 20
"""Bytes from which an allocation is mapped by itself; tensors of a server's batches are smaller."""

Step = TypeVar("Step")


def steps_ahead(make: Callable[[int], Step], first: int, *, ahead: int = 2) -> Iterator[Step]:
    """The endless sequence of `make(first)`, `make(first + 1)`, …, made `ahead` in a thread.

    So the training loop does not wait for data.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as thread:
        coming = [thread.submit(make, first + number) for number in range(ahead)]
        while True:
            first += 1
            coming.append(thread.submit(make, first + ahead - 1))
            yield coming.pop(0).result()


def release_memory() -> None:
    """Returns freed memory to the system with `malloc_trim`, where it exists; takes milliseconds.

    Micro-batches differ in size, so freed memory is fragmented: without this, a process that
    computes them grows to twice the memory it needs.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def freeze_garbage_collector() -> None:
    """Excludes all existing objects from garbage collection.

    For a server that has loaded its models: scanning half a million objects of libraries pauses it
    for 150 milliseconds, every few thousand requests.
    """
    gc.collect()
    gc.freeze()


def keep_malloc_small() -> None:
    """Makes malloc return what is freed, where the C library supports it; for a server's start.

    Later threads allocate from one arena: that of a single thread keeps up to 64 MB free at its
    end, which `release_memory` does not return. Large tensors, as of a text of 8,192 tokens, are
    mapped one by one: between smaller ones they would leave gaps that the next text cannot use.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_ARENA_MAX, 1)
        set_option(_MMAP_THRESHOLD, _LARGE)  # without it glibc raises it up to 32 MiB
        set_option(_TRIM_THRESHOLD, 64 << 20)  # what it would have raised this to


def processor_name(device: "torch.device") -> str:
    """The name of a GPU, or of the CPU with the vector instructions that torch uses of it."""
    import torch  # a server imports this module before it needs torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    known = getattr(torch.cpu, "get_capabilities", dict)()
    name = known.get("cpu_name") or platform.machine()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"
