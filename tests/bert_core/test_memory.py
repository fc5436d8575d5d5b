"""Freed memory, however scattered, goes back to the machine."""

import platform

import psutil

from bert_core.memory import give_back_memory


def test_scattered_memory_is_given_back():
    me = psutil.Process()
    held = [bytes(3000) for _ in range(50_000)]  # 150 MB, of which one in fifty stays
    held = held[::50]
    before = me.memory_full_info().uss
    give_back_memory()
    given_back = before - me.memory_full_info().uss
    assert len(held) == 1000
    assert given_back > (50 << 20 if platform.libc_ver()[0] == "glibc" else -1)
