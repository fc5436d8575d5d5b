"""Our own routes about texts: similarity, tokens, explanations."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bert_core.features.extractor import FeatureChoice, load_extractor
from bert_core.features.inspection import attention_maps, gradient_times_input
from bert_core.model.strategies import STRATEGIES
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.predictor import load_predictor
from bert_core.tasks.catalog import task_config
from bert_core.tasks.classification import Classification, Text
from bert_core.tokenizer_training import train_tokenizer
from serving.limits import Limits
from serving.routes.texts import tokens_of

TEXTS = ["the cat sat", "dogs run far away", "", "the cat sat on a mat"]


def test_similarity_is_the_cosine_of_features(server):
    body = {"model": "encoder", "source": TEXTS[0], "inputs": TEXTS[1:], "strategy": "embeddings"}
    status, content = server.ask("/v1/similarity", body)
    assert status == 200, content
    choice = FeatureChoice(strategy=STRATEGIES["embeddings"], normalize=True)
    vectors = load_extractor(server.folders["encoder"], choice).of_texts(TEXTS)
    scores = [result["score"] for result in content["results"]]
    np.testing.assert_allclose(scores, vectors[1:] @ vectors[0], atol=1e-5)
    assert content["source"]["n_tokens"] == 5


def test_a_text_that_is_too_long_to_compare_is_named(server):
    long = "a " * 500
    for source, inputs, field in ((long, ["a"], "source"), ("a", ["a", long], "inputs[1]")):
        body = {"source": source, "inputs": inputs}
        status, problem = server.ask("/v1/similarity", body)
        assert status == 422 and problem["field"] == field
        status, content = server.ask("/v1/similarity", body | {"overflow": "right"})
        assert status == 200
        assert content["source"]["truncated"] == (field == "source")


@pytest.mark.parametrize("special", [True, False])
def test_tokens_and_back(server, special):
    texts = ["The cat, 👩‍🚀 sat", ""]
    body = {"inputs": texts, "add_special_tokens": special}
    _, content = server.ask("/v1/tokenize", body)
    tokenizer = server.engine.models["encoder"].tokenizer
    for text, each in zip(texts, content["results"], strict=True):
        encoding = tokenizer.encode(text, add_special_tokens=special)
        assert [token["id"] for token in each["tokens"]] == encoding.ids
        assert each["n_tokens"] == len(encoding)
        for token in each["tokens"]:
            assert token["special"] == (token["token"] in ("[CLS]", "[SEP]"))
            assert ("start" in token) != token["special"]
        inner = [token for token in each["tokens"] if not token["special"]]
        assert [(t["start"], t["end"]) for t in inner] == [
            span for span, is_special in zip(
                encoding.offsets, encoding.special_tokens_mask, strict=True
            ) if not is_special
        ]  # fmt: skip
    ids = [[token["id"] for token in result["tokens"]] for result in content["results"]]
    _, back = server.ask("/v1/decode", {"ids": ids})
    assert back["results"] == tokenizer.decode_batch(ids)
    _, back = server.ask("/v1/decode", {"ids": ids[0], "skip_special_tokens": False})
    assert back["results"] == tokenizer.decode_batch(ids[:1], skip_special_tokens=False)
    assert server.ask("/v1/decode", {"ids": []})[1]["results"] == [""]


@pytest.mark.parametrize(("text", "count"), [("[MASK] ", 12_000), ("\u200b ", 33_000)])
def test_texts_with_few_tokens_are_not_refused_for_their_signs(server, text, count):
    """Masks are a token each, and the tokenizer drops what is invisible."""
    status, content = server.ask("/v1/tokenize", {"inputs": text * count})
    assert status == 200, content
    assert content["results"][0]["n_tokens"] == (count if "MASK" in text else 0) + 2


@pytest.mark.parametrize(
    ("ids", "status", "field"),
    [
        ([1, 99999], 422, "ids[1]"),
        ([[1], [2, 99999]], 422, "ids[1][1]"),
        ([[1, 99999]], 422, "ids[0][1]"),
        ([[1, -1]], 422, "ids[0][1]"),
        ([-1], 422, "ids[0]"),
        ([[1], 2], 422, "ids[1]"),
        ("a", 422, "ids"),
        ([1] * 40000, 413, "ids"),
        ([2**70], 422, "ids[0]"),
    ],
)
def test_ids_that_are_no_tokens_are_named(server, ids, status, field):
    found, problem = server.ask("/v1/decode", {"ids": ids})
    assert found == status, problem
    assert problem["field"].startswith(field)


def test_many_tokens_take_linear_time(server):
    text = "a cat " * 8000
    encoding = server.engine.models["encoder"].tokenizer.encode(text)
    began = time.thread_time()
    tokens = tokens_of(encoding, [text])
    assert time.thread_time() - began < 2  # a list of all tokens for each took 30 s
    assert len(tokens) == len(encoding) >= 16_002
    assert tokens[0].special and tokens[0].start is None
    assert (tokens[-2].id, tokens[-2].end) == (encoding.ids[-2], encoding.offsets[-2][1])


def test_a_space_is_no_character_of_the_next_word():
    text = "Paris is  the\ncapital"
    tokenizer = train_tokenizer("bpe", [text] * 20, 300, lowercase=False)
    tokens = [each for each in tokens_of(tokenizer.encode(text), [text]) if not each.special]
    found = [text[each.start : each.end] for each in tokens]
    assert "".join(found) == "".join(text.split())
    assert "Ġis" in [each.token for each in tokens] and "is" in found


TEXT = "the cat sat on a mat"


def test_attention_is_that_of_the_encoder(server):
    status, found = server.ask("/v1/explain", {"model": "encoder", "inputs": TEXT, "layers": [1]})
    assert status == 200, found
    _, model, tokenizer = load_model_folder(server.folders["encoder"])
    wanted = attention_maps(model.encoder, tokenizer, TEXT)
    np.testing.assert_allclose(found["attention"], wanted.probabilities[:1], atol=1e-5)
    assert [token["token"] for token in found["tokens"]] == wanted.tokens
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


def test_explanations_wait_as_other_work_does(small_models, start_server):
    limits = Limits(max_waiting_tokens=64, deadline_seconds=0.5)
    server = start_server({"encoder": small_models["encoder"]}, limits)
    with ThreadPoolExecutor(24) as threads:
        asked = [
            threads.submit(server.ask, "/v1/explain", {"inputs": "the cat sat on a mat " * 6})
            for _ in range(24)
        ]
        found = Counter(each.result()[0] for each in asked)
    assert found.keys() == {200, 429} and found[429] >= 8, found
    assert server.ask("/v1/explain", {"inputs": "the cat"})[0] == 200


def test_several_windows_are_not_explained_by_the_first(small_models, start_server, tmp_path):
    _, model, tokenizer = load_model_folder(small_models["sentiment"])
    task = load_predictor(small_models["sentiment"]).task
    task = task.model_copy(update={"max_length": 16, "overflow": "window"})
    extra = task_config("classification", task)
    save_model_folder(tmp_path / "windows", model, tokenizer, card="", extra_config=extra)
    running = start_server({"windows": tmp_path / "windows"})
    status, problem = running.ask("/v1/explain", {"inputs": "the cat sat on a mat " * 4})
    assert status == 422 and problem["field"] == "inputs"
    _, found = running.ask("/v1/explain", {"inputs": "the cat sat"})
    assert len(found["attributions"]) == len(found["tokens"])


def test_an_answer_is_no_longer_than_others(small_models, start_server):
    folders = {"encoder": small_models["encoder"]}
    running = start_server(folders, Limits(max_answer_numbers=200))
    status, problem = running.ask("/v1/explain", {"inputs": "the cat sat on a mat a mat a mat"})
    assert status == 413 and problem["field"] == "layers"
    assert running.ask("/v1/explain", {"inputs": "the cat"})[0] == 200  # the remedy


def test_a_long_text_is_not_even_cut(server):
    status, problem = server.ask("/v1/explain", {"model": "encoder", "inputs": "a" * 1_000_000})
    assert status == 422 and problem["title"] == "Text too long"
