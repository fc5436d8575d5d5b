"""Classifiers that `transformers` wrote, over HTTP: what it and sentence-transformers say."""

import json

import numpy as np
import pytest
import torch
from running import serving
from sentence_transformers import CrossEncoder
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer, pipeline

from bert_core.special_tokens import SPECIAL_TOKENS

WORDS = [*SPECIAL_TOKENS, *"abcdefghijklmnopqrstuvwxyz"]
PAIRS = [("a b c", "d e"), ("x y", "z z z"), ("q", "r s t u")]
TEXTS = ["a b c", "x y", "q"]
ENTAILMENT = ["contradiction", "entailment", "neutral"]
CONFIGS = {
    "unnamed": {"num_labels": 2},
    "entailment": {"id2label": {2: "neutral", 0: "contradiction", 1: "entailment"}},
    "several": {"num_labels": 3, "problem_type": "multi_label_classification"},
    "cross_encoder": {"num_labels": 1},
    "raw_cross_encoder": {
        "num_labels": 1,
        "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
    },
    "named_score": {"id2label": {0: "relevance"}},
    "similarity": {"num_labels": 1, "problem_type": "regression"},
}


def write_classifier(folder, *, said=None, **config):
    """Saves a random classifier; `said` is added to its config.json."""
    torch.manual_seed(0)
    small = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 32}
    model = BertForSequenceClassification(BertConfig(**small | config))
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.3
    model.save_pretrained(folder)
    BertTokenizer({word: number for number, word in enumerate(WORDS)}).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | (said or {})))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("foreign")
    return {name: write_classifier(root / name, **said) for name, said in CONFIGS.items()}


@pytest.fixture(scope="module")
def foreign(folders):
    """Asks a server of them."""
    with serving(folders) as running:
        yield running


def answers_of_transformers(folder, inputs):
    """What the pipeline says of each of these: labels with scores, best first."""
    asked = pipeline("text-classification", model=str(folder), top_k=None, device="cpu")
    return [asked({"text": each} if isinstance(each, str) else _pair(*each)) for each in inputs]


def _pair(first, second):
    return {"text": first, "text_pair": second}


def assert_same(found, expected):
    for mine, theirs in zip(found, expected, strict=True):
        assert [each["label"] for each in mine] == [their["label"] for their in theirs]
        np.testing.assert_allclose(
            [each["score"] for each in mine], [their["score"] for their in theirs], atol=1e-5
        )


@pytest.mark.parametrize("name", CONFIGS)
def test_texts_and_pairs_are_answered_as_by_the_pipeline(foreign, folders, name):
    inputs = [*PAIRS, *TEXTS]
    expected = answers_of_transformers(folders[name], inputs)
    asked = [_pair(*each) if isinstance(each, tuple) else each for each in inputs]
    status, found = foreign.ask(f"/hf/text-classification?model={name}", {"inputs": asked})
    assert status == 200, found
    assert_same(found, expected)
    for one, each in zip(asked, expected, strict=True):
        _, alone = foreign.ask(f"/hf/text-classification?model={name}", {"inputs": one})
        assert_same(alone, [each])


@pytest.mark.parametrize("name", CONFIGS)
def test_tei_answers_the_same(foreign, folders, name):
    expected = answers_of_transformers(folders[name], [*PAIRS, *TEXTS])
    lists = [*map(list, PAIRS), *([text] for text in TEXTS)]
    status, found = foreign.ask(f"/predict?model={name}", {"inputs": lists})
    assert status == 200, found
    assert_same(found, expected)
    for given, number in ((TEXTS[0], len(PAIRS)), (list(PAIRS[0]), 0)):
        _, alone = foreign.ask(f"/predict?model={name}", {"inputs": given})
        assert_same([alone], [expected[number]])


def test_our_route_names_classes_without_names_as_data_sets_do(foreign, folders):
    inputs = [_pair(*PAIRS[0]), TEXTS[0]]
    expected = answers_of_transformers(folders["unnamed"], [PAIRS[0], TEXTS[0]])
    _, found = foreign.ask("/v1/classify", {"model": "unnamed", "inputs": inputs})
    for mine, theirs in zip(found["results"], expected, strict=True):
        names = [score["label"] for score in mine["scores"]]
        assert [f"LABEL_{name}" for name in names] == [their["label"] for their in theirs]
    assert b"bertline_found_labels" in foreign.ask("/metrics")[1]
    _, found = foreign.ask("/v1/classify", {"model": "entailment", "inputs": inputs})
    expected = answers_of_transformers(folders["entailment"], [PAIRS[0], TEXTS[0]])
    assert_same([result["scores"] for result in found["results"]], expected)


@pytest.mark.parametrize("name", ["cross_encoder", "raw_cross_encoder", "named_score"])
def test_the_value_of_a_cross_encoder_is_its_own(foreign, folders, name):
    pairs = [*PAIRS, ("q", "")]
    expected = CrossEncoder(str(folders[name]), device="cpu").predict(pairs)
    _, found = foreign.ask("/v1/classify", {"model": name, "inputs": [_pair(*e) for e in pairs]})
    np.testing.assert_allclose(
        [result["value"] for result in found["results"]], expected, atol=1e-5
    )


def test_a_cross_encoder_that_sentence_transformers_wrote(folders, tmp_path, start_server):
    for name, activation in (("sigmoid", torch.nn.Sigmoid()), ("raw", torch.nn.Identity())):
        encoder = CrossEncoder(
            str(folders["cross_encoder"]), device="cpu", activation_fn=activation
        )
        encoder.save_pretrained(str(tmp_path / name))
        server = start_server({name: tmp_path / name})
        _, found = server.ask("/v1/classify", {"inputs": [_pair(*pair) for pair in PAIRS]})
        values = [result["value"] for result in found["results"]]
        np.testing.assert_allclose(values, encoder.predict(PAIRS), atol=1e-5)


def test_what_can_be_asked_is_told(foreign):
    _, info = foreign.ask("/info")
    assert {model["reads_pairs"] for model in info["models"].values()} == {"either"}
    for inputs in ("a b", _pair("a b", "c")):
        status, _ = foreign.ask("/v1/explain", {"model": "entailment", "inputs": inputs})
        assert status == 200
