"""Words of raw text: those of the corpora, at the right characters."""

import random

import pytest

from bert_core.tasks.conll import WordColumns, read_conll
from bert_core.tasks.text_words import word_spans


def words_of(text):
    return [text[begin:end] for begin, end in word_spans(text)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \t\n", []),
        ("Peter Blackburn", ["Peter", "Blackburn"]),
        ("EU rejects (German) call.", ["EU", "rejects", "(", "German", ")", "call", "."]),
        ("Germany's envoy, J. Smith", ["Germany", "'s", "envoy", ",", "J.", "Smith"]),
        ("the U.N. and the U.S.,", ["the", "U.N.", "and", "the", "U.S.", ","]),
        ('"Franco-German," he said', ['"', "Franco-German", ",", '"', "he", "said"]),
        ("Acme Inc. rose 1.5%", ["Acme", "Inc", ".", "rose", "1.5", "%"]),
        ("the boss’s $30", ["the", "boss", "’s", "$", "30"]),
        ("well... he said -- .5 or +31", ["well", "...", "he", "said", "--", ".5", "or", "+31"]),
        ("Peter 's I've don't 'tis", ["Peter", "'s", "I", "'ve", "do", "n't", "'", "tis"]),
        ("(1997).", ["(", "1997", ")", "."]),
        ("東京 is 大", ["東", "京", "is", "大"]),
        ("naïve 👩‍🚀", ["naïve", "👩", "\u200d", "🚀"]),
    ],
)
def test_words(text, words):
    assert words_of(text) == words


def test_nothing_but_spaces_is_lost():
    choose = random.Random(0)
    for _ in range(2000):
        text = "".join(choose.choices("ab. ,'sS’\n(京é\u0301-1", k=choose.randrange(12)))
        spans = word_spans(text)
        covered = [place for begin, end in spans for place in range(begin, end)]
        assert covered == [place for place, char in enumerate(text) if not char.isspace()]
        assert all(begin < end for begin, end in spans)


def test_words_of_the_corpus_stay_what_they_are(shared_data):
    columns = WordColumns(words="0", tags="-1")
    sentences = read_conll(shared_data / "ner/conll2003/valid.txt", columns)
    found = [words_of(" ".join(each.words)) for each in sentences]
    same = sum(a == list(b.words) for a, b in zip(found, sentences, strict=True))
    assert same > 0.92 * len(sentences)
