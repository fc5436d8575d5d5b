"""What is taken in TEI's shapes."""

import pytest
from pydantic import ValidationError

from serving.schemas.embeddings_inference import EmbedRequest, PredictRequest


@pytest.mark.parametrize("inputs", ["a", ["a", "b"], [1, 2], [[1], [2, 3]], []])
def test_texts_and_tokens_are_taken(inputs):
    assert EmbedRequest(inputs=inputs).inputs == inputs


@pytest.mark.parametrize("inputs", [1, [1, "a"], [[1], "a"], [-1], [["a"]], None])
def test_mixtures_are_refused(inputs):
    with pytest.raises(ValidationError):
        EmbedRequest(inputs=inputs)


@pytest.mark.parametrize("inputs", ["a", ["a", "b"], [["a"], ["a", "b"]]])
def test_texts_pairs_and_lists_of_them_are_taken(inputs):
    assert PredictRequest(inputs=inputs).inputs == inputs


@pytest.mark.parametrize("inputs", [["a", "b", "c"], [["a", "b", "c"]], [[]]])
def test_more_than_pairs_are_refused(inputs):
    with pytest.raises(ValidationError):
        PredictRequest(inputs=inputs)
