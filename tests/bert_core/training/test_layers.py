"""Which layers learn, how fast, and which begin anew."""

import pytest
import torch
from torch import nn

from bert_core.config import ModelConfig, ModernConfig
from bert_core.model.bert import Bert
from bert_core.model.encoder import Encoder
from bert_core.model.layout import Packed
from bert_core.settings import FinetuningOptimizerSettings
from bert_core.training.layers import decayed_groups, draw_anew, freeze, layer_of
from bert_core.training.loop import TrainingState, train
from bert_core.training.optimization import create_optimizer, parameter_groups

CONFIG = ModelConfig(
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)
MODERN = ModernConfig(
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
    pad_token_id=0,
)
LENGTHS = [5, 3, 4]


@pytest.fixture
def model():
    torch.manual_seed(1)
    model = Bert.for_pretraining(CONFIG)
    del model.heads["masked_token"], model.heads["next_sentence"]
    model.add_task_head("classifier", 2)
    return model


class Batch:
    num_real_tokens = num_slots = sum(LENGTHS)

    def to(self, *_, **__):
        return self


class Step:
    micro_batches = (Batch(),)
    counts: dict[str, int] = {}
    num_rows = len(LENGTHS)
    sum_of_squared_lengths = sum(each**2 for each in LENGTHS)


def loss_of(model, batch):
    ids = torch.arange(1, sum(LENGTHS) + 1)
    positions = torch.cat([torch.arange(each) for each in LENGTHS])
    firsts = torch.tensor([0, 5, 8])
    states = model.encoder(
        ids, torch.zeros_like(ids), positions, Packed.from_lengths(LENGTHS), places=firsts
    )
    logits = model.heads["classifier"](model.heads["pooler"](states))
    loss = nn.functional.cross_entropy(logits, torch.tensor([0, 1, 1]))
    return loss, loss.detach().reshape(1)


def trained(model, optimizer, steps=3, rate=1e-2):
    state = TrainingState(model, optimizer)
    settings = {"max_gradient_norm": 1e9, "device": torch.device("cpu"), "autocast_dtype": None}
    run = train(
        *(state, iter([Step()] * steps), loss_of),
        total_steps=steps,
        schedule=lambda _: rate,
        seed=0,
        **settings,
    )
    return [float(result.loss) for result in run]


def weights(model):
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def test_every_parameter_has_its_layer(model):
    layers = {name: layer_of(name, 3) for name, _ in model.named_parameters()}
    assert {layers[name] for name in layers if ".embeddings." in name} == {0}
    assert {layers[name] for name in layers if name.startswith("heads.")} == {4}
    for number in range(3):
        own = {layers[name] for name in layers if f".layers.{number}." in name}
        assert own == {number + 1}


def test_the_last_norm_of_the_modern_block_is_of_its_highest_layer():
    model = Bert(Encoder(MODERN), {})
    model.add_task_head("classifier", 2)
    norm = model.encoder.norm.weight
    groups = decayed_groups(model, parameter_groups(model, 0.01), 0.5)
    (share,) = {
        group["rate_share"]
        for group in groups
        if any(parameter is norm for parameter in group["params"])
    }
    assert share == 0.5
    freeze(model, 2)
    assert norm.requires_grad
    assert not model.encoder.layers[1].output_norm.weight.requires_grad
    freeze(model, 3)
    assert not norm.requires_grad
    norm.data.fill_(3.0)
    draw_anew(model, 1)
    assert torch.equal(norm, torch.ones(16))


def test_the_rate_falls_by_a_share_a_layer(model):
    settings = FinetuningOptimizerSettings(layer_decay=0.5, weight_decay=0.3)
    groups = parameter_groups(model, settings.weight_decay)
    divided = decayed_groups(model, groups, 0.5)
    found = {
        id(parameter): (group["rate_share"], group["weight_decay"])
        for group in divided
        for parameter in group["params"]
    }
    names = dict(model.named_parameters())
    assert len(found) == len(names)
    for name, parameter in names.items():
        share, decay = found[id(parameter)]
        assert share == 0.5 ** (4 - layer_of(name, 3)), name
        assert decay == (0.3 if parameter.ndim >= 2 else 0.0), name
    # One step of AdamW from nothing moves each number by the rate, without decay.
    plain = FinetuningOptimizerSettings(weight_decay=0.0, epsilon=1e-30)
    groups = decayed_groups(model, parameter_groups(model, 0.0), 0.5)
    before = weights(model.eval())
    trained(model, create_optimizer(model, plain, groups), steps=1)
    for name, parameter in model.named_parameters():
        moved = (parameter.detach() - before[name]).abs().max()
        expected = 1e-2 * 0.5 ** (4 - layer_of(name, 3))
        assert moved == pytest.approx(expected, rel=1e-3), name


def test_without_decay_the_bits_are_those_of_one_rate(model):
    settings = FinetuningOptimizerSettings()
    start = {name: each.clone() for name, each in model.state_dict().items()}
    trained(model, create_optimizer(model, settings))
    plain = weights(model)
    model.load_state_dict(start)
    groups = decayed_groups(model, parameter_groups(model, settings.weight_decay), 1.0)
    trained(model, create_optimizer(model, settings, groups))
    assert all(torch.equal(each, plain[name]) for name, each in weights(model).items())


def test_frozen_layers_stay_and_the_others_learn_as_without(model):
    """The gradients above are those of a model of which all learn."""
    loss_of(model.eval(), None)[0].backward()
    whole = {name: each.grad.clone() for name, each in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    freeze(model, 2)
    loss_of(model, None)[0].backward()
    for name, parameter in model.named_parameters():
        if layer_of(name, 3) <= 2:
            assert parameter.grad is None, name
        else:
            assert torch.equal(parameter.grad, whole[name]), name
    model.train()
    model.zero_grad(set_to_none=True)
    before = weights(model)
    losses = trained(model, create_optimizer(model, FinetuningOptimizerSettings()), steps=20)
    assert losses[-1] < losses[0]
    for name, each in weights(model).items():
        assert torch.equal(each, before[name]) == (layer_of(name, 3) <= 2), name


def test_the_highest_layers_are_drawn_anew_from_the_generator(model):
    before = weights(model)
    torch.manual_seed(7)
    draw_anew(model, 1)
    first = weights(model)
    for name in first:
        changes = name.startswith(("encoder.layers.2.", "heads.pooler."))
        changes = changes and name.endswith(".weight") and "norm" not in name
        assert torch.equal(first[name], before[name]) != changes, name
    torch.manual_seed(7)
    draw_anew(model, 1)
    assert all(torch.equal(each, first[name]) for name, each in weights(model).items())
    draw_anew(model, 0)
    assert all(torch.equal(each, first[name]) for name, each in weights(model).items())
