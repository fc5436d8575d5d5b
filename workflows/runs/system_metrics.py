"""Use of the machine while a run goes on, under the names of MLflow's own system metrics.

In: the training process's id and a folder on its disk. Out: `{name: value}`, units in the names.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from workflows.runs.tracker import read_json, write_json

MEGABYTE = 1e6
GPU_FIELDS = "index,utilization.gpu,memory.used,memory.total,power.draw"


THROUGHPUT_NAME = "throughput.json"
STALE_SECONDS = 60.0


def note_throughput(folder: Path, figures: Mapping[str, float]) -> None:
    """Leaves a run's present speed where its sampler finds it; nothing without a speed."""
    names = ("tokens_per_second", "padding_share", "mfu", "memory_bytes")
    speed = {f"system/training_{name}": figures[name] for name in names if name in figures}
    if speed:
        with contextlib.suppress(OSError):  # a full disk is the checkpoint's to report
            write_json(folder / THROUGHPUT_NAME, speed)


def _throughput(folder: Path) -> dict[str, float]:
    path = folder / THROUGHPUT_NAME
    if not path.exists() or time.time() - path.stat().st_mtime > STALE_SECONDS:
        return {}
    return read_json(path)


class SystemSampler:
    """Samples processor, memory, disk and, where `nvidia-smi` is, the visible GPUs."""

    def __init__(self, process_id: int, folder: Path) -> None:
        import psutil

        self._psutil = psutil
        self._process_id = process_id
        self._folder = folder
        self._nvidia_smi = shutil.which("nvidia-smi")
        psutil.cpu_percent(None)  # the first call has nothing to compare with

    def sample(self) -> dict[str, float]:
        """The present values; what cannot be read is left out."""
        memory = self._psutil.virtual_memory()
        disk = self._psutil.disk_usage(str(self._folder))
        values = {
            "system/cpu_utilization_percentage": self._psutil.cpu_percent(None),
            "system/system_memory_usage_megabytes": memory.used / MEGABYTE,
            "system/system_memory_usage_percentage": memory.percent,
            "system/disk_usage_megabytes": disk.used / MEGABYTE,
            "system/disk_usage_percentage": disk.percent,
            "system/disk_available_megabytes": disk.free / MEGABYTE,
        }
        return values | self._process_memory() | self._gpus() | _throughput(self._folder)

    def _process_memory(self) -> dict[str, float]:
        try:
            resident = self._psutil.Process(self._process_id).memory_info().rss
        except self._psutil.Error:
            return {}
        return {"system/training_process_memory_megabytes": resident / MEGABYTE}

    def _gpus(self) -> dict[str, float]:
        if self._nvidia_smi is None:
            return {}
        command = [self._nvidia_smi, f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader,nounits"]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible:
            command.append(f"--id={visible}")
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return {}
        values: dict[str, float] = {}
        for line in result.stdout.splitlines():
            values |= parse_gpu_line(line)
        return values


def parse_gpu_line(line: str) -> dict[str, float]:
    """Turns a line of `nvidia-smi` (GPU_FIELDS, MiB and watts) into metrics; {} if it has none."""
    cells = [cell.strip() for cell in line.split(",")]
    try:
        index, (utilization, used, total, power) = int(cells[0]), map(float, cells[1:])
    except ValueError:  # "[N/A]" on parts of a GPU, or a message instead of figures
        return {}
    prefix = f"system/gpu_{index}"
    return {
        f"{prefix}_utilization_percentage": utilization,
        f"{prefix}_memory_usage_megabytes": used * 2**20 / MEGABYTE,
        f"{prefix}_memory_usage_percentage": 100 * used / total,
        f"{prefix}_power_usage_watts": power,
    }
