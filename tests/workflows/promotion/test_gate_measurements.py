import numpy as np
import psutil
import pytest
import torch
from registered_models import written_models

from bert_core.errors import UserError
from bert_core.predictor import load_predictor
from workflows.promotion.gate import MeasuredWith
from workflows.promotion.gate_measurements import machine, measure_footprint, peak_memory_bytes

FEW = MeasuredWith(requests=20, batch_size=2)


@pytest.fixture(scope="module")
def model():
    folder = written_models()["right"]
    predictor = load_predictor(folder)
    return folder, predictor, predictor.task.examples(written_models()["data"], "dev")


def test_latency_and_memory_are_those_of_a_process_of_its_own(model):
    folder, predictor, examples = model
    mine = torch.ones(100_000_000)  # 400 MB that this process has and the other one has not
    before = peak_memory_bytes() / 1e6
    assert before > 400 and mine[0] == 1
    found = measure_footprint(folder, predictor.task_name, predictor.task, examples, FEW)
    assert 0.05 < found.p50_ms <= found.p95_ms
    assert 150 < found.memory_mb < before - 200


def test_a_process_that_dies_is_said(tmp_path, model, capfd):
    _, predictor, examples = model
    with pytest.raises(UserError, match="the process that measures ended with 1"):
        measure_footprint(tmp_path / "none", predictor.task_name, predictor.task, examples, FEW)
    assert "config.json" in capfd.readouterr().err


def test_the_peak_is_no_less_than_what_is_resident():
    block = np.ones(20_000_000)  # 160 MB
    resident = psutil.Process().memory_info().rss
    assert block[-1] == 1
    del block
    assert resident <= peak_memory_bytes() < 100 * resident


def test_the_machine_is_named_without_its_name():
    import platform

    assert "cores" in machine()
    assert platform.node() not in machine()
