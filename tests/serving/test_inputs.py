"""What is asked about, and how much it is at least."""

import pytest

from bert_core.model_folder import load_model_folder
from serving.inputs import Inputs, check_texts, has_more_tokens, is_cut_into_more, num_bytes
from serving.limits import Limits
from serving.problems import RequestError


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


@pytest.mark.parametrize(
    "text", ["the cat sat " * 20_000, "a" * 99 + " ", "y" * 100_000 + " cat", ""]
)
def test_tokens_are_counted_as_far_as_need_be(small_models, text):
    _, _, tokenizer = load_model_folder(small_models["encoder"])
    texts = [text, "the cat"]
    num_tokens = sum(len(tokenizer.encode(each, add_special_tokens=False)) for each in texts)
    assert not is_cut_into_more(tokenizer, texts, num_tokens)
    if num_tokens > 50_000:
        assert is_cut_into_more(tokenizer, texts, num_tokens - 1)
    assert is_cut_into_more(tokenizer, texts * 2, max(num_tokens, 400)) == (num_tokens > 400)


def test_bytes_are_those_of_utf8():
    assert num_bytes(["a", "é", "中", "🎉"]) == 1 + 2 + 3 + 4


def test_texts_that_are_sure_to_be_too_long_are_refused():
    limits = Limits(max_request_tokens=10, max_body_bytes=1000)
    check_texts(["a" * 500], limits)
    for text, title in (("a" * 501, "Too long texts"), ("a " * 11, "Too many tokens")):
        with pytest.raises(RequestError) as told:
            check_texts([text], limits)
        assert told.value.problem.status == 413 and told.value.problem.title == title
