"""What a request may hold."""

import pytest
from pydantic import ValidationError

from serving.schemas import ClassifyRequest, FeaturesRequest, NerRequest, QaRequest

QUESTION = {"question": "a", "context": "b"}


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        (ClassifyRequest, ["a\ud800"]),
        (ClassifyRequest, {"text": "a", "text_pair": "\udfff"}),
        (NerRequest, "é\ud800"),
        (QaRequest, QUESTION | {"question": "\ud83d"}),
        (FeaturesRequest, ["a", "\ude00\ud83d"]),
    ],
)
def test_half_a_character_is_refused(kind, inputs):
    with pytest.raises(ValidationError, match="half a character"):
        kind(inputs=inputs)


@pytest.mark.parametrize("text", ["", "\0", "👩‍🚀", "\u202eabc", "é\u0301"])
def test_every_whole_character_is_let_through(text):
    assert NerRequest(inputs=text).inputs == text


def test_unknown_fields_are_refused():
    with pytest.raises(ValidationError, match="extra_forbidden"):
        QaRequest.model_validate({"inputs": QUESTION | {"answer": "b"}})
