import torch

from bert_core.processor import processor_name


def test_the_cpu_is_told_with_the_vector_instructions_that_torch_uses():
    name = processor_name(torch.device("cpu"))
    cpu, instructions = name.rsplit(", ", 1)
    assert cpu and instructions == torch.backends.cpu.get_cpu_capability()


def test_a_gpu_is_told_by_its_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a GPU at {device}")
    assert processor_name(torch.device("cuda", 0)) == "a GPU at cuda:0"
