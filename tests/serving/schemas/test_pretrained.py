"""What the pre-training heads' routes take."""

import pytest
from pydantic import ValidationError

from serving.schemas.pretrained import (
    FillMaskRequest,
    NextSentenceRequest,
    PseudoPerplexityRequest,
)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (FillMaskRequest, {"inputs": "a", "top_k": 0}),
        (FillMaskRequest, {"inputs": "a", "targets": []}),
        (NextSentenceRequest, {"inputs": ["a"]}),
        (NextSentenceRequest, {"inputs": {"text": "a"}}),
        (PseudoPerplexityRequest, {"inputs": "a", "masking": "word"}),
        (PseudoPerplexityRequest, {"inputs": "\ud800"}),
    ],
)
def test_what_is_no_request_is_refused(kind, body):
    with pytest.raises(ValidationError):
        kind.model_validate(body)


def test_one_or_many_may_be_asked():
    pair = {"text": "a", "text_pair": "b"}
    assert NextSentenceRequest.model_validate({"inputs": pair}).inputs.text == "a"
    assert len(NextSentenceRequest.model_validate({"inputs": [pair, pair]}).inputs) == 2
