"""What is taken in Hugging Face's shapes, and what is refused instead of ignored."""

import pytest
from pydantic import ValidationError

from serving.schemas.hugging_face import (
    FeatureExtractionRequest,
    QuestionAnsweringRequest,
    TokenClassificationRequest,
)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (FeatureExtractionRequest, {"inputs": "a", "prompt_name": 5}),
        (FeatureExtractionRequest, {"inputs": "a", "parameters": {"pooling": "cls"}}),
        (QuestionAnsweringRequest, {"inputs": {"question": "a", "context": "b", "c": "d"}}),
        (TokenClassificationRequest, {"inputs": "a", "parameters": {"stride": -1}}),
    ],
)
def test_what_cannot_be_honoured_is_refused(kind, body):
    with pytest.raises(ValidationError):
        kind.model_validate(body)


def test_options_of_the_hosted_service_are_let_through():
    body = {"inputs": "a", "options": {"wait_for_model": True}}
    assert TokenClassificationRequest.model_validate(body).inputs == "a"
