"""Texts of whole characters."""

import pytest
from pydantic import TypeAdapter, ValidationError

from serving.schemas.fields import InputText, Problem

TEXT = TypeAdapter(InputText)


@pytest.mark.parametrize("text", ["", "\0", "👩‍🚀", "\u202eabc", "é\u0301", "\U0010ffff"])
def test_every_whole_character_is_let_through(text):
    assert TEXT.validate_python(text) == text


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\ude00\ud83d"])
def test_half_a_character_is_refused_with_its_place(text):
    with pytest.raises(ValidationError, match="half a character") as told:
        TEXT.validate_python(text)
    (error,) = told.value.errors()
    assert error["msg"].endswith(" 1") == text.startswith("a")


def test_a_problem_is_of_the_standard():
    fields = Problem(title="a", status=422, detail="b").model_dump(exclude_none=True)
    assert fields == {"type": "about:blank", "title": "a", "status": 422, "detail": "b"}
