"""A misspelt query parameter is refused, in the shape that the route's clients read."""

import pytest


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


def test_other_addresses_take_what_comes(server):
    assert server.ask("/health?at=1700000000")[0] == 200
