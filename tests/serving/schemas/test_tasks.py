"""What the tasks' routes take."""

import pytest
from pydantic import ValidationError

from serving.schemas.tasks import ClassifyRequest, FeaturesRequest, NerRequest, QaRequest

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


def test_unknown_fields_are_refused():
    with pytest.raises(ValidationError, match="extra_forbidden"):
        QaRequest.model_validate({"inputs": QUESTION | {"answer": "b"}})
