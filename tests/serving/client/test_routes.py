"""Each route asked by the client gives what the server answers, as typed results."""

import base64
from typing import Annotated, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from pydantic import ValidationError
from running import assert_alike

from serving.client import RefusalError, TextPair, routes
from serving.client.routes import Classified, Features, Route
from serving.engine import Engine
from serving.routes.reranking import RerankRoutes
from serving.routes.tasks import TaskRoutes
from serving.routes.texts import TextRoutes
from serving.routes.zero_shot import ZeroShotRoutes

TEXT, OTHER = "the cat sat on a mat", "dogs run"
PAIR = {"text": TEXT, "text_pair": OTHER}
QUESTION = {"question": "the cat", "context": "dogs run far away slowly"}

ROUTES = [var for var in vars(routes).values() if isinstance(var, Route)]
REQUESTS = {
    route.path: get_type_hints(route.endpoint)["request"]
    for handlers in (TaskRoutes, TextRoutes, ZeroShotRoutes, RerankRoutes)
    for route in handlers(Engine({})).router.routes
    if route.path.startswith("/v1/")
}
"""What each of our own routes takes, by its path."""


def bare(hint):
    """A type without the bounds that the server holds it to."""
    if get_origin(hint) is Annotated:
        return bare(get_args(hint)[0])
    if get_origin(hint) is list:
        return list[bare(get_args(hint)[0])]
    parts = [bare(each) for each in get_args(hint)]
    return hint if get_origin(hint) is None or not parts else _joined(hint, parts)


def _joined(hint, parts):
    if "Literal" in str(get_origin(hint)):
        return hint
    first, *others = parts
    for other in others:
        first = first | other
    return first


def test_the_client_asks_every_route():
    assert {route.path for route in ROUTES} == REQUESTS.keys()


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_options_are_those_of_the_schema(route):
    request = REQUESTS[route.path]
    ours = get_type_hints(route.options)
    hints = get_type_hints(request, include_extras=True)
    wanted = {name: bare(hints[name]) for name in request.model_fields}
    beside = ("source", "labels", "query", "top_n", "return_documents")
    for name in (route.field, *beside, *route.fixed):
        wanted.pop(name, None)
    assert ours == wanted


@pytest.fixture
def client(server, open_client):
    """A client of the small models."""
    return open_client(f"http://{server.host}:{server.port}")


CASES = [
    ("classify", "classify", "sentiment", [TEXT, OTHER], {"top_k": 1}),
    ("classify", "classify", "paraphrase", [PAIR, PAIR | {"text": OTHER}], {}),
    ("classify", "classify", "topics", [TEXT, OTHER], {}),
    ("classify", "classify", "grade", [TEXT * 40, OTHER], {"overflow": "window"}),
    ("ner", "ner", "entities", [TEXT, OTHER], {"aggregation": "simple"}),
    ("qa", "qa", "answers", [QUESTION, QUESTION | {"question": "a"}], {"top_k": 3}),
    ("fill_mask", "fill-mask", "encoder", ["the [MASK]", "[MASK] a"], {"targets": ["cat", "a"]}),
    ("next_sentence", "next-sentence", "encoder", [PAIR, PAIR | {"text": "a"}], {}),
    (
        "pseudo_perplexity",
        "pseudo-perplexity",
        "encoder",
        [TEXT, OTHER],
        {"masking": "rest_of_word"},
    ),
    ("tokenize", "tokenize", "encoder", [TEXT, OTHER], {"add_special_tokens": False}),
]


@pytest.mark.parametrize(("name", "path", "model", "inputs", "options"), CASES)
def test_results_are_those_of_the_server(server, client, name, path, model, inputs, options):
    status, content = server.ask(f"/v1/{path}", {"model": model, "inputs": inputs} | options)
    assert status == 200
    found = getattr(client, name)(inputs, model=model, **options)
    for each, wanted in zip(found, content["results"], strict=True):
        assert_alike(each.model_dump(exclude_none=True, exclude={"model", "version"}), wanted)
        assert (each.model, each.version) == (model, content.get("version"))
    alone = getattr(client, name)(inputs[1], model=model, **options)
    assert_alike(alone.model_dump(), found[1].model_dump())


def test_vectors_are_arrays(server, client):
    body = {"model": "encoder", "inputs": [TEXT, OTHER], "normalize": True}
    _, content = server.ask("/v1/features", body)
    found = client.features([TEXT, OTHER], model="encoder", normalize=True)
    vectors = np.stack([each.vector for each in found])
    assert vectors.dtype == np.float32 and vectors.flags.writeable
    np.testing.assert_allclose(
        vectors, [result["vector"] for result in content["results"]], atol=1e-6
    )
    words = client.features(OTHER, model="encoder", unit="word", strategy="layer_1")
    assert [unit.text for unit in words.units] == ["dogs", "run"]
    assert words.vectors.shape == (2, 32) and words.dimensions == 32
    np.testing.assert_array_equal(words.vectors[1], words.units[1].vector)
    assert client.features("", model="encoder", unit="word").vectors.shape == (0, 32)


def test_one_text_or_several_are_compared_with_the_source(client):
    found = client.similarity(TEXT, [OTHER, TEXT], model="encoder")
    assert found[1].score == pytest.approx(1) and found[0].score < 1
    assert found[0].source.n_tokens == client.tokenize(TEXT, model="encoder").n_tokens
    assert client.similarity(TEXT, TEXT, model="encoder").score == pytest.approx(1)


def test_labels_that_the_model_has_never_seen(server, client):
    body = {"model": "entailment", "inputs": [TEXT, OTHER], "labels": ["cats", "dogs"]}
    _, content = server.ask("/v1/zero-shot", body | {"template": "of {}"})
    given = {"model": "entailment", "template": "of {}"}
    found = client.zero_shot([TEXT, OTHER], ["cats", "dogs"], **given)
    for each, wanted in zip(found, content["results"], strict=True):
        assert_alike(each.model_dump(exclude_none=True, exclude={"model", "version"}), wanted)
    assert client.zero_shot(OTHER, ["cats", "dogs"], **given).label == found[1].label


def test_documents_are_scored_in_their_order(server, client):
    documents = [OTHER, TEXT, "a mat"]
    _, content = server.ask("/rerank", {"query": "the cat", "texts": documents})
    scores = {each["index"]: each["score"] for each in content}
    found = client.relevance("the cat", documents, model="relevance")
    assert [each.score for each in found] == pytest.approx([scores[n] for n in range(3)], abs=1e-6)
    one = client.relevance("the cat", TEXT)
    assert one.score == pytest.approx(scores[1], abs=1e-5) and one.model == "relevance"


def test_a_refusal_to_score_says_why(client):
    with pytest.raises(RefusalError, match="sentiment is no model for") as told:
        client.relevance("the cat", TEXT, model="sentiment")
    assert told.value.status == 422 and not told.value.remedy


def test_each_text_is_explained_by_itself(client):
    pair = TextPair(text=TEXT, text_pair=OTHER)
    found = client.explain([pair, PAIR | {"text": OTHER}], model="paraphrase", label="yes")
    one = client.explain(pair, model="paraphrase", label="yes")
    assert_alike(found[0].model_dump(), one.model_dump())
    assert np.array(one.attention).shape == (1, 2, one.n_tokens, one.n_tokens)
    assert len(one.attributions) == one.n_tokens and found[1].attributions != one.attributions


def test_ids_are_a_text_or_several(client):
    ids = [[token.id for token in client.tokenize(text, model="encoder").tokens]
           for text in (TEXT, OTHER)]  # fmt: skip
    assert client.decode(ids[0], model="encoder").text == TEXT
    assert [each.text for each in client.decode(ids, model="encoder")] == [TEXT, OTHER]
    special = client.decode(ids[0], model="encoder", skip_special_tokens=False)
    assert special.text == f"[CLS] {TEXT} [SEP]" and special.model == "encoder"


def test_what_the_server_says_of_itself(server, client):
    info = client.info()
    _, wanted = server.ask("/info")
    assert info.models.keys() == wanted["models"].keys()
    assert info.models["entities"].model_dump() == wanted["models"]["entities"]
    assert info.limits.model_dump() == wanted["limits"]
    assert client.health() and client.ready()


READ = {"n_tokens": 3, "truncated": False, "model": "m", "version": "7"}


def test_a_result_shows_what_was_found_first():
    found = Classified(label="good", **READ)
    shown = "label='good' n_tokens=3 truncated=False model='m' version='7'"
    assert str(found) == shown and repr(found) == f"Classified({shown.replace(' ', ', ')})"


def test_vectors_are_little_endian_whatever_the_machine_is():
    encoded = base64.b64encode(np.array([1.5, -2], "<f4").tobytes()).decode()
    found = Features(vector=encoded, dimensions=2, **READ)
    assert found.vector.dtype == np.float32 and found.vector.tolist() == [1.5, -2.0]
    assert found.vectors.tolist() == [[1.5, -2.0]]
    with pytest.raises(ValidationError):
        Features(vector="no base64!", dimensions=2, **READ)
