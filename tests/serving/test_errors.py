"""A refusal as it stands on the wire."""

import json

import pytest

from serving.batching import OverloadedError
from serving.errors import refusal


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
