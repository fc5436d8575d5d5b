"""What is taken in OpenAI's shapes."""

import pytest
from pydantic import ValidationError

from serving.schemas.openai import EmbeddingsRequest


@pytest.mark.parametrize("given", ["a", ["a"], [1], [[1], [2]]])
def test_texts_and_tokens_are_taken(given):
    assert EmbeddingsRequest(model="m", input=given).input == given


@pytest.mark.parametrize("given", [[], [[]], [1, "a"], 3, ["\ud800"]])
def test_what_is_no_input_is_refused(given):
    with pytest.raises(ValidationError):
        EmbeddingsRequest(model="m", input=given)
