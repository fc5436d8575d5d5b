import jax
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
from bert_core.training.xla.arrays import arrays_of
from bert_core.training.xla.forward import loss_in_jax
from workflows.pretraining.settings import PretrainSettings
from workflows.settings import parse_command_line

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
    tokens, places = rows * length, round(0.15 * length)
    within = torch.rand(rows, length).argsort(dim=1)[:, :places].sort(dim=1).values
    return PretrainingBatch(
        input_ids=torch.randint(5, config.vocab_size, (tokens,)),
        token_type_ids=torch.zeros(tokens, dtype=torch.long),
        position_ids=torch.arange(length).repeat(rows),
        layout=Padded(torch.ones(rows, length, dtype=torch.bool), True),
        masked_positions=(within + length * torch.arange(rows)[:, None]).flatten(),
        masked_ids=torch.randint(5, config.vocab_size, (rows * places,)),
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


def kept_bytes_through_xla(model, batch):
    """Bytes of all that JAX keeps for the backward pass, parameters left out, each once."""
    arrays = arrays_of(batch, rows_multiple=1)
    loss = loss_in_jax(model, compute_loss, torch.bfloat16, training=True)
    weights = {n: jax.ShapeDtypeStruct(p.shape, "float32") for n, p in model.named_parameters()}

    def backward(weights):
        key = jax.random.key(0, impl="rbg")
        counts = {"num_predictions": 1, "num_rows": 1}
        given = {name: jax.numpy.array(each) for name, each in arrays.items()}
        return jax.vjp(lambda own: loss(own, given, counts, key), weights, has_aux=True)[1]

    kept = jax.tree.leaves(jax.eval_shape(backward, weights))
    own = {(each.shape, each.dtype) for each in weights.values()}
    found = [each for each in kept if (each.shape, each.dtype) not in own]
    return sum(each.size * each.dtype.itemsize for each in found)


def test_through_xla_about_as_much_is_kept_as_on_cuda():
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
    found = kept_bytes_through_xla(Bert.for_pretraining(config), batch)
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
