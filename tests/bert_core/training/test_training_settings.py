import pytest
from pydantic import ValidationError

from bert_core.training.settings import PretrainingOptimizerSettings


def test_defaults_are_the_papers():
    settings = PretrainingOptimizerSettings()
    assert settings.model_dump() == {
        "name": "adamw",
        "peak_learning_rate": 1e-4,
        "warmup_steps": 10_000,
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
    [{"name": "sgd"}, {"beta1": 1.0}, {"peak_learning_rate": 0}, {"max_gradient_norm": 0}],
)
def test_what_cannot_be_trained_with_is_refused(wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        PretrainingOptimizerSettings(**wrong)
