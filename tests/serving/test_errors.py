"""A refusal as it stands on the wire."""

import json

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
