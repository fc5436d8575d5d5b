"""What a model looked at, over HTTP."""

import numpy as np
import pytest

from bert_core.features.inspection import attention_maps, gradient_times_input
from bert_core.model_folder import load_model_folder
from bert_core.tasks.classification import Classification, Text
from serving.engine import Engine
from serving.limits import Limits
from serving.models import close_models, load_models

TEXT = "the cat sat on a mat"


def test_attention_is_that_of_the_encoder(server):
    status, found = server.ask("/v1/explain", {"model": "encoder", "inputs": TEXT, "layers": [1]})
    assert status == 200, found
    _, model, tokenizer = load_model_folder(server.folders["encoder"])
    wanted = attention_maps(model.encoder, tokenizer, TEXT)
    np.testing.assert_allclose(found["attention"], wanted.probabilities[:1], atol=1e-5)
    assert [each["token"] for each in found["tokens"]] == wanted.tokens
    assert found["n_tokens"] == len(wanted.tokens) and "attributions" not in found


@pytest.mark.parametrize("label", [None, "bad", "good"])
def test_attributions_are_those_of_the_label(server, label):
    body = {"model": "sentiment", "inputs": TEXT} | ({"label": label} if label else {})
    _, found = server.ask("/v1/explain", body)
    _, classified = server.ask("/v1/classify", {"model": "sentiment", "inputs": TEXT})
    assert found["label"] == (label or classified["results"][0]["label"])
    _, model, tokenizer = load_model_folder(server.folders["sentiment"])
    rows = Classification(labels=("bad", "good")).encode([Text(TEXT, None, None)], tokenizer)
    batch = rows.batch(np.arange(1), "packed")
    number = ("bad", "good").index(found["label"])
    wanted = gradient_times_input(model.eval(), batch, lambda outputs: outputs[0, number])
    np.testing.assert_allclose(found["attributions"], wanted, atol=1e-4)


def test_pairs_and_numbers_are_explained(server):
    pair = {"text": TEXT, "text_pair": "dogs run"}
    _, found = server.ask("/v1/explain", {"model": "paraphrase", "inputs": pair})
    assert len(found["attributions"]) == found["n_tokens"] == len(found["attention"][0][0])
    _, found = server.ask("/v1/explain", {"model": "grade", "inputs": TEXT})
    assert "label" not in found and len(found["attributions"]) == found["n_tokens"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"inputs": TEXT}, "model"),
        ({"model": "encoder", "inputs": "a " * 200}, "inputs"),
        ({"model": "topics", "inputs": "a " * 60}, "inputs"),
        ({"model": "encoder", "inputs": TEXT, "label": "bad"}, "label"),
        ({"model": "sentiment", "inputs": TEXT, "label": "ugly"}, "label"),
        ({"model": "encoder", "inputs": TEXT, "layers": [9]}, "layers"),
        ({"model": "encoder", "inputs": TEXT, "layers": []}, "layers"),
        ({"model": "encoder", "inputs": TEXT, "layers": [1, 1]}, "layers"),
        ({"model": "encoder", "inputs": TEXT, "layers": [2**70]}, "layers"),
        ({"model": "paraphrase", "inputs": TEXT}, "inputs"),
    ],
)
def test_what_cannot_be_explained_is_told(server, body, field):
    status, problem = server.ask("/v1/explain", body)
    assert status == 422 and problem["field"] == field, problem


def test_an_answer_is_no_longer_than_others(small_models, start_server):
    models = load_models({"encoder": small_models["encoder"]})
    running = start_server(Engine(models, Limits(max_answer_numbers=200)), small_models)
    status, problem = running.ask("/v1/explain", {"inputs": "the cat sat on a mat a mat a mat"})
    assert status == 413 and problem["field"] == "layers"
    assert running.ask("/v1/explain", {"inputs": "the cat"})[0] == 200  # the remedy
    close_models(list(models.values()))


def test_a_long_text_is_not_even_cut(server):
    status, problem = server.ask("/v1/explain", {"model": "encoder", "inputs": "a" * 1_000_000})
    assert status == 422 and problem["title"] == "Text too long"
