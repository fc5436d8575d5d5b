"""Throughput of a run: step results go in, rates over the last steps come out."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from bert_core.training.loop import StepResult
from workflows.messages import Speed
from workflows.training.backend import Backend

RECENT_STEPS = 50
"""Steps over which rates are taken."""
PEAKS = 3
"""How often the device's peak is measured; the best counts."""


class Throughput:
    """Rates over the last steps, and the time that the run has used."""

    def __init__(self, backend: Backend, world_size: int, total_steps: int) -> None:
        self._backend = backend
        self._world_size = world_size
        self._total_steps = total_steps
        self._steps: deque[tuple[float, int, int, float]] = deque(maxlen=RECENT_STEPS)
        self._last = 0.0
        self._peak, self._num_peaks = 0.0, 0
        self._busy_seconds = self._earlier_seconds = 0.0

    def start(self, earlier_seconds: float = 0.0) -> None:
        """Measures the device's peak and starts the clock.

        `earlier_seconds` is what `usage` returned at the end of the earlier starts of the run.
        """
        self._measure_peak()
        self._earlier_seconds = earlier_seconds
        self._last = time.perf_counter()

    def add(self, result: StepResult, flops: float) -> Speed:
        """Counts one step of so many FLOPs, at the time its results were read."""
        now = time.perf_counter()
        tokens, slots = int(result.num_real_tokens), int(result.num_slots)
        self._steps.append((now - self._last, tokens, slots, flops))
        self._busy_seconds += now - self._last
        self._last = now
        return self._speed(result.step)

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

    def usage(self) -> float:
        """Worker seconds spent on this run, earlier starts included."""
        return self._earlier_seconds + self._busy_seconds * self._world_size

    def _measure_peak(self) -> None:
        self._peak = max(self._peak, self._backend.peak_flops() * self._world_size)
        self._num_peaks += 1

    def _speed(self, step: int) -> Speed:
        seconds, tokens, slots, flops = map(sum, zip(*self._steps, strict=True))
        return Speed(
            tokens_per_second=tokens / seconds,
            padding_share=1 - tokens / slots,
            mfu=flops / seconds / self._peak,
            memory_bytes=self._backend.memory_bytes(),
            eta_seconds=(self._total_steps - step) * seconds / len(self._steps),
        )
