import time

import psutil
import pytest
import torch

from bert_core.training.loop import StepResult
from workflows.clusters.workers import Worker
from workflows.training.throughput import Throughput, memory_bytes, peak_flops

CPU = torch.device("cpu")
FLOPS = 1e10


class RecordingWorker(Worker):
    """A worker that keeps what it would tell the driver."""

    def publish(self, news):
        self.__dict__.setdefault("news", []).append(dict(news))


def result(step, tokens=900, slots=1000):
    counts = torch.tensor(float(tokens)), torch.tensor(float(slots))
    loss, sums, norm = torch.tensor(1.15), torch.zeros(6), torch.tensor(0.5)
    return StepResult(step, loss, sums, norm, 1e-3, *counts, 900, stopped=False)


@pytest.fixture
def worker():
    return RecordingWorker(0, 2, CPU, None)


def test_rates_are_of_real_tokens_in_the_time_they_took(worker):
    throughput = Throughput(worker, total_steps=10)
    throughput.start()
    begin = time.perf_counter()
    for step in (1, 2, 3):
        time.sleep(0.1)
        throughput.add(result(step), FLOPS)
    seconds = time.perf_counter() - begin
    throughput.publish({}, at_once=True)
    (news,) = worker.news
    assert news["tokens_per_second"] == pytest.approx(2700 / seconds, rel=0.05)
    assert news["padding_share"] == pytest.approx(0.1)
    assert news["eta_seconds"] == pytest.approx(7 * seconds / 3, rel=0.05)
    peak_of_both = 3 * FLOPS / seconds / news["mfu"]
    assert 0.1 < peak_of_both / (2 * peak_flops(CPU)) < 10, "measured twice on a shared machine"


def test_pauses_count_as_use_but_not_as_speed(worker):
    throughput = Throughput(worker, total_steps=10)
    throughput.start(earlier_seconds=100.0)
    throughput.add(result(1), FLOPS)
    with throughput.paused():
        time.sleep(0.5)
    throughput.add(result(2), FLOPS)
    throughput.publish({}, at_once=True)
    assert worker.news[0]["tokens_per_second"] > 1800 / 0.4
    assert throughput.usage() == pytest.approx(100 + 2 * 0.5, abs=0.4), "two workers used it"


def test_the_driver_is_told_now_and_then_and_what_matters_at_once(worker):
    throughput = Throughput(worker, total_steps=10)
    throughput.publish({"step": 1})
    throughput.publish({"step": 2})
    throughput.publish({"checkpoint": "step-2"}, at_once=True)
    assert worker.news[-1] == {"step": 2, "checkpoint": "step-2"}
    assert len(worker.news) == 2


def test_a_machine_has_a_peak_and_a_process_memory():
    assert 1e9 < peak_flops(CPU) < 1e14
    assert memory_bytes(CPU) == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)
