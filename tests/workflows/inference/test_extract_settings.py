import pytest

from bert_core.errors import UserError
from bert_core.features.extractor import FeatureChoice
from bert_core.model.strategies import STRATEGIES
from workflows.inference.extract_settings import ExtractSettings


def settings(**changed):
    return ExtractSettings(model="m", input=["a.txt"], output="out", **changed)


def test_the_defaults_are_the_last_layer_of_whole_texts():
    assert settings().choice() == FeatureChoice()


def test_layers_by_number_are_a_strategy_of_their_own():
    strategy = settings(layers=[0, -1]).chosen_strategy()
    assert strategy.layers_of(12) == (0, 12)
    assert strategy.feature_size(12, 10) == 20
    with pytest.raises(UserError, match="a strategy and layers"):
        settings(layers=[1], strategy="last")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "float32"),
        ({"strategy": "concat_last_four"}, "float16"),
        ({"strategy": "weighted_sum_all"}, "float32"),
        ({"layers": [0, 1, 2]}, "float16"),
        ({"layers": [3]}, "float32"),
        ({"layers": [0, 1], "dtype": "float32"}, "float32"),
        ({"dtype": "float16"}, "float16"),
    ],
)
def test_several_layers_take_half_the_room(changed, expected):
    assert settings(**changed).numbers(12) == expected


def test_every_strategy_can_be_asked_for():
    for name, strategy in STRATEGIES.items():
        assert settings(strategy=name).chosen_strategy() is strategy
    with pytest.raises(UserError, match="did you mean embeddings"):
        settings(strategy="embedding")


def test_every_setting_is_explained():
    assert all(field.description for field in ExtractSettings.model_fields.values())
