"""Answers of the pre-training heads over HTTP are those of the model asked plainly."""

import numpy as np
import pytest
import torch
from asking import answers
from transformers import BertForPreTraining

TEXTS = ["the [MASK] sat on a mat", "[MASK] dogs [MASK]", "a [MASK]"]
PAIRS = [("the cat sat", "on a mat"), ("dogs run far", "away slowly")]


@pytest.fixture(scope="module")
def published(server):
    """The encoder as `transformers` loads it."""
    return BertForPreTraining.from_pretrained(server.folders["encoder"]).eval()


def ids_of(server, *texts):
    return server.engine.models["encoder"].tokenizer.encode(*texts)


def test_masks_are_filled(server, published):
    found = answers(server, "/v1/fill-mask", "encoder", TEXTS, top_k=3)
    for text, each in zip(TEXTS, found, strict=True):
        encoding = ids_of(server, text)
        assert each["n_tokens"] == len(encoding)
        with torch.inference_mode():
            logits = published(input_ids=torch.tensor([encoding.ids])).prediction_logits[0]
        places = [i for i, token in enumerate(encoding.tokens) if token == "[MASK]"]
        for mask, place in zip(each["masks"], places, strict=True):
            scores = [candidate["score"] for candidate in mask["candidates"]]
            shares = logits[place].softmax(-1)
            wanted = [float(shares[candidate["id"]]) for candidate in mask["candidates"]]
            assert scores == pytest.approx(wanted, abs=1e-5) and len(scores) == 3
            assert scores == sorted(scores, reverse=True)


def test_only_targets_fill_masks(server):
    body = {"model": "encoder", "inputs": "a [MASK]", "targets": ["cat", "mat"]}
    _, content = server.ask("/v1/fill-mask", body)
    (mask,) = content["results"][0]["masks"]
    assert {each["token"] for each in mask["candidates"]} == {"cat", "mat"}


def test_next_sentences_are_judged(server, published):
    inputs = [{"text": first, "text_pair": second} for first, second in PAIRS]
    found = answers(server, "/v1/next-sentence", "encoder", inputs)
    for pair, each in zip(PAIRS, found, strict=True):
        encoding = ids_of(server, *pair)
        with torch.inference_mode():
            logits = published(
                input_ids=torch.tensor([encoding.ids]),
                token_type_ids=torch.tensor([encoding.type_ids]),
            ).seq_relationship_logits[0]
        assert each["is_next"] == pytest.approx(float(logits.softmax(-1)[0]), abs=1e-5)


@pytest.mark.parametrize("masking", ["token", "rest_of_word"])
def test_texts_are_judged_by_their_tokens(server, published, masking):
    texts = ["the catmats sat", "dogs", ""]
    found = answers(server, "/v1/pseudo-perplexity", "encoder", texts, masking=masking)
    (token,) = found[1]["tokens"]
    encoding = ids_of(server, "dogs")
    ids = [encoding.ids[0], server.engine.models["encoder"].tokenizer.token_to_id("[MASK]")]
    with torch.inference_mode():
        logits = published(input_ids=torch.tensor([[*ids, encoding.ids[2]]])).prediction_logits[0]
    wanted = float(logits[1].log_softmax(-1)[encoding.ids[1]])
    assert token["log_probability"] == pytest.approx(wanted, abs=1e-4)
    assert found[1]["pseudo_perplexity"] == pytest.approx(np.exp(-wanted), rel=1e-4)
    assert found[2]["tokens"] == [] and "pseudo_perplexity" not in found[2]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("fill-mask", {"inputs": ["[MASK]", "a"]}, "inputs[1]"),
        ("fill-mask", {"inputs": "[MASK]", "targets": ["no such word"]}, None),
        ("fill-mask", {"inputs": "[MASK]", "targets": []}, "targets"),
        ("fill-mask", {"inputs": "[MASK]", "model": "sentiment"}, "model"),
        ("fill-mask", {"inputs": "a [MASK] " * 300}, "inputs"),
        ("next-sentence", {"inputs": "a"}, "inputs"),
        ("next-sentence", {"inputs": {"text": "a " * 300, "text_pair": "a " * 300}}, "inputs"),
    ],
)
def test_what_cannot_be_asked_is_told(server, path, body, field):
    status, problem = server.ask(f"/v1/{path}", body)
    assert status == 422, problem
    assert problem.get("field") == field and problem["remedy"]


def test_each_token_masked_in_turn_is_too_much_of_long_texts(server):
    body = {"inputs": ["a", "a " * 380], "overflow": "left"}
    status, problem = server.ask("/v1/pseudo-perplexity", body)
    assert (status, problem["title"], problem["field"]) == (413, "Too many tokens", "inputs")
    assert "at most" in problem["detail"] and problem["remedy"]


@pytest.mark.parametrize("path", ["/v1/fill-mask", "/hf/fill-mask"])
def test_an_answer_with_many_long_texts_is_refused(server, path):
    text = "[MASK] " * 40 + "x" * 100_000
    status, problem = server.ask(path, {"inputs": text})
    assert status == 413
    assert "Too long an answer" in str(problem)
