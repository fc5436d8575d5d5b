import pytest
import torch
from pydantic import ValidationError
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bert_core.config import SIZES, ModelConfig, ModernConfig, forward_flops, training_flops
from bert_core.model.bert import Bert


def test_sizes_are_the_published_ones():
    shapes = {
        name: (size.num_hidden_layers, size.hidden_size, size.num_attention_heads)
        for name, size in SIZES.items()
    }
    assert shapes == {
        "tiny": (2, 128, 2),
        "mini": (4, 256, 4),
        "small": (4, 512, 8),
        "medium": (8, 512, 8),
        "base": (12, 768, 12),
        "large": (24, 1024, 16),
    }
    assert all(size.intermediate_size == 4 * size.hidden_size for size in SIZES.values())
    assert SIZES["base"] == ModelConfig()


def test_refuses_an_unknown_field_and_heads_that_do_not_divide():
    with pytest.raises(ValidationError, match="hidden_sizes"):
        ModelConfig.model_validate({"hidden_sizes": 128})
    with pytest.raises(ValidationError, match="not a multiple"):
        ModelConfig(hidden_size=100, num_attention_heads=12)
    with pytest.raises(ValidationError, match="pad_token_id 50283 is not below vocab_size 60"):
        ModernConfig(vocab_size=60)


DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


@pytest.mark.parametrize(
    ("size", "length", "predictions", "expected"),
    [("base", 128, 20, 0.5463), ("base", 512, 77, 0.5879), ("large", 512, 77, 1.9921)],
)
def test_gigaflops_of_a_token(size, length, predictions, expected):
    flops = training_flops(
        SIZES[size],
        num_tokens=length,
        sum_of_squared_lengths=length**2,
        num_predictions=predictions,
        num_rows=1,
        num_read=length,
    )
    assert flops / length / 1e9 == pytest.approx(expected, abs=1e-4)


def test_a_decoder_meets_each_pair_of_tokens_once():
    lengths = [128, 5, 1]

    def flops(config):
        return forward_flops(
            config,
            num_tokens=sum(lengths),
            sum_of_squared_lengths=sum(length**2 for length in lengths),
            num_predictions=0,
            num_rows=0,
            num_read=0,
        )

    both, left = (SIZES["tiny"].model_copy(update={"is_decoder": each}) for each in (False, True))
    later = sum(length * (length - 1) // 2 for length in lengths)
    assert flops(both) - flops(left) == 4 * both.hidden_size * both.num_hidden_layers * later


def test_equals_what_torch_counts(small_config, some_rows):
    batch = some_rows([32, 32, 32, 32]).batch(packed=True)
    model = Bert.for_pretraining(small_config)
    # The counter does not know the CPU's fused attention: separate products stand in for it.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        states = model.encoder(
            *batch.inputs, torch.cat([batch.masked_positions, batch.layout.first_positions])
        )
        masked, first = states.tensor_split([len(batch.masked_ids)])
        model.heads["masked_token"](masked, model.encoder.word_embeddings)
        model.heads["next_sentence"](model.heads["pooler"](first))
    ours = forward_flops(
        small_config,
        num_tokens=128,
        sum_of_squared_lengths=4 * 32**2,
        num_predictions=len(batch.masked_ids),
        num_rows=4,
        num_read=len(batch.masked_ids) + 4,
    )
    assert counter.get_total_flops() == pytest.approx(ours, rel=1e-12)


@pytest.mark.parametrize("lengths", [[64] * 4, [64, 50, 33, 33, 7, 21]], ids=str)
@pytest.mark.parametrize("packed", [True, False])
def test_a_whole_step_is_what_torch_counts_forward_and_backward(
    lengths, packed, some_rows, monkeypatch
):
    """Of padded rows the counter sees the padding too, which our count leaves out."""
    monkeypatch.setattr("bert_core.model.cpu.linear.onednn_is_faster_here", lambda: False)
    config = SIZES["tiny"].model_copy(update=dict.fromkeys(DROPOUTS, 0.0))
    model = Bert.for_pretraining(config)
    for layer in model.encoder.layers:
        layer.keeps_rows_apart = True  # else short rows are padded together where that is faster
    rows = some_rows(lengths, vocab_size=config.vocab_size)
    batch = rows.batch(packed=packed)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        rows.loss(model, packed=packed)[0].backward()
    known = lengths if packed else [max(lengths)] * len(lengths)
    ours = training_flops(
        config,
        num_tokens=sum(known),
        sum_of_squared_lengths=sum(length**2 for length in known),
        num_predictions=len(batch.masked_ids),
        num_rows=len(lengths),
        num_read=len(batch.masked_ids) + len(lengths),
    )
    assert counter.get_total_flops() == pytest.approx(ours, rel=0.01)
