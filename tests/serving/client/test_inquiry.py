"""Lists are divided among requests that a server takes, and come back in their order."""

import json
import random

import pytest
from running import assert_alike
from scripted_server import scripted

from serving.client import AnswerError, RefusalError, TextPair
from serving.client.exchange import Reply
from serving.client.inquiry import Inquiry, Part
from serving.client.routes import CLASSIFY, DECODE, SIMILARITY
from serving.limits import Limits

TEXTS = [f"text {number}" for number in range(50)]


def labels(found):
    return [each.label for each in found]


def items_of(server):
    return [json.loads(body)["inputs"] for _, body in server.asked]


def test_one_gives_one_and_a_list_a_list(open_client):
    with scripted() as server:
        client = open_client(server.address)
        assert client.classify("a").label == "a"
        assert labels(client.classify(["a"])) == ["a"]
        assert labels(client.classify(("a", "b"))) == ["a", "b"]
        assert client.classify([]) == []
    assert items_of(server) == ["a", ["a"], ["a", "b"]]


def test_what_the_server_takes_is_asked_a_few_at_once(open_client):
    choose = random.Random(1)
    with scripted(limits={"max_items": 4}, delay=lambda _: choose.uniform(0, 0.05)) as server:
        found = open_client(server.address, concurrency=3).classify(TEXTS)
    assert labels(found) == TEXTS
    assert sorted(len(each) for each in items_of(server)) == [2] + [4] * 12
    assert 1 < server.most_at_once <= 3


def test_bodies_are_no_larger_than_the_server_takes(open_client):
    with scripted(limits={"max_body_bytes": 200}) as server:
        client = open_client(server.address)
        assert labels(client.classify(TEXTS, model="m", overflow="left")) == TEXTS
        assert 150 < max(len(body) for _, body in server.asked) <= 200
        with pytest.raises(RefusalError) as told:
            client.classify([*TEXTS, "a" * 200])
    assert (told.value.status, told.value.field) == (413, "inputs[50]")


@pytest.mark.parametrize("limits", [{}, None])
def test_what_is_too_much_all_the_same_is_divided(open_client, limits):
    texts = [*TEXTS, "long" * 20, *TEXTS]
    with scripted(limits=limits, most_items=7, most_characters=80) as server:
        server.limits = limits
        assert labels(open_client(server.address).classify(texts)) == texts
    answered = [each for each in items_of(server) if len(each) <= 7]
    assert len(answered) < 40  # what is learned from a refusal holds for what comes after


def test_one_item_that_is_too_much_is_an_error(open_client):
    with scripted(most_characters=20) as server:
        client = open_client(server.address)
        with pytest.raises(RefusalError) as told:
            client.classify([*TEXTS, "long" * 20, *TEXTS])
        assert (told.value.status, told.value.field) == (413, "inputs[50]")
        with pytest.raises(RefusalError) as told:
            client.classify("long" * 20)
        assert (told.value.status, told.value.field) == (413, "inputs")


def test_an_error_says_where_in_the_whole_list_and_ends_it(open_client):
    texts = [*TEXTS[:9], "wrong", *TEXTS * 20]
    with scripted(limits={"max_items": 4}) as server:
        with pytest.raises(RefusalError) as told:
            open_client(server.address, concurrency=2).classify(texts)
        assert (told.value.field, told.value.request_id) == ("inputs[9]", "abc")
        assert len(server.asked) < 10


def test_a_server_that_takes_little_is_asked_little(strict_server, open_client):
    client = open_client(f"http://{strict_server.host}:{strict_server.port}")
    texts = [f"the {'cat ' * (number % 40)}" for number in range(25)]
    found = client.classify(texts)
    for text, each in zip(texts, found, strict=True):
        alone = client.classify(text)
        assert_alike(each.model_dump(), alone.model_dump())
    with pytest.raises(RefusalError) as told:
        client.classify([*texts, "cat " * 70], overflow="window")
    assert (told.value.status, told.value.field) == (413, "inputs[25]")


@pytest.mark.parametrize(
    ("route", "inputs", "part", "said", "meant"),
    [
        (CLASSIFY, ["a"] * 9, Part(4, 8), "inputs[1].text", "inputs[5].text"),
        (CLASSIFY, ["a"] * 9, Part(4, 8), "inputs", "inputs"),
        (CLASSIFY, ["a"] * 9, Part(4, 5), "inputs", "inputs[4]"),
        (CLASSIFY, ["a"] * 9, Part(4, 8), "overflow", "overflow"),
        (SIMILARITY, "a", Part(0, 1), "inputs[0]", "inputs"),
        (DECODE, [[1, 2]] * 9, Part(4, 8), "ids[1][0]", "ids[5][0]"),
        (DECODE, [[1, 2]] * 9, Part(4, 5), "ids[1]", "ids[4][1]"),
        (DECODE, [1, 2], Part(0, 1), "ids[1]", "ids[1]"),
    ],
)
def test_fields_are_those_of_the_whole(route, inputs, part, said, meant):
    problem = {"title": "a", "status": 422, "detail": "b", "field": said}
    with pytest.raises(RefusalError) as told:
        Inquiry(route, inputs, {}, "").put(part, Reply(422, {}, json.dumps(problem).encode()))
    assert told.value.field == meant


def test_the_source_counts_among_the_items():
    inquiry = Inquiry(SIMILARITY, TEXTS, {}, "", {"source": "a"})
    inquiry.keep_within(Limits(max_items=4))
    assert inquiry.take() == Part(0, 3)


def test_requests_have_what_is_given_and_no_more():
    pair = TextPair(text="é", text_pair="b")
    options = {"model": None, "top_k": 2}
    inquiry = Inquiry(CLASSIFY, [pair, "half \ud800"], options, "")
    body = json.loads(inquiry.request(Part(0, 2)).body)
    assert body == {"top_k": 2, "inputs": [pair.model_dump(), "half \ud800"]}
    assert Inquiry(CLASSIFY, "é", {}, "").request(Part(0, 1)).body == '{"inputs":"é"}'.encode()


def test_what_cannot_be_sent_is_a_mistake_of_the_program():
    with pytest.raises(TypeError, match="has no option topk; it has model, overflow, top_k"):
        Inquiry(CLASSIFY, "a", {"topk": 3}, "")
    with pytest.raises(TypeError, match="bytes"):
        Inquiry(CLASSIFY, [b"a"], {}, "")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<html>", "not JSON with results"),
        (b"[]", "not JSON with results"),
        (b'{"model": "m"}', "not JSON with results"),
        (b'{"model": "m", "results": []}', "0 results for 1 items"),
        (b'{"model": "m", "results": [{"label": "secret"}]}', "n_tokens: Field required"),
    ],
)
def test_an_answer_of_something_else_is_told(body, reason):
    with pytest.raises(AnswerError, match=reason) as told:
        Inquiry(CLASSIFY, "a", {}, "http://a").put(Part(0, 1), Reply(200, {}, body))
    assert "secret" not in str(told.value) and "\n" not in str(told.value)
