"""The machine: the processor's name, and memory that is returned to the system or shared."""

import ctypes
import gc
import platform

import torch

_ARENA_MAX = -8  # glibc's M_ARENA_MAX


def give_back_memory() -> None:
    """Returns freed memory to the machine, where the C library knows how; takes milliseconds.

    Micro-batches differ in size, so what is freed lies scattered: left alone, a process that
    computes them grows to twice what it needs.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def leave_what_exists_alone() -> None:
    """Has Python's garbage collector look no more at what there is now.

    For a server that has loaded all it needs: to look at half a million objects of libraries holds
    everything up for 150 milliseconds, every few thousand requests.
    """
    gc.collect()
    gc.freeze()


def share_one_heap() -> None:
    """Has threads that begin from now on take memory from one heap, if the C library can do so.

    For a server, at its start. A thread's own heap keeps what is free at its end, up to 64 MB:
    `give_back_memory` does not reach it.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_ARENA_MAX, 1)


def processor_name(device: torch.device) -> str:
    """The name of a GPU, or of the CPU with the vector instructions that torch uses of it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    known = getattr(torch.cpu, "get_capabilities", dict)()
    name = known.get("cpu_name") or platform.machine()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"
