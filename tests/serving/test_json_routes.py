"""Routes with JSON: registration, unknown parameters, long answers, and what failures answer."""

import asyncio
import json
import threading

import numpy as np
import pytest

from bert_core.errors import UserError
from bert_core.interface import Candidate, Filled, FilledMask
from serving.batching import DeadlineError, OverloadedError
from serving.engine import Engine
from serving.errors import RequestError, problem_of, refusal
from serving.keys import RateLimitError
from serving.request_context import RequestContext, current_request
from serving.rollout.aliases import UnreachableError
from serving.routes.json_routes import answered, answered_apart
from serving.schemas import Features, FeaturesAnswer, FillMaskAnswer, Problem, UnitVector


@pytest.mark.parametrize(
    ("path", "keys"),
    [("/hf/text-classification", {"error"}), ("/predict", {"error", "error_type"})],
)
def test_what_is_unknown_is_refused(server, path, keys):
    body = {"inputs": "a cat"}
    assert server.ask(f"{path}?model=sentiment", body)[0] == 200
    for query in ("modle=sentiment", "model=sentiment&modle=x", "modle="):
        status, refusal = server.ask(f"{path}?{query}", body)
        assert status == 422 and refusal.keys() == keys
        assert "modle" in refusal["error"] and "did you mean model" in refusal["error"]
    status, refusal = server.ask(f"{path}?model=sentiment&{'x' * 4000}=1", body)
    assert status == 422 and len(refusal["error"]) < 300
    assert server.ask("/health?at=1700000000")[0] == 200  # other addresses take what comes


VECTOR = np.array([0.1, -2.5, 1e-9, 3], dtype=np.float32)
UNITS = [UnitVector.model_construct(text="ü", start=0, end=1, vector=VECTOR)] * 2
CANDIDATE = Candidate(token='"', id=7, score=0.25, sequence="a\nb")
MASK = FilledMask(start=0, end=6, candidates=[CANDIDATE] * 2)
ANSWERS = {
    "features": FeaturesAnswer(
        model="m",
        dimensions=4,
        results=[
            Features.model_construct(n_tokens=3, truncated=False, vector=VECTOR),
            Features.model_construct(n_tokens=3, truncated=False, vector="AAAA"),
            Features.model_construct(n_tokens=3, truncated=False, units=UNITS),
        ],
    ),
    "masks": FillMaskAnswer(
        model="m", version="1", results=[Filled(n_tokens=3, truncated=True, masks=[MASK, MASK])]
    ),
    "vectors": np.stack([VECTOR, VECTOR]),
    "vectors of tokens": [np.stack([VECTOR]), np.stack([VECTOR, VECTOR])],
    "scores": [[{"label": "ü", "score": 0.5}], []],
    "codes": ["AAAA", "BBBB"],
    "nothing": [],
    "null": {"a": None, "b": [None, 1, True]},
}


@pytest.fixture
def engine():
    return Engine({})


async def sent(response):
    """What a client gets: status, headers, body, and in how many parts."""
    messages = []

    async def send(message):
        messages.append(message)

    await response({"type": "http", "method": "POST"}, None, send)
    body = b"".join(each.get("body", b"") for each in messages)
    return messages[0]["status"], dict(messages[0]["headers"]), body, len(messages)


@pytest.mark.parametrize("name", ANSWERS)
def test_a_long_answer_is_what_a_short_one_is(engine, name):
    async def both():
        short = await answered(engine, lambda: ANSWERS[name], {"X-N-Tokens": "3"})
        long = await answered_apart(engine, lambda: ANSWERS[name], {"X-N-Tokens": "3"})
        return await sent(short), await sent(long)

    (status, headers, body, _), (other_status, other_headers, other_body, _) = asyncio.run(both())
    assert status == other_status == 200
    assert json.loads(body) == json.loads(other_body)
    for each, content in ((headers, body), (other_headers, other_body)):
        assert each[b"content-type"] == b"application/json" and each[b"x-n-tokens"] == b"3"
        assert int(each[b"content-length"]) == len(content)


def test_short_answers_leave_out_what_says_nothing(engine):
    response = asyncio.run(answered(engine, lambda: Problem(title="é", status=1, detail="b")))
    assert response.body.decode() == '{"type":"about:blank","title":"é","status":1,"detail":"b"}'
    assert response.media_type == "application/json"


def test_numbers_are_those_of_the_array_and_what_is_no_number_is_null(engine):
    written = asyncio.run(sent_apart(engine, lambda: VECTOR))
    assert np.array_equal(np.array(json.loads(written), dtype=np.float32), VECTOR)
    written = asyncio.run(sent_apart(engine, lambda: np.array([np.nan, np.inf, 1.0])))
    assert json.loads(written) == [None, None, 1.0]


async def sent_apart(engine, build):
    return (await sent(await answered_apart(engine, build)))[2]


@pytest.mark.parametrize(("num_numbers", "is_apart"), [(65536, False), (65537, True)])
def test_much_is_written_on_another_thread_and_sent_in_parts(engine, num_numbers, is_apart):
    threads = []

    def build():
        threads.append(threading.current_thread())
        return np.full((num_numbers // 8, 8), 0.123456789)

    async def ask():
        request = RequestContext("1", num_numbers=num_numbers)
        token = current_request.set(request)
        try:
            return await sent(await answered(engine, build))
        finally:
            current_request.reset(token)

    _, _, body, parts = asyncio.run(ask())
    assert len(json.loads(body)) == num_numbers // 8
    assert (threads[0] is not threading.main_thread()) == is_apart
    assert (parts > 3) == is_apart


def test_a_mistake_while_it_is_built_is_raised(engine):
    async def ask():
        await answered_apart(engine, lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(ask())


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
        (UserError("unknown strategy", "\ud800", "take \udfff"), 422, {}),
        (RequestError(404, "No", "\ud800", field="\ud83d", remedy="z"), 404, {}),
        (UnreachableError("no model models:/a@b", "timed out", "ask again"), 503, {}),
        (ValueError("the secret"), 500, {}),
    ],
)
def test_an_exception_has_its_status_and_repeats_nothing_at_length(error, status, headers):
    problem, found = problem_of(error)
    assert (problem.status, found) == (status, headers)
    document = problem.model_dump_json()
    assert "secret" not in document and len(document) < 1000


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("/v1/tokenize", {"inputs": ["a"] * 257}, 413, "inputs"),
        ("/v1/similarity", {"source": "a", "inputs": ["a"] * 257}, 413, "inputs"),
        ("/v1/decode", {"ids": [[1]] * 257}, 413, "ids"),
        ("/v1/zero-shot", {"inputs": "a", "labels": [*map(str, range(257))]}, 413, "inputs"),
        ("/v1/zero-shot", {"inputs": "a", "labels": ["a", "a"]}, 422, "labels"),
        (
            "/hf/zero-shot-classification",
            {"inputs": "a", "parameters": {"candidate_labels": ["a", "a"]}},
            422,
            "parameters.candidate_labels",
        ),
        ("/v1/embeddings", {"model": "encoder", "input": ["a"] * 257}, 413, "input"),
        ("/v1/embeddings", {"model": "encoder", "input": "a " * 33_000}, 413, "input"),
        ("/embed?model=encoder", {"inputs": [[1]] * 257}, 413, "inputs"),
        ("/rerank?model=relevance", {"query": "a", "texts": ["a"] * 257}, 413, "texts"),
        (
            "/v1/rerank",
            {"model": "relevance", "query": "a", "documents": ["a"] * 257},
            413,
            "documents",
        ),
        (
            "/v2/rerank",
            {"model": "relevance", "query": "a " * 3000, "documents": ["a"] * 99},
            413,
            "documents",
        ),
    ],
)
def test_the_field_that_is_too_much_is_that_of_the_route(server, path, body, status, field):
    found, problem = server.ask(path, body)
    assert found == status, problem
    error = problem.get("error", problem)
    told = error if isinstance(error, str) else error.get("field") or error["message"]
    assert told.partition(":")[0] == field


@pytest.mark.parametrize(
    ("path", "body", "field", "detail"),
    [
        ("/v1/embeddings", {"model": "encoder", "input": []}, "input", "at least 1 item"),
        ("/v1/embeddings", {"model": "encoder", "input": [[7], []]}, "input[1]", "at least 1"),
        ("/v1/decode", {"ids": [[1], 2]}, "ids[1]", "valid list"),
        ("/v1/decode", {"ids": [1, [2]]}, "ids[1]", "valid integer"),
        ("/v1/ner", {"inputs": ["a", 3]}, "inputs[1]", "valid string"),
    ],
)
def test_of_several_shapes_the_one_that_was_meant_is_told_of(server, path, body, field, detail):
    status, problem = server.ask(path, body)
    assert status in (400, 422)
    error = problem.get("error", {"param": problem.get("field"), "message": problem.get("detail")})
    assert error["param"] == field and detail in error["message"], problem


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
    status, problem = server.ask("/predict?modle=sentiment", {"inputs": "a"})
    assert status == 422 and "?model=NAME" in str(problem)
    assert server.ask("/predict?model=sentiment", {"inputs": "a"})[0] == 200


def test_our_own_routes_do_not_ignore_a_query_parameter(server):
    body = {"inputs": "a", "model": "sentiment"}
    status, problem = server.ask("/v1/classify?model=encoder", body)
    assert (status, problem["field"]) == (422, "model") and "in the body" in problem["remedy"]
    assert server.ask("/v1/classify", body)[0] == 200
