import time

import psutil
import pytest
import torch

from bert_core.errors import UserError
from bert_core.training.loop import StepResult
from workflows.clusters.workers import Worker
from workflows.pretraining.settings import PretrainSettings
from workflows.training.backend import TorchBackend
from workflows.training.run import Throughput, backend_of
from workflows.training.xla_backend import XlaBackend, chip_name

CPU = torch.device("cpu")
FLOPS = 1e10


def result(step, tokens=900, slots=1000):
    counts = torch.tensor(float(tokens)), torch.tensor(float(slots))
    loss, sums, norm = torch.tensor(1.15), torch.zeros(6), torch.tensor(0.5)
    return StepResult(step, loss, sums, norm, 1e-3, *counts, 900, stopped=False)


@pytest.fixture
def backend():
    return TorchBackend(Worker(0, 2, CPU, None), None)


def test_rates_are_of_real_tokens_in_the_time_they_took(backend):
    throughput = Throughput(backend, 2, lambda step: 10 - step)
    throughput.start()
    begin = time.perf_counter()
    for step in (1, 2, 3):
        time.sleep(0.1)
        speed = throughput.add(result(step), FLOPS)
    seconds = time.perf_counter() - begin
    assert speed.tokens_per_second == pytest.approx(2700 / seconds, rel=0.05)
    assert speed.padding_share == pytest.approx(0.1)
    assert speed.eta_seconds == pytest.approx(7 * seconds / 3, rel=0.05)
    peak_of_both = 3 * FLOPS / seconds / speed.mfu
    assert 0.1 < peak_of_both / (2 * backend.peak_flops()) < 10, (
        "measured twice on a shared machine"
    )


def test_pauses_count_as_use_but_not_as_speed(backend):
    throughput = Throughput(backend, 2, lambda step: 10 - step)
    throughput.start(earlier_seconds=100.0)
    throughput.add(result(1), FLOPS)
    with throughput.paused():
        time.sleep(0.5)
    assert throughput.add(result(2), FLOPS).tokens_per_second > 1800 / 0.4
    assert throughput.usage() == pytest.approx(100 + 2 * 0.5, abs=0.4), "two workers used it"


def test_a_machine_has_a_peak_and_a_process_memory(backend):
    assert 1e9 < backend.peak_flops() < 1e14
    assert backend.memory_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)


def test_a_full_device_names_the_remedy(backend):
    with (
        pytest.raises(UserError, match=r"the device is out of memory: cpu \(buy more\)"),
        backend.out_of_memory("buy more"),
    ):
        raise torch.OutOfMemoryError("out of memory")


def test_xla_on_cpu_measures_this_process(backend):
    on_xla = XlaBackend(None)
    assert on_xla.description() == {"device": "cpu", "processor": chip_name()}
    assert 0.05 < on_xla.peak_flops() / backend.peak_flops() < 20
    assert on_xla.memory_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)


def test_a_chip_reports_its_peak_memory(monkeypatch):
    import jax

    class Chip:
        def memory_stats(self):
            return {"peak_bytes_in_use": 7 << 30, "bytes_in_use": 1}

    monkeypatch.setattr(jax, "local_devices", lambda: [Chip()])
    assert XlaBackend(None).memory_bytes() == 7 << 30


@pytest.mark.parametrize("through_xla", [False, True])
def test_utilization_is_relative_to_the_device_that_computes(monkeypatch, through_xla):
    monkeypatch.setattr(XlaBackend, "peak_flops", lambda _: 5e12)
    monkeypatch.setattr(TorchBackend, "peak_flops", lambda _: 3e12)
    worker = Worker(0, 4, CPU, None, through_xla=through_xla)
    throughput = Throughput(backend_of(worker, PretrainSettings()), 4, lambda _: 0)
    throughput.start()
    assert throughput._peak == (20e12 if through_xla else 12e12)
