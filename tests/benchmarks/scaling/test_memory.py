import pytest
from kept_bytes import full_rows, kept_bytes, kept_bytes_through_xla

from benchmarks.scaling.memory import (
    Kept,
    activation_bytes,
    device_bytes,
    logit_bytes,
    most_rows,
)
from bert_core.config import SIZES, ModelConfig
from bert_core.model.bert import Bert
from workflows.pretraining.settings import PretrainSettings
from workflows.settings import parse_command_line

ON_CPU = Kept(embedding_mask=4, layer_mask=2, head=8)


@pytest.mark.parametrize(
    ("layers", "hidden", "rows", "length"), [(1, 128, 4, 64), (3, 128, 8, 64), (2, 192, 4, 128)]
)
def test_the_formula_is_what_torch_keeps(layers, hidden, rows, length):
    config = ModelConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
        vocab_size=1_000,
        attention_probs_dropout_prob=0.0,
    )
    batch = full_rows(config, rows, length)
    predictions = len(batch.masked_ids)
    casts = 2 * (layers * 12 * hidden**2 + 2 * hidden**2 + config.vocab_size * hidden)
    expected = activation_bytes(config, rows * length, predictions, rows, ON_CPU)
    expected += logit_bytes(config, predictions, at_peak=False) + casts
    assert kept_bytes(Bert.for_pretraining(config), batch) == pytest.approx(expected, rel=0.01)


def test_through_xla_about_as_much_is_kept_as_on_cuda(in_xla):
    config = ModelConfig(
        num_hidden_layers=3,
        hidden_size=128,
        num_attention_heads=2,
        intermediate_size=512,
        vocab_size=1_000,
        attention_probs_dropout_prob=0.0,
    )
    batch = full_rows(config, 8, 128)
    predictions = len(batch.masked_ids)
    casts = 2 * (3 * 12 * 128**2 + 2 * 128**2 + config.vocab_size * 128)
    expected = activation_bytes(config, 8 * 128, predictions, 8)
    expected += logit_bytes(config, predictions, at_peak=False) + casts
    found = in_xla(kept_bytes_through_xla, Bert.for_pretraining(config), batch)
    assert found == pytest.approx(expected, rel=0.1)


def test_as_many_rows_as_fit():
    config = SIZES["large"]
    for memory_bytes, length in ((16e9, 512), (141e9, 128)):
        most = most_rows(config, length, memory_bytes)
        assert device_bytes(config, most, length) <= memory_bytes
        assert device_bytes(config, most + 1, length) > memory_bytes
    assert most_rows(config, 512, 4e9) == 0


@pytest.mark.parametrize("preset", ["base-fast", "small"])
def test_what_is_packed_fits_a_gpu_in_every_phase(preset):
    """A phase that finds no room would find out after most of a run, which cannot go on smaller."""
    settings = parse_command_line(PretrainSettings, ["--preset", preset])
    assert settings.batch.packed
    config = settings.architecture(settings.vocabulary_size, 0)
    for phase in settings.phases:
        rows = settings.batch.micro_batch_size
        assert device_bytes(config, rows, phase.sequence_length) < 79e9
        # As infra/ has it where GPUs are L4s, of which PyTorch sees 22.5 GB.
        assert device_bytes(config, 64, phase.sequence_length) < 22e9


def test_what_the_documents_formula_says():
    """(L - 1)(38H + 4A + 16) + 15H + 4A + 32 a token, 30H + 24 a place, 10H + 16 a prediction."""
    config = SIZES["base"]
    hidden, heads, layers = 768, 12, 12
    token = (layers - 1) * (38 * hidden + 4 * heads + 16) + 15 * hidden + 4 * heads + 32
    assert activation_bytes(config, 1_000, 0, 0) == 1_000 * token
    assert activation_bytes(config, 0, 0, 1) == 30 * hidden + 24
    assert activation_bytes(config, 0, 1, 0) == 40 * hidden + 40
