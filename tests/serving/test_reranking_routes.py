"""The routes of rerankers, beside sentence-transformers' cross-encoder, and by their clients."""

import cohere
import numpy as np
import pytest
from running import serving
from sentence_transformers import CrossEncoder
from tei_client import HttpClient, ModelType

QUERY = "the cat sat"
TEXTS = ["a mat", "the cat sat on a mat", "dogs run far away", "the cat sat on a mat", "cat"]


@pytest.fixture(scope="module")
def theirs(server):
    return CrossEncoder(str(server.folders["relevance"]), device="cpu")


def test_scores_and_order_are_those_of_sentence_transformers(server, theirs):
    expected = theirs.rank(QUERY, TEXTS)
    status, found = server.ask("/rerank", {"query": QUERY, "texts": TEXTS})
    assert status == 200
    scores = {each["corpus_id"]: float(each["score"]) for each in expected}
    assert {each["index"]: each["score"] for each in found} == pytest.approx(scores, abs=1e-5)
    found_scores = [each["score"] for each in found]
    assert found_scores == sorted(found_scores, reverse=True)
    places = [each["index"] for each in found]
    assert places.index(3) == places.index(1) + 1, "of equals the first is better"
    assert set(found[0]) == {"index", "score"}


def test_raw_scores_and_texts_as_asked(server, theirs):
    raw = theirs.predict([(QUERY, text) for text in TEXTS], activation_fn=None)
    logits = np.log(raw / (1 - raw))
    body = {"query": QUERY, "texts": TEXTS, "raw_scores": True, "return_text": True}
    _, found = server.ask("/rerank", body)
    for each in found:
        assert each["score"] == pytest.approx(float(logits[each["index"]]), abs=1e-4)
        assert each["text"] == TEXTS[each["index"]]


def test_a_pair_too_long_is_refused_unless_it_may_be_cut(server):
    long = {"query": QUERY, "texts": ["mat", "a cat " * 100]}
    status, found = server.ask("/rerank", long)
    assert status == 413 and found["error_type"] == "Validation" and "texts[1]" in found["error"]
    for side in ("left", "Right"):
        status, found = server.ask(
            "/rerank", long | {"truncate": True, "truncation_direction": side}
        )
        assert status == 200 and len(found) == 2
    status, found = server.ask(
        "/v2/rerank", {"model": "relevance", "query": QUERY, "documents": long["texts"]}
    )
    assert status == 200


def test_documents_are_ordered_as_texts_are(server):
    _, ranks = server.ask("/rerank", {"query": QUERY, "texts": TEXTS})
    documents = [TEXTS[0], {"text": TEXTS[1]}, *TEXTS[2:]]
    body = {"query": QUERY, "documents": documents, "top_n": 2, "return_documents": True}
    _, found = server.ask("/v1/rerank", body)
    assert [each["index"] for each in found["results"]] == [each["index"] for each in ranks[:2]]
    for each in found["results"]:
        assert each["document"] == {"text": TEXTS[each["index"]]}
    assert found["model"] == "relevance"
    tokens = server.engine.models["relevance"].tokenizer
    assert found["usage"]["total_tokens"] == sum(len(tokens.encode(QUERY, t)) for t in TEXTS)


def test_models_of_other_tasks_do_not_answer(server):
    status, found = server.ask("/rerank?model=sentiment", {"query": QUERY, "texts": TEXTS})
    assert status == 422 and "reranking" in found["error"]
    status, found = server.ask(
        "/v1/rerank", {"model": "sentiment", "query": QUERY, "documents": TEXTS}
    )
    assert status == 422 and "reranking" in found["message"]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_coheres_client_works_unchanged(server, version):
    kind = cohere.Client if version == "v1" else cohere.ClientV2
    client = kind("no key", base_url=f"http://{server.host}:{server.port}")
    found = client.rerank(model="relevance", query=QUERY, documents=TEXTS, top_n=3)
    _, ranks = server.ask("/rerank", {"query": QUERY, "texts": TEXTS})
    assert [each.index for each in found.results] == [each["index"] for each in ranks[:3]]
    assert found.results[0].relevance_score == pytest.approx(ranks[0]["score"], abs=1e-5)


@pytest.mark.parametrize("name", ["relevance", "encoder", "sentiment"])
def test_the_client_of_text_embeddings_inference_knows_what_a_server_has(name, small_models):
    with serving({name: small_models[name]}) as server:
        client = HttpClient(f"http://{server.host}:{server.port}")
        told = client.info()
        assert told.server_model_id == name and client.health()
        if name == "relevance":
            found = client.rerank(QUERY, TEXTS, return_text=True, truncate=True)
            _, ranks = server.ask("/rerank", {"query": QUERY, "texts": TEXTS})
            assert [(each.index, each.score) for each in found.ranks] == [
                (each["index"], pytest.approx(each["score"], abs=1e-6)) for each in ranks
            ]
            assert [each.text for each in found.ranks] == [TEXTS[each["index"]] for each in ranks]
        elif name == "encoder":
            vectors = client.embed(TEXTS)
            _, expected = server.ask("/embed", {"inputs": TEXTS})
            np.testing.assert_allclose(vectors, expected, atol=1e-6)
        else:
            assert told.server_model_type == ModelType.Classifier
            labels = server.engine.models[name].task.labels
            assert tuple(told.server_model_metadata.id2label.values()) == labels
