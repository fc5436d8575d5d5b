"""A model that pre-training continues from: its heads, its loss as in transformers, positions."""

import shutil

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertModel

from bert_core.adaptation import extend_positions, load_start_model
from bert_core.config import IGNORE_INDEX
from bert_core.hugging_face.families import BERT
from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.special_tokens import SPECIAL_TOKENS


@pytest.fixture
def foreign_folder(tmp_path, small_config):
    """What transformers writes: a masked language model with random weights and biases."""
    folder = tmp_path / "foreign"
    torch.manual_seed(3)
    model = BertForMaskedLM(BertConfig(**small_config.model_dump(exclude={"position_embedding"})))
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.05
    model.save_pretrained(folder)
    words = [*SPECIAL_TOKENS, *(f"w{number}" for number in range(995))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder


def test_loss_and_gradients_of_a_step_are_those_of_transformers(foreign_folder, some_rows):
    theirs = BertForMaskedLM.from_pretrained(foreign_folder)
    ours = load_start_model(foreign_folder, heads=["masked_token"]).model
    rows = some_rows([9, 17, 32, 5])
    rows.next_sentence[:] = IGNORE_INDEX
    loss, _ = rows.loss(ours, packed=True)
    expected = theirs(**rows.inputs, labels=rows.labels).loss
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    expected.backward()
    gradients = {name: weight.grad for name, weight in theirs.named_parameters()}
    found = BERT.to_theirs({name: p.grad for name, p in ours.named_parameters()})
    compared = {name: gradient for name, gradient in found.items() if name in gradients}
    assert len(compared) == len(gradients)
    for name, gradient in compared.items():
        torch.testing.assert_close(gradient, gradients[name], rtol=1e-4, atol=1e-5, msg=name)


def test_a_missing_head_is_drawn_from_the_seed_and_one_too_many_left_out(tmp_path, foreign_folder):
    model = BertModel.from_pretrained(foreign_folder)  # with a pooler, and no other head
    model.save_pretrained(tmp_path)
    shutil.copy(foreign_folder / "vocab.txt", tmp_path)
    torch.manual_seed(1)
    first = load_start_model(tmp_path, heads=["masked_token"]).model
    torch.manual_seed(1)
    second = load_start_model(tmp_path, heads=["masked_token"]).model
    assert list(first.heads) == ["masked_token"]
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
    pairs = load_start_model(tmp_path, heads=["masked_token", "pooler", "next_sentence"]).model
    assert torch.equal(pairs.heads["pooler"].dense.weight, model.pooler.dense.weight)


def test_a_head_that_is_drawn_begins_with_the_frequencies_of_tokens(tmp_path, foreign_folder):
    _, model, tokenizer = load_model_folder(foreign_folder)
    own = model.heads["masked_token"].bias.detach().clone()
    counts = np.arange(len(own) - 3)  # the last rows of the table are of no token
    kept = load_start_model(foreign_folder, heads=["masked_token"], token_counts=counts)
    assert torch.equal(kept.model.heads["masked_token"].bias, own)
    save_model_folder(tmp_path / "bare", Bert(model.encoder, {}), tokenizer, "# A card\n")
    start = load_start_model(tmp_path / "bare", heads=["masked_token"], token_counts=counts)
    assert start.drawn_heads == ("masked_token",)
    shares = start.model.heads["masked_token"].bias.detach().exp()
    assert float(shares.sum()) == pytest.approx(1, abs=1e-4)
    assert float(shares[9] / shares[4]) == pytest.approx(10 / 5, rel=1e-4)
    assert shares[-1] == shares[0] > 0


def test_a_longer_table_keeps_what_it_says_it_keeps(small_config, some_rows):
    torch.manual_seed(0)
    model = Bert.for_pretraining(small_config)
    table = model.encoder.embeddings.position.weight.detach().clone()
    rows = some_rows([9, 17, 32])
    before, _ = rows.loss(model, packed=True)
    extend_positions(model, 80, "cyclic")
    assert model.config.max_position_embeddings == 80
    extended = model.encoder.embeddings.position.weight
    assert torch.equal(extended, torch.cat([table, table, table[:16]]))
    assert extended.requires_grad
    assert torch.equal(rows.loss(model, packed=True)[0], before)
    some_rows([80]).loss(model, packed=True)[0].backward()

    model.encoder.embeddings.position = nn.Embedding.from_pretrained(table)
    model.encoder.config = small_config
    extend_positions(model, 63, "interpolate")
    stretched = model.encoder.embeddings.position.weight
    torch.testing.assert_close(stretched[::2], table)
    torch.testing.assert_close(stretched[1::2], (table[:-1] + table[1:]) / 2)
    with pytest.raises(ValueError, match="fewer"):
        extend_positions(model, 62, "cyclic")


def test_sinusoidal_positions_go_on_as_their_formula_says(small_config):
    config = small_config.model_copy(update={"position_embedding": "sinusoidal"})
    model, longer = (
        Bert.for_pretraining(config),
        config.model_copy(update={"max_position_embeddings": 50}),
    )
    extend_positions(model, 50, "cyclic")
    expected = Bert.for_pretraining(longer).encoder.embeddings.position.weight
    assert torch.equal(model.encoder.embeddings.position.weight, expected)
