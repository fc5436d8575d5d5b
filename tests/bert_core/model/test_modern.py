"""The modern block beside ModernBERT of transformers, and its attention beside the plain one."""

import pytest
import torch
from torch.nn import functional as F
from transformers import ModernBertConfig, ModernBertModel

from bert_core.config import ModelConfig, ModernConfig
from bert_core.model.cpu.attention import Block
from bert_core.model.encoder import Encoder
from bert_core.model.layout import Packed, Padded, within_reach
from bert_core.model.operations import (
    CpuOperations,
    TorchOperations,
    attention,
    rotate,
    use_operations,
)

LENGTHS = [3, 40, 17, 100, 101, 1]
SIZES = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 96, "local_attention": 16, "pad_token_id": 0}
THEIR_NAMES = {
    "embeddings.tok_embeddings": "embeddings.word",
    "final_norm": "norm",
    "attn.Wqkv": "query_key_value",
    "attn.Wo": "attention_output",
    "attn_norm": "attention_norm",
    "mlp_norm": "output_norm",
    "mlp.Wi": "intermediate",
    "mlp.Wo": "output",
}


def our_name(theirs):
    for name, ours in THEIR_NAMES.items():
        theirs = theirs.replace(name, ours)
    return theirs


@pytest.fixture(scope="module")
def both():
    """The same weights here and in transformers."""
    torch.manual_seed(0)
    special = {f"{name}_token_id": 1 for name in ("bos", "cls", "sep", "eos")}
    config = ModernBertConfig(**SIZES, **special, attn_implementation="eager")
    theirs, ours = ModernBertModel(config).eval(), Encoder(ModernConfig(**SIZES)).eval()
    for weight in theirs.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    ours.load_state_dict({our_name(name): each for name, each in theirs.state_dict().items()})
    return ours, theirs


@pytest.fixture(scope="module")
def batch():
    """Ids and mask, [N, n], of sequences of the lengths above."""
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(1)
    return torch.randint(3, 100, mask.shape) * mask, mask


def states_of(encoder, batch, layout, **more):
    """States of the real tokens, [T, H]."""
    ids, mask = batch
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    if layout == "padded":
        ids, positions = ids.flatten(), positions.flatten()
        states = encoder(ids, torch.zeros_like(ids), positions, Padded(mask), **more)
        return states[mask.flatten()]
    ids = ids[mask]
    return encoder(
        ids, torch.zeros_like(ids), positions[mask], Packed.from_lengths(LENGTHS), **more
    )


@pytest.mark.parametrize(
    ("layout", "operations"),  # torch's own have a packed kernel on CUDA only
    [
        ("packed", CpuOperations()),
        ("packed", CpuOperations(keeps_rows_apart=True)),
        ("padded", CpuOperations()),
        ("padded", TorchOperations()),
    ],
)
def test_states_and_gradients_are_those_of_transformers(both, batch, layout, operations):
    ours, theirs = both
    use_operations(ours, operations)
    ids, mask = batch
    wanted = theirs(ids, attention_mask=mask.long()).last_hidden_state[mask]
    found = states_of(ours, batch, layout)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    direction = torch.randn(SIZES["hidden_size"])
    for model, states in ((ours, found), (theirs, wanted)):
        model.zero_grad()
        (states @ direction).tanh().sum().backward()
    gradients = {name: each.grad for name, each in ours.named_parameters()}
    for name, each in theirs.named_parameters():
        scale = each.grad.abs().max()
        torch.testing.assert_close(
            gradients[our_name(name)] / scale, each.grad / scale, rtol=0, atol=1e-5
        )


def test_places_are_read_from_the_last_layer_alone(both, batch):
    ours, _ = both
    use_operations(ours, CpuOperations())
    places = torch.tensor([0, 4, 150])
    some = states_of(ours, batch, "packed", places=places)
    torch.testing.assert_close(some, states_of(ours, batch, "packed")[places], rtol=0, atol=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_leaves_the_reach(dropout):
    split = torch.randn(300, 3, 2, 8)
    split[:, 2] = 0
    split[137, 2] = 1
    torch.manual_seed(0)
    mixed = CpuOperations().attention(
        split.view(300, -1), 2, Packed.from_lengths([100, 200]), dropout, reach=5
    )
    (seen,) = mixed.view(300, -1).abs().sum(1).nonzero(as_tuple=True)
    assert set(seen.tolist()) <= set(range(132, 143)) and len(seen) > 3


@pytest.mark.parametrize("lengths", [[1], [7, 7], [64], [65, 3], [500], [260, 259, 258, 1, 2]])
@pytest.mark.parametrize("reach", [1, 5, 64])
def test_local_attention_is_masked_attention(lengths, reach):
    total, heads, size = sum(lengths), 2, 8
    projections = torch.randn(total, 3 * heads * size)
    found = CpuOperations().attention(projections, heads, Packed.from_lengths(lengths), reach=reach)
    wanted = []
    for part in projections.split(lengths):
        query, key, value = part.view(len(part), 3, heads, size).permute(1, 2, 0, 3)
        near = within_reach(torch.arange(len(part)), torch.arange(len(part)), reach)
        mixed = F.scaled_dot_product_attention(query, key, value, near)
        wanted.append(mixed.transpose(0, 1).reshape(len(part), -1))
    torch.testing.assert_close(found, torch.cat(wanted), rtol=0, atol=1e-5)
    padded = F.pad(projections[: lengths[0]], (0, 0, 0, 3))
    layout = Padded.from_lengths([lengths[0]], len(padded))
    for compute in (attention, CpuOperations().attention):
        mixed = compute(padded, heads, layout, reach=reach)
        torch.testing.assert_close(mixed[: lengths[0]], wanted[0], rtol=0, atol=1e-5)
        assert mixed.isfinite().all()


def test_time_and_memory_of_local_attention_are_linear_in_the_length(monkeypatch):
    """Counts the scores."""
    sizes = []

    def count(query, key, *more):
        sizes.append(query.shape[-2] * key.shape[-2])
        return plain(query, key, *more)

    plain = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", count)
    for length in (1024, 8192):
        layout = Packed.from_lengths([length])
        CpuOperations().attention(torch.randn(length, 24), 1, layout, reach=64)
        assert sum(sizes) <= length * 256 and max(sizes) <= 128 * 256
        sizes.clear()


def test_an_empty_slot_is_hidden_and_sees_something():
    keys = torch.tensor([[True] * 9, [True] * 2 + [False] * 7])
    block = Block(0, 11, 2, 9, keys)
    near = block.near(0, 9, 0, 9, 2)
    assert near.any(-1).all()
    assert not near[1, 0, :2, 2:].any()


def test_initial_weights_are_those_of_the_paper():
    encoder = Encoder(ModernConfig(**SIZES | {"hidden_size": 256, "num_hidden_layers": 8}))
    layer = encoder.layers[3]
    assert layer.query_key_value.weight.std().item() == pytest.approx(0.0176, rel=0.05)
    assert layer.query_key_value.weight.abs().max() <= 0.04
    assert layer.output.weight.std().item() == pytest.approx(0.0176 / 4, rel=0.05)
    assert not any("bias" in name for name, _ in encoder.named_parameters())


def test_rotary_positions_are_of_the_modern_block():
    with pytest.raises(ValueError, match="rotary"):
        ModelConfig(position_embedding="rotary")
    with pytest.raises(ValueError, match="both directions"):
        ModernConfig(is_decoder=True)
    with pytest.raises(ValueError, match="even size"):
        ModernConfig(hidden_size=12, num_attention_heads=4)


@pytest.mark.parametrize("count", [1, 255, 600])
def test_rotations_in_place_are_the_plain_ones_in_both_directions(count):
    generator = torch.Generator().manual_seed(count)
    given = torch.randn(count, 3 * 4 * 16, generator=generator)
    angles = torch.randn(count, 8, generator=generator)
    rotation = angles.cos(), angles.sin()
    wanted = rotate(given, 4, rotation)
    assert torch.equal(CpuOperations().rotate(given.clone(), 4, rotation), wanted)
    gradients = []
    weights = torch.randn(given.shape, generator=generator)
    for operations in (TorchOperations(), CpuOperations()):
        leaf = given.clone().requires_grad_()
        found = operations.rotate(leaf * 1, 4, rotation)
        assert torch.equal(found.detach(), wanted)
        (found * weights).sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=1e-6)
