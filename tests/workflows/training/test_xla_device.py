"""The chips as JAX has them; here they are CPU devices."""

import psutil
import pytest
import torch

from workflows.clusters.workers import Worker
from workflows.training import xla_device
from workflows.training.throughput import Throughput, peak_flops


def test_a_cpu_says_that_it_is_one():
    assert xla_device.kind() == "cpu"
    assert xla_device.name()


def test_peak_and_memory_are_those_of_this_process():
    assert 0.05 < xla_device.peak_flops() / peak_flops(torch.device("cpu")) < 20
    assert xla_device.memory_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)


def test_a_chip_that_says_what_it_has_had_in_use_is_believed(monkeypatch):
    import jax

    class Chip:
        def memory_stats(self):
            return {"peak_bytes_in_use": 7 << 30, "bytes_in_use": 1}

    monkeypatch.setattr(jax, "local_devices", lambda: [Chip()])
    assert xla_device.memory_bytes() == 7 << 30


@pytest.mark.parametrize("through_xla", [False, True])
def test_the_throughput_is_measured_against_the_device_that_computes(monkeypatch, through_xla):
    monkeypatch.setattr(xla_device, "peak_flops", lambda: 5e12)
    monkeypatch.setattr("workflows.training.throughput.peak_flops", lambda _: 3e12)
    worker = Worker(0, 4, torch.device("cpu"), None, through_xla=through_xla)
    throughput = Throughput(worker, total_steps=10)
    throughput.start()
    assert throughput._peak == (20e12 if through_xla else 12e12)
