import pytest
import torch
from transformers import BertModel

from bert_core.errors import UserError
from bert_core.model.strategies import STRATEGIES, Strategy, find_strategy
from bert_core.model.tagger import LayerMix

TRANSFORMERS = {
    "embeddings": lambda states: states[0],
    "second_to_last": lambda states: states[-2],
    "last": lambda states: states[-1],
    "sum_last_four": lambda states: torch.stack(states[-4:]).sum(0),
    "weighted_sum_last_four": lambda states: torch.stack(states[-4:]).mean(0),
    "concat_last_four": lambda states: torch.cat(states[-4:], dim=-1),
    "weighted_sum_all": lambda states: torch.stack(states[1:]).mean(0),
}
"""Each strategy, written out over the hidden_states of transformers."""


@torch.no_grad()
def test_real_weights_give_the_features_of_transformers(minilm_folder, extractor_of, some_rows):
    encoder = extractor_of().encoder
    rows = some_rows([7, 30, 12, 1], vocab_size=30_522)
    batch = rows.batch(packed=True)
    arguments = batch.inputs
    expected = BertModel.from_pretrained(minilm_folder).eval()(
        **rows.inputs, output_hidden_states=True
    )
    for name, strategy in STRATEGIES.items():
        states = encoder.hidden_states(*arguments, layers=strategy.layers_of(6))
        found = strategy.combine(states)
        assert found.shape[1] == strategy.feature_size(6, 384)
        atol = 4e-5 if name == "sum_last_four" else 1e-5  # the rounding of four layers adds up
        theirs = TRANSFORMERS[name](expected.hidden_states)[rows.real]
        torch.testing.assert_close(found, theirs, rtol=0, atol=atol)


def test_layers_count_from_the_embeddings_or_from_the_top():
    layers = {name: strategy.layers_of(12) for name, strategy in STRATEGIES.items()}
    last_four = (9, 10, 11, 12)
    assert layers == {
        "embeddings": (0,),
        "second_to_last": (11,),
        "last": (12,),
        "sum_last_four": last_four,
        "weighted_sum_last_four": last_four,
        "concat_last_four": last_four,
        "weighted_sum_all": tuple(range(1, 13)),
    }
    assert Strategy("layers", (0, 12, -2)).layers_of(12) == (0, 12, 11)


@pytest.mark.parametrize(
    ("strategy", "needed"),
    [
        (STRATEGIES["concat_last_four"], 4),
        (STRATEGIES["second_to_last"], 2),
        (Strategy("layers 1 and 7", (1, 7)), 7),
    ],
)
def test_a_model_with_fewer_layers_is_refused(strategy, needed):
    with pytest.raises(UserError, match=f"{strategy.name} needs {needed} layers: the model has"):
        strategy.layers_of(needed - 1)
    strategy.layers_of(needed)  # the embeddings are no layer, so one fewer would not do


def test_an_unknown_strategy_is_refused_with_the_nearest():
    with pytest.raises(UserError, match="did you mean concat_last_four"):
        find_strategy("concat_last_for")
    with pytest.raises(UserError, match="unknown strategy"):
        find_strategy("layer_x")
    with pytest.raises(UserError, match="unknown strategy"):
        find_strategy("layer_" + "9" * 5000)  # which int() refuses to read
    assert find_strategy("last") is STRATEGIES["last"]
    assert find_strategy("layer_3").layers_of(12) == (3,)
    with pytest.raises(UserError, match="layer_13 needs 13 layers: the model has 12"):
        find_strategy("layer_13").layers_of(12)


def test_layers_are_mixed_by_learned_weights():
    torch.manual_seed(0)
    states = torch.randn(3, 5, 4)
    strategy, mix = STRATEGIES["weighted_sum_all"], LayerMix(3)
    torch.testing.assert_close(strategy.combine(list(states)), states.mean(0))
    torch.testing.assert_close(strategy.combine(list(states), mix.weights), states.mean(0))
    with torch.no_grad():
        mix.logits.copy_(torch.tensor([0.0, 1.0, -1.0]))
        mix.scale.fill_(2.0)
    shares = torch.tensor([1, torch.e, 1 / torch.e]) / (1 + torch.e + 1 / torch.e)
    expected = 2 * (shares[:, None, None] * states).sum(0)
    found = strategy.combine(list(states), mix.weights)
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert mix.logits.grad.abs().sum() > 0
    assert mix.scale.grad.abs() > 0


def test_one_layer_is_scaled_too():
    states = [torch.ones(2, 3)]
    found = STRATEGIES["weighted_sum_all"].combine(states, torch.tensor([0.5]))
    assert found.tolist() == [[0.5] * 3] * 2
