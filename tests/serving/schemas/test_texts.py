"""What the routes about texts take."""

import pytest
from pydantic import ValidationError

from serving.schemas.texts import DecodeRequest, SimilarityRequest, TokenizeRequest


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (SimilarityRequest, {"source": "a", "inputs": "a"}),
        (SimilarityRequest, {"inputs": ["a"]}),
        (TokenizeRequest, {"inputs": "\udc00"}),
        (TokenizeRequest, {"inputs": "a", "overflow": "left"}),
        (DecodeRequest, {"ids": [-1]}),
        (DecodeRequest, {"ids": [1, [2]]}),
    ],
)
def test_what_is_no_request_is_refused(kind, body):
    with pytest.raises(ValidationError):
        kind.model_validate(body)


def test_ids_are_one_text_or_several():
    assert DecodeRequest.model_validate({"ids": [1, 2]}).ids == [1, 2]
    assert DecodeRequest.model_validate({"ids": [[1], []]}).ids == [[1], []]
