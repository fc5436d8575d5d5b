"""A small encoder with its pre-training heads, ours and the same of `transformers`."""

import numpy as np
import pytest
import torch
from small_tasks import write_encoder
from transformers import BertForPreTraining

from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tasks.task import hidden_states


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A model folder whose answers vary from text to text."""
    folder = write_encoder(tmp_path_factory.mktemp("pretrained") / "model")
    _, model, tokenizer = load_model_folder(folder)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data *= 10
    save_model_folder(folder, model, tokenizer, card="")
    return folder


@pytest.fixture(scope="session")
def opened(folder):
    """Our model and its tokenizer."""
    _, model, tokenizer = load_model_folder(folder)
    return model.eval(), tokenizer


@pytest.fixture(scope="session")
def published(folder):
    """The same as `transformers` loads it."""
    return BertForPreTraining.from_pretrained(folder).eval()


@pytest.fixture(scope="session")
def outputs_of(opened):
    """What a head says at all places of rows, [P, L], computed in one micro-batch."""
    model, _ = opened

    def compute(rows, head):
        if not rows.num_items:
            return np.zeros((0, 1), dtype=np.float32)
        batch = rows.batch(np.arange(rows.num_items), "packed")
        with torch.inference_mode():
            states = hidden_states(model.encoder, batch, (model.config.num_hidden_layers,))
            return head(model, states, batch.place_counts).numpy()

    return compute
