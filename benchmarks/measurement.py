"""Timing that survives a busy machine: turns of arms interleaved, and what they ran on."""

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bert_core.model.cpu.linear import as_convolution
from bert_core.processor import processor_name


@dataclass
class Arm:
    """One contestant: a step to time. `seconds` collects the time per step of each turn."""

    name: str
    is_peer: bool
    step: Callable[[], object]
    seconds: list[float] = field(default_factory=list)

    @property
    def median_seconds(self) -> float:
        """The median step."""
        return statistics.median(self.seconds)


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
"""Elapsed time, or processor time: what one thread would need were no other program running."""


def run_interleaved(
    arms: Sequence[Arm],
    device: torch.device,
    *,
    rounds: int,
    steps: int,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Times `steps` steps of each arm in every round, the order turning by one each round."""
    for turn in range(rounds):
        start = turn % len(arms)
        for arm in (*arms[start:], *arms[:start]):
            synchronize(device)
            begin = clock()
            for _ in range(steps):
                arm.step()
            synchronize(device)
            arm.seconds.append((clock() - begin) / steps)


def timed_calls(
    call: Callable[[], object],
    device: torch.device,
    count: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Seconds of each of `count` calls; on CUDA by events, nothing waited for between the calls."""
    if device.type != "cuda":
        times = [clock()]
        for _ in range(count):
            call()
            times.append(clock())
        return [end - begin for begin, end in pairwise(times)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    torch.cuda.synchronize(device)
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize(device)
    return [begin.elapsed_time(end) / 1e3 for begin, end in pairwise(events)]


def median_ratio(slower: Arm, faster: Arm) -> float:
    """How many times as fast `faster` is: the median over rounds of the ratio within a round."""
    pairs = zip(slower.seconds, faster.seconds, strict=True)
    return statistics.median(left / right for left, right in pairs)


def matmul_peak(device: torch.device, clock: Callable[[], float] = time.perf_counter) -> float:
    """FLOP/s of a large matrix product of random numbers, the best of ten: fp32 on CPU, or bf16.

    On a CPU the better of torch's two ways, one of which is the faster on some CPUs by far.
    """
    size, dtype = (2048, torch.float32) if device.type == "cpu" else (8192, torch.bfloat16)
    left, right = torch.randn(2, size, size, device=device).to(dtype)
    products: list[Callable[[Tensor, Tensor], Tensor]] = [torch.mm]
    if device.type == "cpu" and torch.backends.mkldnn.is_available():
        products.append(partial(as_convolution, bias=None))
    seconds = []
    for product in products * 10:
        synchronize(device)
        begin = clock()
        product(left, right)
        synchronize(device)
        seconds.append(clock() - begin)
    return 2 * size**3 / min(seconds)


def surroundings(device: torch.device) -> dict[str, str | int]:
    """What the figures depend on: the device, the versions, the threads."""
    try:
        theirs = version("transformers")
    except PackageNotFoundError:
        theirs = "absent"
    return {
        "device": processor_name(device),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": theirs,
    }


def write_results(results: Mapping[str, Any], path: Path | None) -> None:
    """Writes results as JSON, beside the name and renamed; nothing without a path."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.written")
    beside.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def synchronize(device: torch.device) -> None:
    """Waits for what was started on a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
