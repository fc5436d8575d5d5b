import pytest
from pydantic import ValidationError

from bert_core.config import SIZES
from workflows.pretrain_settings import ModelSettings, Phase, PretrainSettings
from workflows.settings import parse_command_line


def test_the_defaults_are_the_papers_base():
    settings = PretrainSettings()
    config = settings.model.config(30_522, 0)
    assert config == SIZES["base"].model_copy(update={"vocab_size": 30_522, "pad_token_id": 0})
    assert settings.total_steps == 1_000_000
    assert settings.batch.global_batch_size == 256
    optimizer = settings.optimizer
    assert (optimizer.name, optimizer.peak_learning_rate) == ("adamw", 1e-4)
    assert optimizer.warmup_steps == 10_000


def test_a_size_with_something_else():
    config = ModelSettings(size="tiny", num_hidden_layers=3, max_position_embeddings=64).config(
        100, 4
    )
    assert (config.num_hidden_layers, config.hidden_size) == (3, SIZES["tiny"].hidden_size)
    assert (config.max_position_embeddings, config.vocab_size, config.pad_token_id) == (64, 100, 4)


def test_every_step_lies_in_a_phase():
    settings = PretrainSettings(
        phases=[Phase(sequence_length=16, steps=3), Phase(sequence_length=32, steps=2)]
    )
    assert [settings.phase_at(step) for step in range(5)] == [(0, 0)] * 3 + [(1, 3)] * 2
    with pytest.raises(ValueError, match="step 5 is beyond the last of 5"):
        settings.phase_at(5)


def test_the_recipe_is_what_decides_the_weights():
    settings = PretrainSettings()
    deciding = ["seed", "model", "rows", "batch", "phases", "optimizer", "precision", "compile"]
    assert sorted(settings.recipe()) == sorted(deciding)
    other_place = parse_command_line(
        PretrainSettings,
        ["--preset", "base", "--storage", "/elsewhere", "--cluster.num_workers", "8"]
        + ["--name", "other", "--checkpoint.keep", "1", "--tracking.uri", "http://mlflow"],
    )
    assert (
        other_place.recipe()
        == parse_command_line(PretrainSettings, ["--preset", "base", "--fresh"]).recipe()
    )


def test_what_cannot_train_is_refused():
    def refused(message, **values):
        with pytest.raises(ValidationError, match=message):
            PretrainSettings(**values)

    packed = {"packed": True}
    refused("raise --model.max_position_embeddings", model={"max_position_embeddings": 256})
    refused("lower --cluster.num_workers", cluster={"num_workers": 300})
    refused("no attention dropout", cluster={"use_gpu": True}, batch=packed)
    no_dropout = {"attention_probs_dropout_prob": 0}
    refused("bfloat16", cluster={"use_gpu": True}, batch=packed, model=no_dropout)
    refused("pattern", name="a/b")
    refused("pattern", name="..")
    # A CPU has a kernel for it, and a range of workers may begin with few.
    PretrainSettings(batch=packed, name="wiki-2.1_a")
    PretrainSettings(cluster={"num_workers": [2, 300]})
