"""What a device can do at best, measured in the run that is compared with it, and its data sheet's.

MFU is told against both: a matrix product never reaches the data sheet.
"""

import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.measurement import matmul_peak, timed_calls
from bert_core.machine import processor_name

DATA_SHEET_FLOPS_PER_SECOND = {"NVIDIA H200": 989.4e12, "NVIDIA H100 80GB HBM3": 989.4e12}
"""bf16, dense, of the SXM cards by the names that they give themselves; others are not known."""

MATRIX_SIZE = 8192
MATMUL_SECONDS = 10.0
COPY_SECONDS = 1.0
COPY_BYTES = {"cpu": 2**28, "cuda": 2**32}
"""Far above every cache; half as many on a card would still do."""

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
    """The rate of a large matrix product and of a large copy, bytes read and written both counted.

    On CUDA the median over ten seconds of bf16 products of 8192 x 8192 random numbers, for a card
    that has got warm is slower than one in its first second; on a CPU the best of ten in float32.
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
    """FLOP/s of bf16 products of random numbers, the median over so many seconds of them."""
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
    """The median of as many calls as fit, after a few that are not counted."""
    timed_calls(call, device, 3, clock)
    found: list[float] = []
    total = 0.0
    while total < seconds:
        found += timed_calls(call, device, 10, clock)
        total += sum(found[-10:])
    return statistics.median(found)


def device_state(device: torch.device) -> dict[str, str] | None:
    """Driver, clocks, power and temperature as nvidia-smi reads them; None where it cannot."""
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
