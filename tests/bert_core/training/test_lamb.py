"""LAMB against a reference by hand, all tensors at once against each alone, and its state."""

import numpy as np
import pytest
import torch
from torch import nn

from bert_core.training import optimization
from bert_core.training.optimization import Lamb, create_optimizer, updated_at_once
from bert_core.training.settings import OptimizerSettings


def _lamb_by_hand(weight, gradients, rate, decay):
    """Algorithm 2 of You et al. 2019 in numpy; no trust ratio without decay."""
    mean, square = np.zeros_like(weight), np.zeros_like(weight)
    for number, gradient in enumerate(gradients, start=1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        corrected = square / (1 - 0.999**number)
        update = mean / (1 - 0.9**number) / (np.sqrt(corrected) + 1e-6) + decay * weight
        norms = np.linalg.norm(weight), np.linalg.norm(update)
        ratio = norms[0] / norms[1] if decay and all(norms) else 1.0
        weight = weight - rate * ratio * update
    return weight


def test_lamb_equals_the_algorithm_by_hand():
    torch.manual_seed(5)
    layer = nn.Linear(6, 3).double()
    zeros = nn.Linear(6, 3, bias=False).double()  # norm 0: the ratio must be 1, not 0
    nn.init.zeros_(zeros.weight)
    model = nn.ModuleList([layer, zeros])
    start = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    gradients = {name: [] for name in start}
    settings = OptimizerSettings(name="lamb", peak_learning_rate=0.05)
    optimizer = create_optimizer(model, settings)
    for _ in range(6):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            gradients[name].append(parameter.grad.numpy().copy())
        optimizer.step()
    for name, parameter in model.named_parameters():
        decay = 0.0 if name.endswith("bias") else 0.01
        expected = _lamb_by_hand(start[name], gradients[name], 0.05, decay)
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-9, atol=1e-12)


def test_lamb_passes_over_a_parameter_without_gradient():
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    optimizer = create_optimizer(model, OptimizerSettings(name="lamb"))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    model[0](torch.ones(1, 3)).sum().backward()
    optimizer.step()
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert moved == [True, True, False, False]


def several_tensors():
    """Parameters of several shapes, one of them 0, one of which never has a gradient."""
    torch.manual_seed(1)
    shapes = [(40, 30), (30,), (7, 5, 3), (1, 1), (20, 20), ()]
    tensors = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    nn.init.zeros_(tensors[4])
    return [*tensors, nn.Parameter(torch.randn(3, 3))]


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_all_at_once_are_what_each_is_alone(monkeypatch, weight_decay):
    """On accelerators they are updated together, on the CPU one by one."""
    found = []
    for together in (False, True):
        if together:
            monkeypatch.setattr(
                optimization, "updated_at_once", lambda parameters: [list(parameters)]
            )
        parameters = several_tensors()
        optimizer = Lamb(parameters, lr=0.1, weight_decay=weight_decay)
        random = torch.Generator().manual_seed(2)
        for step in range(5):
            for index, parameter in enumerate(parameters[:-1]):
                # The second begins a step later than the others: its correction is another.
                known = index != 1 or step > 0
                gradient = torch.randn(parameter.shape, generator=random)
                parameter.grad = gradient if known else None
            optimizer.step()
        moments = [optimizer.state[each]["exp_avg_sq"] for each in parameters[:-1]]
        found.append([each.detach() for each in [*parameters, *moments]])
        assert [int(optimizer.state[each]["step"]) for each in parameters[:3]] == [5, 4, 5]
        assert parameters[-1] not in optimizer.state
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_together_on_an_accelerator_alone_on_a_cpu():
    here, there = torch.zeros(2), torch.zeros(2, device="meta")
    found = updated_at_once([here, there, here, there])
    assert [[each.device.type for each in part] for part in found] == [
        ["cpu"],
        ["cpu"],
        ["meta", "meta"],
    ]
    assert updated_at_once([]) == []


def test_the_step_stays_on_the_host_with_the_names_of_adamw():
    there = nn.Parameter(torch.zeros(4, 4, device="meta"))
    there.grad = torch.zeros_like(there)
    optimizer = Lamb([there])
    optimizer.step()
    state = {name: value.device.type for name, value in optimizer.state[there].items()}
    assert state == {"step": "cpu", "exp_avg": "meta", "exp_avg_sq": "meta"}
    loaded = Lamb([there])
    loaded.load_state_dict(optimizer.state_dict())
    assert loaded.state[there]["step"] == 1
