import json

import pytest
import torch

from bert_core.errors import UserError
from bert_core.example_answers import example_of_task
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tasks.catalog import task_config, task_of
from bert_core.tasks.classification import Text
from serving.models import ModelLoader, close_models
from serving.probe import open_model


def test_a_model_that_computes_no_numbers_is_not_opened(small_models, tmp_path):
    _, model, tokenizer = load_model_folder(small_models["encoder"])
    with torch.no_grad():
        model.encoder.layers[0].output.weight.fill_(torch.finfo(torch.float32).max)
    save_model_folder(tmp_path / "broken", model, tokenizer, card="")
    loader = ModelLoader()
    well = open_model(loader, "well", small_models["encoder"], [])
    with pytest.raises(UserError, match="no numbers"):
        open_model(loader, "broken", tmp_path / "broken", [well])
    again = open_model(loader, "again", small_models["sentiment"], [well])
    assert again.batcher is well.batcher and well.batcher.is_alive
    close_models([well])


def test_a_model_that_answers_otherwise_than_it_did_is_not_opened(small_models, tmp_path):
    _, model, tokenizer = load_model_folder(small_models["sentiment"])
    task = task_of(json.loads((small_models["sentiment"] / "config.json").read_text()))
    assert task is not None
    example = example_of_task(model, tokenizer, task[1], [Text("the cat sat", None, None)])
    config = task_config(*task)
    save_model_folder(
        tmp_path / "mood", model, tokenizer, card="", extra_config=config, example=example
    )
    close_models([open_model(ModelLoader(), "mood", tmp_path / "mood", [])])
    with torch.no_grad():
        for head in model.heads.values():
            for parameter in head.parameters():
                parameter.mul_(0.5)
    save_model_folder(
        tmp_path / "other", model, tokenizer, card="", extra_config=config, example=example
    )
    with pytest.raises(UserError, match="does not answer as it should: scores.*, was 0"):
        open_model(ModelLoader(), "mood", tmp_path / "other", [])
