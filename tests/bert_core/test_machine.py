"""Freed memory, however scattered, goes back to the machine; what stays is left alone."""

import gc
import platform
import subprocess
import sys
import threading

import psutil
import pytest
import torch
from static_batches import static_source

from bert_core.machine import freeze_garbage_collector, processor_name, release_memory, steps_ahead


def test_scattered_memory_is_given_back():
    me = psutil.Process()
    held = [bytes(3000) for _ in range(50_000)]  # 150 MB, of which one in fifty stays
    held = held[::50]
    before = me.memory_full_info().uss
    release_memory()
    given_back = before - me.memory_full_info().uss
    assert len(held) == 1000
    assert given_back > (50 << 20 if platform.libc_ver()[0] == "glibc" else -1)


USED_BY_A_THREAD = """
import ctypes, threading, psutil
from bert_core.machine import release_memory, keep_malloc_small

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

keep_malloc_small()
before = psutil.Process().memory_info().rss
thread = threading.Thread(target=use)
thread.start()
thread.join()
release_memory()
print(psutil.Process().memory_info().rss - before)
"""


def test_what_a_thread_has_freed_is_given_back():
    command = [sys.executable, "-c", USED_BY_A_THREAD]
    kept = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert int(kept) < (10 << 20 if platform.libc_ver()[0] == "glibc" else 50 << 20)  # of 42 MB


def test_what_exists_is_not_looked_at_again():
    held = [[] for _ in range(100_000)]
    freeze_garbage_collector()
    try:
        assert gc.get_freeze_count() > len(held)
        assert len(gc.get_objects()) < len(held)  # those that a collection goes through
        garbage = []
        garbage.append(garbage)
        del garbage
        assert gc.collect() > 0  # what comes later is looked at
    finally:
        gc.unfreeze()


def test_the_cpu_is_told_with_the_vector_instructions_that_torch_uses():
    name = processor_name(torch.device("cpu"))
    cpu, instructions = name.rsplit(", ", 1)
    assert cpu and instructions == torch.backends.cpu.get_cpu_capability()


def test_a_gpu_is_told_by_its_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a GPU at {device}")
    assert processor_name(torch.device("cuda", 0)) == "a GPU at cuda:0"


def test_steps_are_made_ahead_in_order_and_not_further():
    made = []
    steps = steps_ahead(lambda step: made.append(step) or step * 10, 5, ahead=2)
    assert made == [], "nothing is made before it is asked for"
    assert [next(steps) for _ in range(3)] == [50, 60, 70]
    assert max(made) <= 5 + 2 + 2
    threads = threading.active_count()
    steps.close()
    assert threading.active_count() < threads


def test_what_goes_wrong_ahead_is_raised_at_its_turn():
    def make(step):
        if step == 2:
            raise ValueError("step 2")
        return step

    steps = steps_ahead(make, 0)
    assert [next(steps), next(steps)] == [0, 1]
    with pytest.raises(ValueError, match="step 2"):
        next(steps)


@pytest.mark.parametrize("packed", [False, True])
def test_the_thread_pins_every_tensor_where_that_is_asked_for(packed, monkeypatch):
    """Locked memory takes CUDA: here each tensor says who asked for it."""
    asked = []

    def pin_memory(tensor):
        asked.append((threading.current_thread().name.split("_")[0], id(tensor)))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    source = static_source(packed=packed)
    next(source.steps(0))
    assert asked == []
    step = next(source.steps(0, ahead=1, pinned=True))
    for batch in step.micro_batches:
        offsets = batch.layout.cu_seqlens if packed else batch.layout.mask
        tensors = [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
        assert len(tensors) == 6
        for tensor in [*tensors, offsets]:
            assert ("batches", id(tensor)) in asked
