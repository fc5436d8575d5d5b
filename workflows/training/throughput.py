"""How fast a run goes and what it uses: step results in, the figures of the live line out."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch

from bert_core.model.cpu.linear import linear
from bert_core.training.loop import StepResult
from workflows.cluster import Worker
from workflows.training import xla_device

RECENT_STEPS = 50
"""Steps over which rates are taken."""
PEAKS = 3
"""How often the device's peak is measured; the best counts."""
PUBLISH_SECONDS = 0.5
"""The least time between two words to the driver."""


class Throughput:
    """Rates over the last steps, and the news that the driver shows."""

    def __init__(self, worker: Worker, total_steps: int) -> None:
        self._worker = worker
        self._total_steps = total_steps
        self._steps: deque[tuple[float, int, int, float]] = deque(maxlen=RECENT_STEPS)
        self._news: dict[str, Any] = {}
        self._published = self._last = 0.0
        self._peak, self._num_peaks = 0.0, 0
        self._busy_seconds = self._earlier_seconds = 0.0

    def start(self, earlier_seconds: float = 0.0) -> None:
        """Measures the device's peak and starts the clock.

        `earlier_seconds` are those that earlier starts of the run have used, all workers together.
        """
        self._measure_peak()
        self._earlier_seconds = earlier_seconds
        self._last = time.perf_counter()

    def add(self, result: StepResult, flops: float) -> None:
        """Counts one step of so many FLOPs, at the time its results were read."""
        now = time.perf_counter()
        tokens, slots = int(result.num_real_tokens), int(result.num_slots)
        self._steps.append((now - self._last, tokens, slots, flops))
        self._busy_seconds += now - self._last
        self._last = now
        self._news |= self._figures(result.step)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves what happens inside out of the rates, though not out of the usage.

        The peak is measured again the first times: Ray's own start may still share the cores.
        """
        begin = time.perf_counter()
        yield
        self._busy_seconds += time.perf_counter() - begin
        if self._num_peaks < PEAKS:
            self._measure_peak()
        self._last += time.perf_counter() - begin

    def publish(self, news: dict[str, Any], *, at_once: bool = False) -> None:
        """Adds to the news, and tells the driver unless it was told just now."""
        self._news |= news
        if at_once or time.monotonic() - self._published > PUBLISH_SECONDS:
            self._worker.publish(self._news)
            self._published = time.monotonic()

    def usage(self) -> float:
        """Seconds all workers together have spent on this run, earlier starts included."""
        return self._earlier_seconds + self._busy_seconds * self._worker.world_size

    def _measure_peak(self) -> None:
        worker = self._worker
        peak = xla_device.peak_flops() if worker.through_xla else peak_flops(worker.device)
        self._peak = max(self._peak, peak * worker.world_size)
        self._num_peaks += 1

    def _memory_bytes(self) -> int:
        worker = self._worker
        return xla_device.memory_bytes() if worker.through_xla else memory_bytes(worker.device)

    def _figures(self, step: int) -> dict[str, float]:
        seconds, tokens, slots, flops = map(sum, zip(*self._steps, strict=True))
        return {
            "tokens_per_second": tokens / seconds,
            "padding_share": 1 - tokens / slots,
            "mfu": flops / seconds / self._peak,
            "memory_bytes": self._memory_bytes(),
            "eta_seconds": (self._total_steps - step) * seconds / len(self._steps),
        }


def peak_flops(device: torch.device) -> float:
    """FLOP/s of a large linear map, random numbers, the best of a few; fp32 on CPU, else bf16.

    What the model FLOP utilisation (MFU) is a share of.
    """
    on_cpu = device.type == "cpu"
    size, dtype = (1024, torch.float32) if on_cpu else (8192, torch.bfloat16)
    left, right = torch.randn(2, size, size, device=device).to(dtype)
    best = float("inf")
    for _ in range(8):
        begin = time.perf_counter()
        linear(left, right, None)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begin)
    return 2 * size**3 / best


def memory_bytes(device: torch.device) -> int:
    """The most memory the device has had in use, or the memory this process has now on CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return psutil.Process().memory_info().rss
