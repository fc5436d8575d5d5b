import time

import pytest

from bert_core.text.reading.sentences import split_sentences


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


@pytest.mark.parametrize("repeated", ["中。", "《》。", "« ", "' ", "(a. ", "a", "a. "])
def test_a_long_line_takes_no_more_than_linear_time(repeated):
    line = repeated * (300_000 // len(repeated))
    started = time.process_time()
    found = split_sentences(line)
    assert time.process_time() - started < 20  # 2 s; sentencex alone takes a minute
    assert "".join("".join(found).split()) == "".join(line.split())


def test_a_long_line_is_split_as_short_ones_are():
    sentences = [f"This is sentence {n}, said Dr. Smith." for n in range(2000)]
    assert split_sentences(" ".join(sentences)) == sentences
