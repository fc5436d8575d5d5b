"""What a failed request is answered with, and that the remedy works."""

import json

import pytest

from bert_core.errors import UserError
from serving.batching import DeadlineError, OverloadedError
from serving.errors import RequestError, problem_of, refusal
from serving.keys import RateLimitError
from serving.rollout.aliases import UnreachableError

OWN, TEI = {"type", "title", "status", "detail", "remedy"}, {"error", "error_type"}


@pytest.mark.parametrize(
    ("path", "keys", "status_of_mistakes"),
    [
        ("/v1/ner", OWN, 500),
        ("/hf/fill-mask", {"error"}, 500),
        ("/embed", TEI, 424),
        ("/embedded", OWN, 500),
        ("/v1/models/a", {"error"}, 500),
    ],
)
def test_each_family_has_its_shape_and_tells_nothing_of_the_inside(path, keys, status_of_mistakes):
    response = refusal(path, OverloadedError(7))
    assert response.status_code == 429 and response.headers["retry-after"] == "7"
    problem = json.loads(response.body)
    assert problem.keys() == keys  # what says nothing is left out
    if keys == OWN:
        assert response.media_type == "application/problem+json"
        assert problem["status"] == 429 and problem["type"] == "about:blank"
    response = refusal(path, ValueError("the secret"))
    assert response.status_code == status_of_mistakes and b"secret" not in response.body


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (RequestError(413, "Too large", "big", field="body", remedy="divide it"), 413, {}),
        (RequestError(404, "No", "x" * 9999, field="y" * 9999, remedy="z"), 404, {}),
        (OverloadedError(2.3), 429, {"Retry-After": "3"}),
        (OverloadedError(0.0), 429, {"Retry-After": "1"}),
        (RateLimitError(2.3), 429, {"Retry-After": "3"}),
        (DeadlineError(), 503, {}),
        (UserError("unknown strategy", "x" * 9999, "take last"), 422, {}),
        (UnreachableError("no model models:/a@b", "timed out", "ask again"), 503, {}),
        (ValueError("the secret"), 500, {}),
    ],
)
def test_an_exception_has_its_status_and_repeats_nothing_at_length(error, status, headers):
    problem, found = problem_of(error)
    assert (problem.status, found) == (status, headers)
    document = problem.model_dump_json()
    assert "secret" not in document and len(document) < 1000


LONG = "the cat sat on " * 200
TWO = {"text": "the cat", "text_pair": "sat"}
REMEDIES = [
    ("/v1/features", {"inputs": LONG}, "overflow", {"overflow": "right"}),
    ("/v1/classify", {"inputs": "a"}, "name one in model", {"model": "sentiment"}),
    ("/v1/classify", {"inputs": "a", "model": "nobody"}, "sentiment", {"model": "sentiment"}),
    ("/v1/ner", {"inputs": "a", "model": "sentiment"}, "entities", {"model": "entities"}),
    ("/v1/fill-mask", {"inputs": "the cat"}, "write [MASK]", {"inputs": "the [MASK]"}),
    ("/v1/next-sentence", {"inputs": "a"}, "", {"inputs": TWO}),
    (
        "/v1/classify",
        {"inputs": TWO, "model": "sentiment"},
        "give one text, as a string",
        {"inputs": "the cat"},
    ),
    (
        "/v1/explain",
        {"inputs": "the cat", "model": "encoder", "layers": [99]},
        "ask for lower",
        {"layers": [1]},
    ),
    (
        "/v1/embeddings",
        {"model": "encoder", "input": "a", "dimensions": 9999},
        "leave it out",
        {"dimensions": None},
    ),
    (
        "/v1/embeddings",
        {"model": "encoder", "input": [[10**6]]},
        "or send text",
        {"input": "the cat"},
    ),
    ("/v1/embeddings", {"input": "a", "model": "nobody"}, "one of encoder", {"model": "encoder"}),
]


@pytest.mark.parametrize(("path", "refused", "named", "changed"), REMEDIES)
def test_the_corrected_request_is_answered(server, path, refused, named, changed):
    status, problem = server.ask(path, refused)
    assert 400 <= status < 500, problem
    remedy = problem.get("remedy") or problem.get("error", {}).get("message", "")
    assert remedy and named in remedy, problem
    body = {name: value for name, value in (refused | changed).items() if value is not None}
    status, answer = server.ask(path, body)
    assert status == 200, answer


def test_the_query_parameter_that_a_remedy_names_is_taken(server):
    status, problem = server.ask("/v1/classify?modle=sentiment", {"inputs": "a"})
    assert status == 422 and "?model=NAME" in problem["remedy"]
    assert server.ask("/predict?model=sentiment", {"inputs": "a"})[0] == 200
