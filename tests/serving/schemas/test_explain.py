"""What /v1/explain takes."""

import pytest
from pydantic import ValidationError

from serving.schemas.explain import ExplainRequest


@pytest.mark.parametrize(
    "body", [{"inputs": ["a"]}, {"inputs": "a", "layers": [0]}, {"inputs": "a", "heads": 1}]
)
def test_what_is_no_request_is_refused(body):
    with pytest.raises(ValidationError):
        ExplainRequest.model_validate(body)
