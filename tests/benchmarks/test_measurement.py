"""Timing, peaks and memory of devices, and results on disk at every step."""

import json
import os
from itertools import count

import pytest
import torch
from torch import nn

from benchmarks import measurement
from benchmarks.measurement import MemoryWatch, device_named, weight_bytes
from benchmarks.results import ResultsSoFar
from bert_core.errors import UserError


class Event:
    """A CUDA event on a clock that a test turns."""

    now = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        """Takes the time as the device comes by."""
        self.at = Event.now

    def elapsed_time(self, end):
        """Milliseconds."""
        return 1e3 * (end.at - self.at)


def test_calls_on_cuda_are_timed_one_by_one_without_waiting_between_them(monkeypatch):
    happened = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: happened.append("waited"))
    lasting = iter([0.5, 0.25, 2.0])

    def call():
        happened.append("called")
        Event.now += next(lasting)

    seconds = measurement.timed_calls(call, torch.device("cuda"), 3)
    assert seconds == [0.5, 0.25, 2.0]
    assert happened == ["waited", "called", "called", "called", "waited"]


def test_calls_on_a_cpu_are_timed_by_the_clock():
    times = iter([1.0, 1.5, 4.0])
    seconds = measurement.timed_calls(lambda: None, torch.device("cpu"), 2, lambda: next(times))
    assert seconds == [0.5, 2.5]


def test_a_machine_without_transformers_says_so(monkeypatch):
    def absent(name):
        raise measurement.PackageNotFoundError(name)

    monkeypatch.setattr(measurement, "version", absent)
    assert measurement.surroundings(torch.device("cpu"))["transformers"] == "absent"


CPU = torch.device("cpu")


def test_a_copy_counts_what_is_read_and_what_is_written(monkeypatch):
    monkeypatch.setitem(measurement.COPY_BYTES, "cpu", 1000)
    ticks = count()
    rate = measurement.copy_peak(CPU, lambda: 0.5 * next(ticks), seconds=20)
    assert rate == 2 * 1000 / 0.5


def test_the_median_of_as_many_products_as_fit(monkeypatch):
    asked = []

    def timed(call, device, calls, clock):
        call()
        asked.append(calls)
        return [2.0] * (calls - 1) + [100.0]  # one of them was disturbed

    monkeypatch.setattr(measurement, "timed_calls", timed)
    assert measurement.bfloat16_peak(CPU, size=4, seconds=300) == 2 * 4**3 / 2.0
    assert asked == [3, 10, 10, 10]  # 118 s each, after those that are not counted


def test_both_run_on_what_is_here(monkeypatch):
    monkeypatch.setitem(measurement.COPY_BYTES, "cpu", 1000)
    assert measurement.copy_peak(CPU, seconds=1e-9) > 0
    assert measurement.bfloat16_peak(CPU, size=16, seconds=1e-9) > 0


@pytest.mark.parametrize(
    ("name", "known"), [("NVIDIA H200", 989.4e12), ("NVIDIA H100 PCIe", None), ("cpu", None)]
)
def test_the_data_sheet_is_told_of_cards_that_are_known(monkeypatch, name, known):
    monkeypatch.setattr(measurement, "processor_name", lambda _: name)
    monkeypatch.setattr(measurement, "matmul_peak", lambda *_: 5e12)
    monkeypatch.setattr(measurement, "copy_peak", lambda *_: 3e12)
    found = measurement.measured_peaks(CPU)
    assert found["data_sheet_flops_per_second"] == known
    assert found["matmul_flops_per_second"] == 5e12
    assert found["copy_bytes_per_second"] == 3e12


def test_the_state_of_the_card_is_only_read(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho "580.1, 1980, 3201, 71.5, 40"'
    )
    program.chmod(0o755)
    assert measurement.device_state(CPU) is None
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert measurement.device_state(torch.device("cuda")) == {
        "driver": "580.1",
        "sm_clock_mhz": "1980",
        "memory_clock_mhz": "3201",
        "power_watts": "71.5",
        "temperature_celsius": "40",
    }
    asked = (tmp_path / "asked").read_text().split()
    assert [each.partition("=")[0] for each in asked] == ["--query-gpu", "--format"]
    program.write_text("#!/bin/sh\nexit 9")
    assert measurement.device_state(torch.device("cuda")) is None
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert measurement.device_state(torch.device("cuda")) is None


def test_a_gpu_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_named("cpu").type == "cpu"
    with pytest.raises(UserError, match="no GPU here"):
        device_named("cuda")


def test_the_bytes_of_weights_and_buffers():
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))  # a count of 8 bytes among them
    assert weight_bytes(model) == 4 * (3 * 5 + 5 + 4 * 5) + 8


def test_only_what_is_above_the_beginning_counts(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 1000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 1700)
    assert MemoryWatch(torch.device("cuda")).peak_bytes() == 700
    assert MemoryWatch(torch.device("cpu")).peak_bytes() is None


def test_what_is_known_is_on_disk_and_unfinished_until_the_end(tmp_path, capsys):
    path = tmp_path / "results.json"
    so_far = ResultsSoFar(path, budget_seconds=60)
    so_far.keep(peaks=1, arms={})
    assert json.loads(path.read_text()) == {"peaks": 1, "arms": {}, "unfinished": True}
    so_far.keep(arms={"ours": 2})
    so_far.leave_out("theirs")
    so_far.leave_out("others")
    known = {"peaks": 1, "arms": {"ours": 2}, "left_out": ["theirs", "others"]}
    assert json.loads(path.read_text()) == known | {"unfinished": True}
    so_far.fail("ours", ValueError("no\nsuch thing"))
    known["failed"] = {"ours": "ValueError: no"}
    assert "such thing" in capsys.readouterr().err
    so_far.finish()
    assert json.loads(path.read_text()) == known


def test_the_budget_is_used_up_by_the_clock():
    times = iter([100.0, 130.0, 175.0])
    so_far = ResultsSoFar(None, budget_seconds=60, clock=lambda: next(times))
    assert so_far.seconds_left == pytest.approx(30)
    assert so_far.seconds_left == pytest.approx(-15)
