"""Memory that was freed goes back to the machine; what stays is not looked at again."""

import ctypes
import gc


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
