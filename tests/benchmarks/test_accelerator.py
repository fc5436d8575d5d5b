import pytest
import torch
from torch import nn

from benchmarks.accelerator import MemoryWatch, device_named, weight_bytes
from bert_core.errors import UserError


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
