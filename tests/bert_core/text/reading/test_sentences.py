import time

import pytest

from bert_core.text.encoding import split_sentences


def test_abbreviations_and_quotations_do_not_end_a_sentence():
    text = 'Dr. J. R. R. Tolkien wrote it (see p. 5). "Really?" she asked. He said e.g. this.'
    assert split_sentences(text) == [
        "Dr. J. R. R. Tolkien wrote it (see p. 5).",
        '"Really?" she asked.',
        "He said e.g. this.",
    ]


def test_the_end_of_a_line_ends_a_sentence():
    assert split_sentences("a heading\n\n  A line without stop \nand another") == [
        "a heading",
        "A line without stop",
        "and another",
    ]
    assert split_sentences(" \n") == []


@pytest.mark.parametrize("language", ["en", "ja", "de", "no such language"])
def test_nothing_is_lost_in_any_language(language):
    text = "これは文です。次の文です。Das ist z.B. eins. Das ist zwei! वह है। هل هذا؟ نعم."
    found = split_sentences(text, language)
    assert "".join(found).replace(" ", "") == text.replace(" ", "")
    assert found[0] == "これは文です。" and len(found) >= 6


@pytest.mark.parametrize(
    "unit", ["中。", "《》。", "“", "« ", "» a.", "' ", "(", "a. ", "a", "“a. ", "«a» b. "]
)
def test_a_long_line_takes_linear_time(unit):
    def seconds(size):
        began = time.thread_time()
        found = split_sentences((unit * size)[:size])
        assert "".join(found).replace(" ", "") == (unit * size)[:size].replace(" ", "")
        return time.thread_time() - began

    assert seconds(128_000) < 30 * min(seconds(16_000) for _ in range(2)) + 0.05


def test_a_long_line_is_split_as_its_parts_are():
    sentence = 'Dr. J. R. R. Tolkien wrote it (see p. 5). "Really?" she asked. He said e.g. this. '
    assert split_sentences(sentence * 1000) == split_sentences(sentence) * 1000
    assert split_sentences("a" * 50_000) == ["a" * (1 << 14)] * 3 + ["a" * (50_000 - 3 * (1 << 14))]


@pytest.mark.parametrize("space", "\u00a0\u0085\u2009\u2028\u3000")
def test_a_wide_space_before_a_period_ends_nothing_but_the_sentence(space):
    text = f"By J{space}. R. Smith. A b{space}{space}. C{space}d."
    found = split_sentences(text)
    assert "".join("".join(found).split()) == "".join(text.split())
