"""What a failed request is answered with, and that the remedy works."""

import json

import pytest

from bert_core.errors import UserError
from serving.batching import DeadlineError, OverloadedError
from serving.errors import RequestError, problem_of, refusal


def test_a_refusal_is_a_problem_document():
    response = refusal("/v1/ner", OverloadedError(7))
    assert response.status_code == 429
    assert response.headers["retry-after"] == "7"
    assert response.media_type == "application/problem+json"
    problem = json.loads(response.body)
    assert problem["status"] == 429 and problem["type"] == "about:blank"
    assert "field" not in problem  # what says nothing is left out


@pytest.mark.parametrize(
    ("path", "status", "keys"),
    [
        ("/v1/ner", 429, {"type", "title", "status", "detail", "remedy"}),
        ("/hf/fill-mask", 429, {"error"}),
        ("/embed", 429, {"error", "error_type"}),
        ("/embedded", 429, {"type", "title", "status", "detail", "remedy"}),
        ("/v1/models/a", 429, {"error"}),
    ],
)
def test_each_family_has_its_shape(path, status, keys):
    response = refusal(path, OverloadedError(7))
    assert response.status_code == status
    assert response.headers["retry-after"] == "7"
    assert json.loads(response.body).keys() == keys


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/ner", 500), ("/hf/a", 500), ("/embed", 424), ("/v1/embeddings", 500)]
)
def test_nothing_of_the_inside_is_told(path, status):
    response = refusal(path, ValueError("the secret"))
    assert response.status_code == status
    assert b"secret" not in response.body


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestError(413, "Too large", "big", field="body", remedy="divide it"), 413),
        (OverloadedError(2.3), 429),
        (DeadlineError(), 503),
        (UserError("unknown strategy", "lost", "take last"), 422),
        (ValueError("the secret"), 500),
    ],
)
def test_an_exception_has_its_status(error, status):
    problem, _ = problem_of(error)
    assert problem.status == status
    assert "secret" not in problem.model_dump_json()


def test_who_is_turned_away_is_told_for_how_long():
    assert problem_of(OverloadedError(2.3))[1] == {"Retry-After": "3"}
    assert problem_of(OverloadedError(0.0))[1] == {"Retry-After": "1"}


def test_what_a_client_sent_is_not_repeated_at_length():
    problem, _ = problem_of(RequestError(404, "No", "x" * 9999, field="y" * 9999, remedy="z"))
    assert len(problem.model_dump_json()) < 1000
    problem, _ = problem_of(UserError("unknown strategy", "x" * 9999, "take last"))
    assert len(problem.model_dump_json()) < 1000


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
