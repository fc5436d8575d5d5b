"""Optimizers, their settings, and gradients in rows."""

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from bert_core.config import ModelConfig
from bert_core.model.bert import Bert
from bert_core.settings import OptimizerSettings, PretrainingOptimizerSettings
from bert_core.training import optimization
from bert_core.training.optimization import (
    LARGE_TABLE,
    Lamb,
    RowGradients,
    StableAdamW,
    create_optimizer,
    linear_schedule,
    parameter_groups,
    stable_schedule,
    updated_at_once,
)

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


@pytest.mark.parametrize("name", ["adamw", "lamb", "stableadamw"])
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


def _stable_adamw_by_hand(weight, gradients, rate, decay):
    """Algorithm 2 of Wortsman et al. 2023 in numpy: its betas correct the bias from the start."""
    mean, square = np.zeros_like(weight), np.zeros_like(weight)
    clipped = 0
    for number, gradient in enumerate(gradients, start=1):
        beta1 = 0.9 * (1 - 0.9 ** (number - 1)) / (1 - 0.9**number)
        beta2 = 0.999 * (1 - 0.999 ** (number - 1)) / (1 - 0.999**number)
        mean = beta1 * mean + (1 - beta1) * gradient
        square = beta2 * square + (1 - beta2) * gradient**2
        root = np.sqrt(square) + 1e-6
        size = np.sqrt(np.mean((gradient / root) ** 2))
        clipped += size > 1
        own = rate / max(1.0, size)
        weight = weight - own * decay * weight - own * mean / root
    return weight, clipped


def test_stable_adamw_equals_the_algorithm_by_hand():
    torch.manual_seed(5)
    model = nn.ModuleList([nn.Linear(6, 3).double(), nn.Linear(6, 3, bias=False).double()])
    start = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    gradients = {name: [] for name in start}
    settings = OptimizerSettings(name="stableadamw", peak_learning_rate=0.05)
    optimizer = create_optimizer(model, settings)
    for step in range(6):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn_like(parameter) * (30 if step == 3 else 1)
            gradients[name].append(parameter.grad.numpy().copy())
        optimizer.step()
    for name, parameter in model.named_parameters():
        decay = 0.0 if name.endswith("bias") else 0.01
        expected, clipped = _stable_adamw_by_hand(start[name], gradients[name], 0.05, decay)
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-9, atol=1e-12)
        assert 0 < clipped < 6, "the step in which all gradients grow, and not each"


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
@pytest.mark.parametrize("kind", [Lamb, StableAdamW])
def test_all_at_once_are_what_each_is_alone(monkeypatch, weight_decay, kind):
    """On accelerators they are updated together, on the CPU one by one."""
    found = []
    for together in (False, True):
        if together:
            monkeypatch.setattr(
                optimization, "updated_at_once", lambda parameters: [list(parameters)]
            )
        parameters = several_tensors()
        optimizer = kind(parameters, lr=0.1, weight_decay=weight_decay)
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


class Words(nn.Module):
    """A large table and a small one, and a map that the table may share."""

    def __init__(self, tied):
        super().__init__()
        torch.manual_seed(0)
        self.large = nn.Embedding(LARGE_TABLE, 6)
        self.small = nn.Embedding(20, 6)
        self.tied = tied

    def loss(self, ids):
        states = self.large(ids) + self.small(ids % 20)
        if self.tied:
            states = states @ self.large.weight.T
        return states.square().sum()


def steps_of(model, gradients, max_norm):
    """Three steps of two micro-batches with rows that repeat: norms, gradients, weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        for part in range(2):
            ids = torch.tensor([3, 7, 7, 4000 + step, 100 * step + part])
            with gradients.computing():
                model.loss(ids).backward()
        norm = gradients.clip(max_norm)
        gradients.spread()
        yield norm, model.large.weight.grad.clone(), model.small.weight.grad.clone()
        optimizer.step()
    yield model.large.weight, model.small.weight


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("max_norm", [1.0, 1e6])
def test_steps_are_those_of_whole_tables(tied, max_norm):
    model = Words(tied).double()
    plain = list(steps_of(model, RowGradients(model, wanted=False), max_norm))
    model = Words(tied).double()
    in_rows = list(steps_of(model, RowGradients(model, wanted=True), max_norm))
    torch.testing.assert_close(in_rows, plain, rtol=1e-9, atol=1e-12)


def test_one_table_of_zeros_serves_all_steps():
    model = Words(tied=False)
    gradients = RowGradients(model, wanted=True)
    places = set()
    for step in range(3):
        model.zero_grad()
        with gradients.computing():
            model.loss(torch.tensor([step, 9])).backward()
        assert model.large.weight.grad.is_sparse and not model.small.weight.grad.is_sparse
        gradients.clip(1.0)
        gradients.spread()
        places.add(model.large.weight.grad.data_ptr())
        assert model.large.weight.grad.any(1).nonzero().flatten().tolist() == [step, 9]
    assert len(places) == 1


def test_other_backward_passes_are_as_usual():
    model = Words(tied=False)
    gradients = RowGradients(model, wanted=True)
    with pytest.raises(ZeroDivisionError), gradients.computing():
        raise ZeroDivisionError
    model.loss(torch.tensor([1])).backward()
    assert not model.large.weight.grad.is_sparse


@pytest.mark.parametrize(
    ("given", "warmup"),
    [({"warmup_steps": 7}, 7), ({"warmup_share": 0.06}, 300), ({"warmup_share": 0}, 0)],
)
def test_a_warmup_is_steps_or_a_share(given, warmup):
    assert PretrainingOptimizerSettings(**given).warmup_of(5000) == warmup


def test_a_stable_schedule_has_a_flat_part_that_does_not_depend_on_the_end():
    def rates(total):
        values = {"total_steps": total, "warmup_steps": 4, "decay_steps": 5}
        return [stable_schedule(step, **values) for step in range(total + 1)]

    assert rates(20)[:4] == [0.25, 0.5, 0.75, 1]
    assert rates(20)[:15] == rates(100)[:15] and set(rates(100)[3:96]) == {1.0}
    assert rates(20)[15:] == pytest.approx([1, 0.8, 0.6, 0.4, 0.2, 0])


def test_defaults_are_the_papers():
    settings = PretrainingOptimizerSettings()
    assert settings.model_dump() == {
        "name": "adamw",
        "peak_learning_rate": 1e-4,
        "warmup_steps": 10_000,
        "warmup_share": None,
        "schedule": "linear",
        "decay_share": 0.1,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        "max_gradient_norm": 1.0,
    }
    assert all(field.description for field in PretrainingOptimizerSettings.model_fields.values())
    with pytest.raises(ValidationError, match="warmup"):
        PretrainingOptimizerSettings(warmup=3)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "sgd"},
        {"beta1": 1.0},
        {"peak_learning_rate": 0},
        {"peak_learning_rate": math.inf},
        {"weight_decay": math.inf},
        {"max_gradient_norm": 0},
        {"max_gradient_norm": math.nan},
    ],
)
def test_what_cannot_be_trained_with_is_refused(wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        PretrainingOptimizerSettings(**wrong)
    assert PretrainingOptimizerSettings(max_gradient_norm=math.inf), "clips nothing"
