"""Gradients are those of `transformers`, and nothing of the model is touched."""

from collections import Counter

import numpy as np
import pytest
import torch
from small_tasks import write_encoder
from transformers import AutoTokenizer, BertForSequenceClassification, BertModel

from bert_core.errors import UserError
from bert_core.features.inspection import (
    WordsInContext,
    ambiguous_words,
    attention_maps,
    different_contexts,
    evenly_drawn,
    gradient_times_input,
    nearest_words,
    read_words,
)
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tasks.catalog import task_config
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.task import add_task_head

TEXT = "The bank of the river, unaffably wide."


def test_real_weights_give_the_attention_of_transformers(minilm_folder):
    _, ours, tokenizer = load_model_folder(minilm_folder)
    theirs = BertModel.from_pretrained(minilm_folder, attn_implementation="eager").eval()
    encoded = AutoTokenizer.from_pretrained(minilm_folder)(TEXT, return_tensors="pt")
    with torch.no_grad():
        expected = torch.cat(theirs(**encoded, output_attentions=True).attentions)
    ours.encoder.train()  # dropout has no part in it
    found = attention_maps(ours.encoder, tokenizer, TEXT)
    assert ours.encoder.training
    assert found.tokens[:4] == ["[CLS]", "the", "bank", "of"]
    assert found.probabilities.shape == (6, 12, len(found.tokens), len(found.tokens))
    torch.testing.assert_close(found.probabilities, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_decoder_looks_to_the_left(minilm_folder):
    _, ours, tokenizer = load_model_folder(minilm_folder, changes={"is_decoder": True})
    theirs = BertModel.from_pretrained(minilm_folder, attn_implementation="eager", is_decoder=True)
    encoded = AutoTokenizer.from_pretrained(minilm_folder)(TEXT, return_tensors="pt")
    with torch.no_grad():
        expected = torch.cat(theirs.eval()(**encoded, output_attentions=True).attentions)
    found = attention_maps(ours.encoder, tokenizer, TEXT).probabilities
    assert (found.triu(1) == 0).all()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_text_longer_than_the_encoder_is_refused(extractor_of):
    extractor = extractor_of()
    with pytest.raises(UserError, match="a text of 602 tokens: a a a a"):
        attention_maps(extractor.encoder, extractor.tokenizer, "a " * 600)


TASK = Classification(labels=("x", "y", "z"), second_column="second")


@pytest.fixture
def folder(tmp_path):
    """A classifier whose answers vary."""
    folder = write_encoder(tmp_path / "model")
    _, model, tokenizer = load_model_folder(folder)
    torch.manual_seed(1)
    add_task_head(model, TASK)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(std=0.3)
    config = task_config("classification", TASK)
    save_model_folder(tmp_path / "tuned", model, tokenizer, card="", extra_config=config)
    return tmp_path / "tuned"


@pytest.mark.parametrize("label", [0, 2])
def test_gradients_are_those_of_transformers(folder, label):
    _, model, tokenizer = load_model_folder(folder)
    model.eval()
    pair = "the cat sat", "on a mat slowly"
    rows = TASK.encode([Text(*pair, None)], tokenizer)
    batch = rows.batch(np.arange(1), "packed")
    found = gradient_times_input(model, batch, lambda outputs: outputs[0, label])

    published = BertForSequenceClassification.from_pretrained(folder).eval()
    encoding = tokenizer.encode(*pair)
    words = published.bert.embeddings.word_embeddings(torch.tensor([encoding.ids]))
    words = words.detach().requires_grad_()
    types = torch.tensor([encoding.type_ids])
    logits = published(inputs_embeds=words, token_type_ids=types).logits
    (gradient,) = torch.autograd.grad(logits[0, label], words)
    torch.testing.assert_close(found, (gradient * words).sum(-1)[0].detach(), atol=1e-5, rtol=1e-4)
    assert found.abs().max() > 1e-3
    assert all(parameter.grad is None for parameter in model.parameters())


def test_of_a_decoder_they_are_those_of_the_last_token(folder):
    _, model, tokenizer = load_model_folder(folder, changes={"is_decoder": True})
    rows = TASK.encode([Text("the cat sat", "on a mat", None)], tokenizer)
    batch = rows.batch(np.arange(1), "packed")
    found = gradient_times_input(model.eval(), batch, lambda outputs: outputs[0, 0])
    assert (found.abs() > 1e-6).all(), "[CLS] alone has none of the others"


def test_it_works_where_nothing_is_to_be_learned(folder):
    _, model, tokenizer = load_model_folder(folder)
    rows = TASK.encode([Text("a", "b", None)], tokenizer)
    with torch.no_grad():
        batch = rows.batch(np.arange(1), "packed")
        found = gradient_times_input(model, batch, lambda outputs: outputs[0, 0])
    assert not found.requires_grad and len(found) == rows.lengths[0]


TEXTS = [
    "He opened an account at the bank to save money.",
    "They sat on the bank of the river and watched the water.",
    "The bank raised its interest rates for savings.",
    "Grass grew on the bank of the stream.",
]


@pytest.fixture
def extractor(extractor_of):
    return extractor_of(unit="word")


def made(words, states, labels=None, texts=None):
    texts = np.arange(len(words)) if texts is None else np.array(texts)
    return WordsInContext(words, texts, np.array(states, dtype=np.float32), labels)


def test_a_word_is_near_those_that_mean_the_same_in_their_texts(extractor):
    found = read_words(extractor, TEXTS)
    banks = found.occurrences("Bank").tolist()
    assert [found.words[index] for index in banks] == ["bank"] * 4
    near = {index: nearest_words(found, index, 1)[0].index for index in banks}
    of_money, of_rivers = banks[::2], banks[1::2]
    assert near == dict(zip(of_money, of_money[::-1], strict=True)) | dict(
        zip(of_rivers, of_rivers[::-1], strict=True)
    )
    assert found.around(banks[1], 2) == ("on the", "of the")
    assert found.around(0, 3) == ("", "opened an account")
    # Without labels the two contexts that are furthest apart: one of money, one of rivers.
    places = different_contexts(found, "bank", 3)
    assert len(places) == 2
    assert len({place in of_money for place in places}) == 2


def test_lists_of_words_have_the_same_states_as_their_text(extractor):
    lists = [["Grass", "grew", "on", "it"], ["It", "rained"]]
    labels = [["O", "O", "O", "X"], ["X", "O"]]
    of_lists = read_words(extractor, lists, labels)
    of_strings = read_words(extractor, [" ".join(words) for words in lists])
    np.testing.assert_allclose(of_lists.states, of_strings.states, atol=1e-6)
    assert of_lists.words == of_strings.words
    assert of_lists.labels == ["O", "O", "O", "X", "X", "O"]
    assert of_strings.texts.tolist() == [0, 0, 0, 0, 1, 1]


def test_neighbours_are_of_other_texts_and_near_ones_come_first():
    states = [[1, 0], [2, 0], [1, 1], [0, 3], [0, 0]]
    found = made(list("abcde"), states, texts=[0, 0, 1, 2, 3])
    near = nearest_words(found, 0, 9)
    assert [each.index for each in near] == [2, 3, 4]
    assert [each.cosine for each in near] == pytest.approx([0.5**0.5, 0, 0])


def test_words_that_are_labelled_in_several_ways():
    words = ["May"] * 4 + ["may"] * 4 + ["June"] * 6 + ["May."] * 8 + ["Rome"] * 5
    labels = ["MONTH", "O"] * 4 + ["MONTH"] * 6 + ["O", "X"] * 4 + ["LOC"] * 4 + ["ORG"]
    found = made(words, np.ones((len(words), 2)), labels)
    assert ambiguous_words(found, 5) == ["may", "rome"]
    assert ambiguous_words(found, 1) == ["may"]
    assert different_contexts(found, "rome", 3) == [22, 26]
    assert different_contexts(found, "rome", 1) == [22]
    assert different_contexts(found, "paris", 3) == []


def test_without_labels_words_whose_states_lie_apart():
    words = ["same"] * 4 + ["apart"] * 4 + ["rare"] * 3
    states = [[1, 0]] * 4 + [[1, 0], [-1, 0.1], [0, 1], [0, -1]] + [[1, 0], [-1, 0], [0, 1]]
    assert ambiguous_words(made(words, states), 1) == ["apart"]
    assert "rare" not in ambiguous_words(made(words, states), 9)
    assert different_contexts(made(words, states), "apart", 2) in ([4, 5], [6, 7])


def test_labels_are_drawn_evenly():
    labels = ["O"] * 900 + ["A"] * 50 + ["B"] * 7
    chosen = evenly_drawn(labels, 100, seed=1)
    assert Counter(labels[index] for index in chosen) == {"O": 47, "A": 46, "B": 7}
    assert len(set(chosen.tolist())) == 100
    assert evenly_drawn(labels, 100, seed=1).tolist() == chosen.tolist()
    assert evenly_drawn(labels, 100, seed=2).tolist() != chosen.tolist()
    assert len(evenly_drawn(labels, 10_000, seed=1)) == 957
