"""Gradients are those of `transformers`, and nothing of the model is touched."""

import numpy as np
import pytest
import torch
from small_tasks import write_encoder
from transformers import BertForSequenceClassification

from bert_core.features.attributions import gradient_times_input
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tasks.catalog import task_config
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.task import add_task_head

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
