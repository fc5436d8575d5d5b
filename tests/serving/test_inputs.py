"""What is asked about, and how much it is at least."""

import pytest

from bert_core.model_folder import load_model_folder
from serving.inputs import Inputs, has_more_tokens, is_cut_into_more


def test_items_know_where_they_stand():
    assert Inputs.of("a").name_of(0) == "inputs"
    several = Inputs.of(["a", "b"], "texts").map(str.upper)
    assert several.items == ["A", "B"] and several.name_of(1) == "texts[1]"


@pytest.mark.parametrize(
    "text",
    ["the cat", "a,b.(c)", "東京 is", "don't stop", "naïve 👩‍🚀🎉", "x\u0301y", "[MASK]!"],
)
def test_a_text_has_at_least_the_tokens_that_are_seen(small_models, text):
    _, _, tokenizer = load_model_folder(small_models["encoder"])
    seen = sum(has_more_tokens([text], most) for most in range(50))
    tokens = tokenizer.encode(text, add_special_tokens=False).tokens
    assert seen <= (len(tokens) if text != "[MASK]!" else 4)
    assert has_more_tokens(["a b", "c"], 2) and not has_more_tokens(["a b", "c"], 3)


def test_tokens_are_counted_in_stretches(small_models):
    _, _, tokenizer = load_model_folder(small_models["encoder"])
    for text in ("a cat ", "«»", "é", "", "东"):
        many = text * 50_000
        size = len(tokenizer.encode(many, add_special_tokens=False))
        assert not is_cut_into_more(tokenizer, [many], size + 20)  # a word more for each stretch
        assert not size or is_cut_into_more(tokenizer, ["a", many], size)
