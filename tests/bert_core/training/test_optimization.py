"""The schedule, what decays, and the same bits from the same gradients."""

import numpy as np
import pytest
import torch
from torch import nn

from bert_core.config import ModelConfig
from bert_core.model.bert import Bert
from bert_core.training.optimization import (
    create_optimizer,
    linear_schedule,
    parameter_groups,
)
from bert_core.training.settings import OptimizerSettings

CONFIG = ModelConfig(
    vocab_size=64,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)


def test_schedule_rises_to_one_and_falls_to_zero():
    rates = [linear_schedule(step, total_steps=10, warmup_steps=4) for step in range(11)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    np.testing.assert_allclose(rates[4:], [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0])
    assert linear_schedule(99, total_steps=10, warmup_steps=4) == 0
    assert linear_schedule(0, total_steps=10, warmup_steps=0) == 1


def test_biases_and_norms_do_not_decay_and_tied_weights_appear_once():
    model = Bert.for_pretraining(CONFIG)
    decayed, kept = parameter_groups(model, 0.01)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.01, 0.0)
    assert len(decayed["params"]) + len(kept["params"]) == len(names)
    for parameter in kept["params"]:
        assert "bias" in names[id(parameter)] or "norm" in names[id(parameter)].lower()
    for parameter in decayed["params"]:
        assert "bias" not in names[id(parameter)] and "norm" not in names[id(parameter)].lower()
    again = parameter_groups(model, 0.01)
    assert [id(p) for p in again[0]["params"]] == [id(p) for p in decayed["params"]]


def _run(name: str, steps: int = 5) -> list[torch.Tensor]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(300, 700), nn.LayerNorm(700))
    optimizer = create_optimizer(model, OptimizerSettings(name=name, peak_learning_rate=1e-3))
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_the_same_gradients_give_the_same_bits(name):
    for first, second in zip(_run(name), _run(name), strict=True):
        assert torch.equal(first, second)


def test_adamw_is_fused_and_corrects_adams_bias():
    layer = nn.Linear(4, 4).double()
    settings = OptimizerSettings(peak_learning_rate=0.1, weight_decay=0.0)
    optimizer = create_optimizer(layer, settings)
    assert optimizer.defaults["fused"]
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.randn_like(layer.weight)
    optimizer.step()
    expected = 0.1 * layer.weight.grad / (layer.weight.grad.abs() + 1e-6)
    torch.testing.assert_close(before - layer.weight.detach(), expected, rtol=1e-9, atol=1e-12)
