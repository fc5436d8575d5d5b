"""Freed memory, however scattered, goes back to the machine; what stays is left alone."""

import gc
import platform
import subprocess
import sys

import psutil

from bert_core.memory import give_back_memory, leave_what_exists_alone


def test_scattered_memory_is_given_back():
    me = psutil.Process()
    held = [bytes(3000) for _ in range(50_000)]  # 150 MB, of which one in fifty stays
    held = held[::50]
    before = me.memory_full_info().uss
    give_back_memory()
    given_back = before - me.memory_full_info().uss
    assert len(held) == 1000
    assert given_back > (50 << 20 if platform.libc_ver()[0] == "glibc" else -1)


USED_BY_A_THREAD = """
import ctypes, threading, psutil
from bert_core.memory import give_back_memory, share_one_heap

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]

def use():
    library.free(library.malloc(30 << 20))  # from now on blocks of so much come from heaps
    pieces = [library.malloc(60_000) for _ in range(700)]
    for each in pieces:
        ctypes.memset(each, 1, 60_000)
    for each in pieces:
        library.free(each)

share_one_heap()
before = psutil.Process().memory_info().rss
thread = threading.Thread(target=use)
thread.start()
thread.join()
give_back_memory()
print(psutil.Process().memory_info().rss - before)
"""


def test_what_a_thread_has_freed_is_given_back():
    command = [sys.executable, "-c", USED_BY_A_THREAD]
    kept = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert int(kept) < (10 << 20 if platform.libc_ver()[0] == "glibc" else 50 << 20)  # of 42 MB


def test_what_exists_is_not_looked_at_again():
    held = [[] for _ in range(100_000)]
    assert len(gc.get_objects()) > len(held)
    leave_what_exists_alone()
    try:
        assert gc.get_freeze_count() > len(held)
        assert len(gc.get_objects()) < len(held)  # those that a collection goes through
        garbage = []
        garbage.append(garbage)
        del garbage
        assert gc.collect() > 0  # what comes later is looked at
    finally:
        gc.unfreeze()
