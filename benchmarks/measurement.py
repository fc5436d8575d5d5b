"""Measure time, memory and peak rates of a device: interleaved turns, matmul and copy, nvidia-smi.

Utilization is relative to both the measured matmul peak and the data sheet: no matrix product
reaches the data sheet.
"""

import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, pairwise

import torch
from torch import Tensor, nn

from bert_core.errors import UserError
from bert_core.machine import processor_name
from bert_core.model.cpu.linear import as_convolution


@dataclass
class Arm:
    """One side of a comparison: a step to time. `seconds` has the time per step of each turn."""

    name: str
    is_peer: bool
    step: Callable[[], object]
    seconds: list[float] = field(default_factory=list)

    @property
    def median_seconds(self) -> float:
        """The median step."""
        return statistics.median(self.seconds)


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
"""Elapsed time, or CPU time: what one thread would need on an idle machine."""


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
    """Seconds of each of `count` calls; on CUDA by events, without waiting between calls."""
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


CPU_PRODUCT_SIZE = 2048
"""Size of the square matrices of a CPU's matmul peak."""


def matmul_peak(device: torch.device, clock: Callable[[], float] = time.perf_counter) -> float:
    """FLOP/s of a large product of random matrices, the best of ten: fp32 on a CPU, else bf16.

    On a CPU the better of `mm` and a convolution, which differ widely on some CPUs.
    """
    size, dtype = (
        (CPU_PRODUCT_SIZE, torch.float32) if device.type == "cpu" else (8192, torch.bfloat16)
    )
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
    """Describe what the figures depend on: device, versions, threads."""
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


def synchronize(device: torch.device) -> None:
    """Waits for the operations on a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


DATA_SHEET_FLOPS_PER_SECOND = {"NVIDIA H200": 989.4e12, "NVIDIA H100 80GB HBM3": 989.4e12}
"""bf16, dense, of SXM cards by device name; others are unknown."""

MATRIX_SIZE = 8192
MATMUL_SECONDS = 10.0
COPY_SECONDS = 1.0
COPY_BYTES = {"cpu": 2**28, "cuda": 2**32}
"""Far larger than every cache."""

_STATE = {
    "driver": "driver_version",
    "sm_clock_mhz": "clocks.sm",
    "memory_clock_mhz": "clocks.mem",
    "power_watts": "power.draw",
    "temperature_celsius": "temperature.gpu",
}


def measured_peaks(
    device: torch.device, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float | None]:
    """The rates of a large matrix product and of a large copy (bytes read plus written).

    On CUDA the median over ten seconds of bf16 products of 8192 x 8192 random numbers, because a
    warm card is slower than in its first second; on a CPU the best of ten in float32.
    """
    on_cuda = device.type == "cuda"
    return {
        "matmul_flops_per_second": bfloat16_peak(device) if on_cuda else matmul_peak(device, clock),
        "copy_bytes_per_second": copy_peak(device, clock),
        "data_sheet_flops_per_second": DATA_SHEET_FLOPS_PER_SECOND.get(processor_name(device)),
    }


def bfloat16_peak(
    device: torch.device, *, size: int = MATRIX_SIZE, seconds: float = MATMUL_SECONDS
) -> float:
    """FLOP/s of bf16 products of random numbers, the median over some seconds."""
    left, right = torch.randn(2, size, size, device=device).to(torch.bfloat16)
    product = torch.empty_like(left)
    multiply = partial(torch.mm, left, right, out=product)
    return 2 * size**3 / _median_seconds(multiply, device, seconds)


def copy_peak(
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
    *,
    seconds: float = COPY_SECONDS,
) -> float:
    """Bytes a second, read and written, of a copy within the device's memory; the median."""
    count = COPY_BYTES[device.type]
    source = torch.randint(0, 255, (count,), dtype=torch.uint8, device=device)
    copy = partial(torch.empty_like(source).copy_, source)
    return 2 * count / _median_seconds(copy, device, seconds, clock)


def _median_seconds(
    call: Callable[[], object],
    device: torch.device,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """The median over as many calls as fit, after a few untimed ones."""
    timed_calls(call, device, 3, clock)
    found: list[float] = []
    total = 0.0
    while total < seconds:
        found += timed_calls(call, device, 10, clock)
        total += sum(found[-10:])
    return statistics.median(found)


def device_state(device: torch.device) -> dict[str, str] | None:
    """Driver, clocks, power and temperature from nvidia-smi; None without it."""
    if device.type != "cuda" or shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", f"--query-gpu={','.join(_STATE.values())}"]
    command += ["--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
    except (subprocess.SubprocessError, OSError):
        return None
    first = said.stdout.splitlines()[0].split(", ") if said.stdout else []
    return dict(zip(_STATE, first, strict=True)) if len(first) == len(_STATE) else None


def device_named(name: str) -> torch.device:
    """Return the device of this name; raise `UserError` if there is none."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("torch sees no GPU", "--device cuda", "use --device cpu")
    return torch.device(name)


class MemoryWatch:
    """The peak memory of a device since the start of the watch, above what was in use then."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            self._before = torch.cuda.memory_allocated(device)

    def peak_bytes(self) -> int | None:
        """Return the bytes of tensors; None on a CPU, which is not measured."""
        if self._device.type != "cuda":
            return None
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - self._before


def weight_bytes(model: nn.Module) -> int:
    """Bytes of a model's parameters and buffers."""
    weights = chain(model.parameters(), model.buffers())
    return sum(weight.numel() * weight.element_size() for weight in weights)
