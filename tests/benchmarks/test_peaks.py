import os
from itertools import count

import pytest
import torch

from benchmarks import peaks

CPU = torch.device("cpu")


def test_a_copy_counts_what_is_read_and_what_is_written(monkeypatch):
    monkeypatch.setitem(peaks.COPY_BYTES, "cpu", 1000)
    ticks = count()
    rate = peaks.copy_peak(CPU, lambda: 0.5 * next(ticks), seconds=20)
    assert rate == 2 * 1000 / 0.5


def test_the_median_of_as_many_products_as_fit(monkeypatch):
    asked = []

    def timed(call, device, calls, clock):
        call()
        asked.append(calls)
        return [2.0] * (calls - 1) + [100.0]  # one of them was disturbed

    monkeypatch.setattr(peaks, "timed_calls", timed)
    assert peaks.bfloat16_peak(CPU, size=4, seconds=300) == 2 * 4**3 / 2.0
    assert asked == [3, 10, 10, 10]  # 118 s each, after those that are not counted


def test_both_run_on_what_is_here(monkeypatch):
    monkeypatch.setitem(peaks.COPY_BYTES, "cpu", 1000)
    assert peaks.copy_peak(CPU, seconds=1e-9) > 0
    assert peaks.bfloat16_peak(CPU, size=16, seconds=1e-9) > 0


@pytest.mark.parametrize(
    ("name", "known"), [("NVIDIA H200", 989.4e12), ("NVIDIA H100 PCIe", None), ("cpu", None)]
)
def test_the_data_sheet_is_told_of_cards_that_are_known(monkeypatch, name, known):
    monkeypatch.setattr(peaks, "processor_name", lambda _: name)
    monkeypatch.setattr(peaks, "matmul_peak", lambda *_: 5e12)
    monkeypatch.setattr(peaks, "copy_peak", lambda *_: 3e12)
    found = peaks.measured_peaks(CPU)
    assert found["data_sheet_flops_per_second"] == known
    assert found["matmul_flops_per_second"] == 5e12
    assert found["copy_bytes_per_second"] == 3e12


def test_the_state_of_the_card_is_only_read(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho "580.1, 1980, 3201, 71.5, 40"'
    )
    program.chmod(0o755)
    assert peaks.device_state(CPU) is None
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert peaks.device_state(torch.device("cuda")) == {
        "driver": "580.1",
        "sm_clock_mhz": "1980",
        "memory_clock_mhz": "3201",
        "power_watts": "71.5",
        "temperature_celsius": "40",
    }
    asked = (tmp_path / "asked").read_text().split()
    assert [each.partition("=")[0] for each in asked] == ["--query-gpu", "--format"]
    program.write_text("#!/bin/sh\nexit 9")
    assert peaks.device_state(torch.device("cuda")) is None
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert peaks.device_state(torch.device("cuda")) is None
