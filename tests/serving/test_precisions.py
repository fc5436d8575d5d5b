"""Models in int8 and bfloat16 behind a server: alone and in company, and what they share."""

import json
import shutil

import numpy as np
import pytest
import torch
from running import answers, assert_alike, serving

from bert_core.errors import UserError
from bert_core.model.cpu.linear import Int8Linear, weight_levels
from bert_core.model_folder import CHECKSUMS, CONFIG
from bert_core.predictor import load_predictor
from bert_core.quantization import PRECISION_FIELD
from bert_core.tasks.classification import Text
from serving.models import ModelLoader

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dogs", "run", "far", "away", "slowly"]
NAMES = ("encoder", "sentiment", "entities", "answers")


def some_texts(count):
    choose = np.random.default_rng(5)
    return [" ".join(choose.choice(WORDS, size=choose.integers(1, 25))) for _ in range(count)]


def score_of(result, label):
    return next(score["score"] for score in result["scores"] if score["label"] == label)


@pytest.fixture(scope="module")
def folders(small_models, tmp_path_factory):
    """Some of the small models, each in float32 and in int8."""
    root = tmp_path_factory.mktemp("int8")
    both = {}
    for name in NAMES:
        both[name] = small_models[name]
        both[f"{name}-int8"] = shutil.copytree(small_models[name], root / name)
        path = root / name / CONFIG
        path.write_text(json.dumps(json.loads(path.read_text()) | {PRECISION_FIELD: "int8"}))
        (root / name / CHECKSUMS).unlink()
    return both


@pytest.fixture(scope="module")
def server(folders):
    with serving(folders) as running:
        yield running


def test_encoders_are_shared_by_models_of_one_precision(server):
    models = server.engine.models
    for is_int8 in (False, True):
        some = [each for name, each in models.items() if name.endswith("-int8") == is_int8]
        assert {each.precision for each in some} == {"int8" if is_int8 else "float32"}
        assert len({id(each.batcher) for each in some}) == 1
        encoder = some[0].batcher.encoder
        assert isinstance(encoder.layers[0].output, Int8Linear) == is_int8
        assert all(each.model.encoder is encoder for each in some)
    assert len({id(model.batcher) for model in models.values()}) == 2


def test_answers_do_not_depend_on_their_company(server):
    texts = some_texts(12)
    answers(server, "/v1/classify", "sentiment-int8", texts)
    answers(server, "/v1/ner", "entities-int8", texts)
    embed = {"model": "encoder-int8", "input": texts}
    together = server.ask("/v1/embeddings", embed)[1]["data"]
    for text, each in zip(texts, together, strict=True):
        _, alone = server.ask("/v1/embeddings", embed | {"input": text})
        assert_alike(alone["data"][0]["embedding"], each["embedding"])


def test_answers_are_those_of_the_offline_predictor_in_int8(server, folders):
    offline = load_predictor(folders["sentiment-int8"])
    texts = some_texts(8)
    body = {"model": "sentiment-int8", "inputs": texts}
    found = server.ask("/v1/classify", body)[1]["results"]
    in_float32 = server.ask("/v1/classify", body | {"model": "sentiment"})[1]["results"]
    wanted, _ = offline.predict_examples([Text(text, None, None) for text in texts])
    for one, other, third in zip(found, wanted, in_float32, strict=True):
        scores = {score["label"]: score["score"] for score in one["scores"]}
        assert scores == pytest.approx(other["scores"], abs=1e-5)
        assert one["scores"] != third["scores"]


def test_they_are_explained(server):
    body = {"model": "sentiment", "inputs": "the cat sat on a mat"}
    _, wanted = server.ask("/v1/explain", body)
    status, found = server.ask("/v1/explain", body | {"model": "sentiment-int8"})
    assert status == 200, found
    np.testing.assert_allclose(found["attention"], wanted["attention"], atol=0.05)
    scale = np.abs(wanted["attributions"]).max()
    tolerance = 0.1 if weight_levels() == 127 else 0.2
    np.testing.assert_allclose(
        np.array(found["attributions"]) / scale,
        np.array(wanted["attributions"]) / scale,
        atol=tolerance,
    )


def test_nor_do_answers_in_bfloat16(folders, server, start_server):
    some = ("sentiment", "sentiment-int8", "entities")
    loader, texts = ModelLoader(autocast_dtype=torch.bfloat16), some_texts(12)
    in_bfloat16 = start_server({name: folders[name] for name in some}, loader=loader)
    found = answers(in_bfloat16, "/v1/classify", "sentiment", texts)
    answers(in_bfloat16, "/v1/ner", "entities", texts)
    wanted = answers(server, "/v1/classify", "sentiment", texts)
    differences = [
        abs(score_of(one, "good") - score_of(two, "good"))
        for one, two in zip(found, wanted, strict=True)
    ]
    assert 0 < max(differences) < 0.1
    known = in_bfloat16.ask("/info")[1]["models"]
    assert [known[name]["precision"] for name in some] == ["bfloat16", "int8", "bfloat16"]


def test_an_accelerator_is_refused(folders):
    with pytest.raises(UserError, match="on the CPU only"):
        ModelLoader(torch.device("cuda")).load("a", folders["sentiment-int8"])
