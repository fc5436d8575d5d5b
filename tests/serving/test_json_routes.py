"""Routes with JSON: registration, unknown parameters, long answers."""

import asyncio
import json
import threading

import numpy as np
import pytest

from bert_core.interface import Candidate, Filled, FilledMask
from serving.engine import Engine
from serving.request_context import RequestContext, current_request
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
