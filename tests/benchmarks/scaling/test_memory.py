import pytest
import torch

from benchmarks.scaling.memory import (
    Kept,
    activation_bytes,
    device_bytes,
    logit_bytes,
    most_rows,
)
from bert_core.config import SIZES, ModelConfig
from bert_core.model.bert import Bert
from bert_core.model.layout import Padded
from bert_core.tasks.pretraining import PretrainingBatch, compute_loss

ON_CPU = Kept(embedding_mask=4, layer_mask=2, head=8)


def kept_bytes(model, batch):
    """Bytes of all that torch keeps for the backward pass, parameters left out, each once."""
    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    found = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = (storage.nbytes(), tensor)  # alive, so that none reuses it
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16):
        compute_loss(model, batch, num_predictions=1, num_rows=1)
    return sum(num_bytes for num_bytes, _ in found.values())


def full_rows(config, rows, length):
    tokens = rows * length
    predictions = round(0.15 * tokens)
    return PretrainingBatch(
        input_ids=torch.randint(5, config.vocab_size, (tokens,)),
        token_type_ids=torch.zeros(tokens, dtype=torch.long),
        position_ids=torch.arange(length).repeat(rows),
        layout=Padded(torch.ones(rows, length, dtype=torch.bool), True),
        masked_positions=torch.randperm(tokens)[:predictions].sort().values,
        masked_ids=torch.randint(5, config.vocab_size, (predictions,)),
        next_sentence=torch.zeros(rows, dtype=torch.long),
        num_real_tokens=tokens,
        num_slots=tokens,
    )


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


def test_as_many_rows_as_fit():
    config = SIZES["large"]
    for memory_bytes, length in ((16e9, 512), (141e9, 128)):
        most = most_rows(config, length, memory_bytes)
        assert device_bytes(config, most, length) <= memory_bytes
        assert device_bytes(config, most + 1, length) > memory_bytes
    assert most_rows(config, 512, 4e9) == 0


def test_what_the_documents_formula_says():
    """(L - 1)(38H + 4A + 16) + 15H + 4A + 32 a token, 30H + 24 a place, 10H + 16 a prediction."""
    config = SIZES["base"]
    hidden, heads, layers = 768, 12, 12
    token = (layers - 1) * (38 * hidden + 4 * heads + 16) + 15 * hidden + 4 * heads + 32
    assert activation_bytes(config, 1_000, 0, 0) == 1_000 * token
    assert activation_bytes(config, 0, 0, 1) == 30 * hidden + 24
    assert activation_bytes(config, 0, 1, 0) == 40 * hidden + 40
