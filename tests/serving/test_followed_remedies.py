"""The remedy of a problem, followed: the corrected request is answered."""

import pytest

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
