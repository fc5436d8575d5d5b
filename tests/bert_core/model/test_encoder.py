"""The layout, the encoder and its heads, and the model made of them."""

import math
from dataclasses import dataclass, fields

import pytest
import torch
from transformers import BertConfig, BertForPreTraining

from bert_core.config import SIZES, ModelConfig
from bert_core.model.bert import Bert, MaskedTokenHead, NextSentenceHead, Pooler
from bert_core.model.encoder import Encoder, SinusoidalPositions
from bert_core.model.layout import Packed, Padded, pinned


def test_packed_knows_where_sequences_begin():
    layout = Packed.from_lengths([3, 3, 5, 0, 2, 0])
    assert layout.cu_seqlens.tolist() == [0, 3, 6, 11, 11, 13, 13]
    assert layout.cu_seqlens.dtype == torch.int32
    assert layout.runs == ((2, 3), (1, 5), (1, 2))
    assert layout.max_length == 5
    assert layout.lengths.tolist() == [3, 3, 5, 0, 2, 0]
    # The empty ones point at some token of the batch.
    assert layout.first_positions.tolist() == [0, 3, 6, 11, 11, 12]
    assert layout.first_positions.dtype == torch.int64


def test_packed_leaves_its_runs_behind_on_another_device():
    layout = Packed.from_lengths([3, 3], 8)
    assert layout.to("cpu").runs == ((2, 3),)
    moved = layout.to("meta")
    assert (moved.runs, moved.max_length, moved.cu_seqlens.device.type) == ((), 8, "meta")


def test_padded_knows_what_is_real():
    layout = Padded.from_lengths([3, 1], 3)
    assert layout.mask.tolist() == [[True, True, True], [True, False, False]]
    assert not layout.is_full
    assert Padded.from_lengths([3, 3], 3).is_full
    assert layout.first_positions.tolist() == [0, 3]
    assert layout.lengths.tolist() == [3, 1]
    assert layout.to("meta").mask.device.type == "meta"


def test_refuses_lengths_out_of_bounds():
    with pytest.raises(ValueError, match=r"0\.\.4"):
        Packed.from_lengths([5], 4)
    with pytest.raises(ValueError, match=r"0\.\.4"):
        Padded.from_lengths([2, 5], 4)
    with pytest.raises(ValueError, match="lengths"):
        Packed.from_lengths([-1])


@dataclass(frozen=True)
class Batch:
    ids: torch.Tensor
    layout: Packed | Padded
    count: int


@pytest.mark.parametrize("layout", [Packed.from_lengths([3, 2], 4), Padded.from_lengths([3, 2], 3)])
def test_every_tensor_is_pinned_and_nothing_else_changes(layout, monkeypatch):
    """Locked memory takes CUDA: here a copy stands for it, whose place tells it apart."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    batch = Batch(torch.arange(5), layout, 5)
    found = pinned(batch)
    assert torch.equal(found.ids, batch.ids) and found.count == 5
    for field in fields(layout):
        before, after = getattr(layout, field.name), getattr(found.layout, field.name)
        if isinstance(before, torch.Tensor):
            assert torch.equal(before, after) and before.data_ptr() != after.data_ptr()
        else:
            assert before == after
    assert found.ids.data_ptr() != batch.ids.data_ptr()


def test_initial_weights_are_a_truncated_normal():
    torch.manual_seed(0)
    encoder = Encoder(ModelConfig(vocab_size=2000, num_hidden_layers=1))
    for name, parameter in encoder.named_parameters():
        if name.endswith("norm.weight"):
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        else:
            assert parameter.abs().max() <= 0.04, name
            # A normal cut at two standard deviations has 0.88 of its deviation.
            assert parameter.std().item() == pytest.approx(0.88 * 0.02, rel=0.05), name


def test_fixed_positions_are_the_formula():
    table = SinusoidalPositions(50, 8)
    assert list(table.parameters()) == []
    found = table(torch.tensor([0, 7]))
    expected = [f(7 / 10_000 ** (i / 8)) for i in range(0, 8, 2) for f in (math.sin, math.cos)]
    assert found[0].tolist() == [0, 1] * 4
    assert found[1].tolist() == pytest.approx(expected, abs=1e-6)


def test_fixed_positions_are_not_weights(small_config):
    config = small_config.model_copy(update={"position_embedding": "sinusoidal"})
    learned, fixed = Encoder(small_config), Encoder(config)
    assert learned.state_dict().keys() - fixed.state_dict().keys() == {"embeddings.position.weight"}


def test_gives_the_layers_that_are_asked_for(small_model, some_rows):
    batch = some_rows([6, 9]).batch(packed=True)
    arguments = batch.inputs
    encoder = small_model.encoder
    states = encoder.hidden_states(*arguments, layers=range(4))
    assert torch.equal(states[0], encoder.embeddings(*arguments[:3]))
    assert torch.equal(states[3], encoder(*arguments))
    for layers in ([0], [3], [2, 1], [0, 2]):
        found = encoder.hidden_states(*arguments, layers=layers)
        expected = [states[number] for number in layers]
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
        places = torch.tensor([0, 4, 13])
        found = encoder.hidden_states(*arguments, layers=layers, places=places)
        for some, all_tokens in zip(found, expected, strict=True):
            torch.testing.assert_close(some, all_tokens[places])


def test_computes_nothing_above_the_highest_layer(small_model, some_rows):
    batch = some_rows([6, 9]).batch(packed=True)
    encoder = small_model.encoder
    del encoder.layers[2]
    encoder.layers[1].forward = None  # whoever calls it fails
    arguments = batch.inputs
    assert len(encoder.hidden_states(*arguments, layers=[1, 0])) == 2


def test_neither_packing_nor_padding_is_visible(small_model, some_rows):
    rows = some_rows([5, 12, 12, 1], seq=20)
    model = small_model.double()

    def states(batch):
        return model.encoder(*batch.inputs)

    packed = states(rows.batch(packed=True))
    padded = states(rows.batch(packed=False))[rows.real.flatten()]
    alone = torch.cat(
        [
            model.encoder(
                ids[:n], types[:n], torch.arange(n), some_rows([n]).batch(packed=True).layout
            )
            for ids, types, n in zip(rows.input_ids, rows.token_type_ids, rows.lengths, strict=True)
        ]
    )
    torch.testing.assert_close(padded, packed, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(alone, packed, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("packed", [True, False])
def test_no_later_token_is_seen_by_a_decoder(small_config, some_rows, packed):
    torch.manual_seed(0)
    encoders = {
        is_decoder: Encoder(small_config.model_copy(update={"is_decoder": is_decoder})).double()
        for is_decoder in (False, True)
    }
    encoders[True].load_state_dict(encoders[False].state_dict())
    batch = some_rows([12, 7]).batch(packed=packed)
    changed = batch.input_ids.clone()
    changed[5] = 7 if changed[5] != 7 else 8
    for is_decoder, encoder in encoders.items():
        before, after = (
            encoder(ids, batch.token_type_ids, batch.position_ids, batch.layout)
            for ids in (batch.input_ids, changed)
        )
        moved = (before - after).abs().amax(1) > 1e-12
        assert moved[5:12].all() and not moved[12:].any()
        assert moved[:5].any() == (not is_decoder)


def test_neither_packing_nor_padding_is_visible_to_a_decoder(small_config, some_rows):
    encoder = Encoder(small_config.model_copy(update={"is_decoder": True})).double()
    rows = some_rows([5, 12, 12, 1], seq=20)
    packed, padded = (
        encoder(*batch.inputs) for batch in (rows.batch(packed=True), rows.batch(packed=False))
    )
    torch.testing.assert_close(padded[rows.real.flatten()], packed, rtol=1e-10, atol=1e-10)


def test_dropout_acts_in_training_only_and_follows_the_seed(small_config, some_rows):
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    torch.manual_seed(0)
    encoder = Encoder(small_config.model_copy(update=dropout))
    batch = some_rows([6, 9]).batch(packed=True)

    def states(seed):
        torch.manual_seed(seed)
        return encoder(*batch.inputs)

    assert torch.equal(states(1), states(1))
    assert not torch.equal(states(1), states(2))
    encoder.eval()
    assert torch.equal(states(1), states(2))


@pytest.mark.slow
@pytest.mark.parametrize("packed", [True, False])
def test_layers_that_are_computed_again_give_the_same_gradients_for_less_memory(
    small_config, some_rows, packed
):
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    torch.manual_seed(0)
    model = Bert.for_pretraining(small_config.model_copy(update=dropout))
    rows = some_rows([9, 17, 32, 5])

    def step(recomputes):
        model.encoder.recomputes_layers = recomputes
        model.zero_grad()
        kept = []
        torch.manual_seed(4)
        hooks = torch.autograd.graph.saved_tensors_hooks
        with hooks(lambda tensor: kept.append(tensor.nbytes) or tensor, lambda tensor: tensor):
            loss, _ = rows.loss(model, packed=packed)
        loss.backward()
        drawn_after = torch.rand(3)
        gradients = [weight.grad.clone() for weight in model.parameters()]
        return loss, gradients, drawn_after, sum(kept)

    loss, gradients, drawn, kept = step(recomputes=False)
    again, gradients_again, drawn_again, kept_again = step(recomputes=True)
    assert torch.equal(loss, again) and torch.equal(drawn, drawn_again)
    assert all(map(torch.equal, gradients, gradients_again))
    assert kept_again < kept / 2


@pytest.mark.slow
def test_compiles_without_a_break(small_model, some_rows):
    rows = some_rows([16, 9], seq=16)
    batch = rows.batch(packed=False)
    arguments = batch.inputs
    compiled = torch.compile(small_model.encoder, fullgraph=True)
    torch.testing.assert_close(compiled(*arguments), small_model.encoder(*arguments))


@pytest.mark.parametrize("training", [False, True])
def test_states_at_some_places_are_those_of_all_tokens(training):
    torch.manual_seed(0)
    encoder = Encoder(
        ModelConfig(
            vocab_size=50,
            hidden_size=24,
            num_attention_heads=3,
            intermediate_size=48,
            num_hidden_layers=2,
            hidden_dropout_prob=0,
            attention_probs_dropout_prob=0,
        )
    ).double()
    encoder.train(training)
    ids = torch.randint(50, (11,))
    segments, positions = torch.zeros_like(ids), torch.tensor([*range(6), *range(5)])
    rows = ids, segments, positions, Packed.from_lengths([6, 5])
    places = torch.tensor([0, 4, 9, 9])  # a place may be read twice
    expected = encoder(*rows)[places]
    found = encoder(*rows, places)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(found)
    gradients = torch.autograd.grad(found, list(encoder.parameters()), weights)
    expected = torch.autograd.grad(expected, list(encoder.parameters()), weights)
    torch.testing.assert_close(gradients, expected, rtol=1e-10, atol=1e-12)


PARAMETERS = {
    "tiny": (4_385_920, 4_433_468),
    "mini": (11_170_560, 11_267_900),
    "small": (28_763_648, 29_058_876),
    "medium": (41_373_184, 41_668_412),
    "base": (109_482_240, 110_106_428),  # the paper's 110 M
    "large": (335_141_888, 336_226_108),  # the paper's 340 M
}
"""Encoder with pooler, and with both pre-training heads; the tied projection counted once."""


@pytest.mark.parametrize("size", SIZES)
def test_parameters_to_the_unit(size):
    with torch.device("meta"):
        ours = Bert.for_pretraining(SIZES[size])
        values = SIZES[size].model_dump(exclude={"position_embedding"})
        theirs = BertForPreTraining(BertConfig(**values))
    counts = {
        name: sum(parameter.numel() for parameter in module.parameters())
        for name, module in (("all", ours), ("encoder", ours.encoder), *ours.heads.items())
    }
    assert (counts["encoder"] + counts["pooler"], counts["all"]) == PARAMETERS[size]
    assert (theirs.bert.num_parameters(), theirs.num_parameters()) == PARAMETERS[size]


def test_heads_are_those_asked_for(small_config):
    assert list(Bert.for_pretraining(small_config).heads) == [
        "masked_token",
        "pooler",
        "next_sentence",
    ]
    assert list(Bert.for_pretraining(small_config, next_sentence=False).heads) == ["masked_token"]
    decoder = small_config.model_copy(update={"is_decoder": True})
    assert list(Bert.for_pretraining(decoder).heads) == ["next_token"]


def test_the_seed_decides_the_weights(small_config):
    torch.manual_seed(4)
    first = Bert.for_pretraining(small_config).state_dict()
    torch.manual_seed(4)
    again = Bert.for_pretraining(small_config).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_masked_token_head_projects_onto_the_words_it_is_given(small_config):
    head = MaskedTokenHead(small_config)
    states, words = torch.randn(5, 64), torch.randn(1000, 64)
    with torch.no_grad():
        head.bias += torch.arange(1000)
    logits = head(states, words)
    assert logits.shape == (5, 1000)
    torch.testing.assert_close(logits, head.features(states) @ words.T + torch.arange(1000))
    assert not any(parameter.shape == words.shape for parameter in head.parameters())


def test_pooler_reads_the_first_token_of_each_sequence(small_config):
    pooler = Pooler(small_config)
    states = torch.randn(9, 64)
    first_states = states[Packed.from_lengths([4, 3, 2]).first_positions]
    torch.testing.assert_close(first_states, states[[0, 4, 7]])
    pooled = pooler(first_states)
    torch.testing.assert_close(pooled, torch.tanh(pooler.dense(first_states)))
    assert pooled.abs().max() < 1


def test_next_sentence_head_has_two_answers(small_config):
    assert NextSentenceHead(small_config)(torch.randn(3, 64)).shape == (3, 2)
