"""Words of raw text: those of the corpora, at the right characters, in linear time."""

import random
import re
import time
import unicodedata

import pytest

from bert_core.tasks.conll import WordColumns, read_conll
from bert_core.tasks.text_words import visible_span, word_spans


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
        ("naïve 👩‍🚀", ["naïve", "👩", "🚀"]),
    ],
)
def test_words(text, words):
    assert words_of(text) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # Printed without a space
        ("Angela Merkel—the chancellor", "Angela Merkel — the chancellor"),
        ("Paris,Rome;Bonn:Ulm/Kiel|Köln", "Paris , Rome ; Bonn : Ulm / Kiel | Köln"),
        ("Merkel(CDU), ...she said...yes", "Merkel ( CDU ) , ... she said ... yes"),
        ("Paris–Rome a--b 1990–1995", "Paris – Rome a -- b 1990 – 1995"),
        ("in Berlin.Merkel by J.Smith", "in Berlin . Merkel by J.Smith"),
        ('he said"no"twice', 'he said " no " twice'),
        ("Paris®,Apple™ 🎉Bonn🎉Ulm", "Paris ® , Apple ™ 🎉 Bonn 🎉 Ulm"),
        # Markup and addresses
        ("<b>Paris</b> [[Rome]] **Bonn**", "< b > Paris < / b > [[ Rome ]] ** Bonn **"),
        ("[Paris](https://a.org/b,c/(d).", "[ Paris ] ( https://a.org/b,c/ ( d ) ."),
        ("www.a.org/b?c=d&e, f", "www.a.org/b?c=d&e , f"),
        ("Anna.Bach@a-b.org!", "Anna.Bach@a-b.org !"),
        ("&nbsp;Paris&amp;_Ulm_ #Rome @Bonn", "& nbsp ; Paris & amp ; _ Ulm _ # Rome @ Bonn"),
        # What a sign joins
        ("1,000 1/2 10:30 2-1 5'10 AT&T a_b", "1,000 1/2 10:30 2-1 5'10 AT&T a_b"),
        ("O'Neill's d'Ivoire couldn't've", "O'Neill 's d'Ivoire could n't 've"),
        ("U.S.-led Ph.D. (CDU)'s 1.5. a.org.", "U.S.-led Ph.D. ( CDU ) 's 1.5 . a.org ."),
        ("3. Anna\n12. Bach of 5.", "3. Anna 12. Bach of 5 ."),
        # Other scripts, where marks are parts of words
        ("हिन्दी में दिल्ली।", "हिन्दी में दिल्ली ।"),
        ("กรุงเทพฯ ที่สวย", "กรุงเทพฯ ที่สวย"),
        ("مُحَمَّد في القاهرة، ٣٫٥", "مُحَمَّد في القاهرة ، ٣٫٥"),
        ("ארה״ב ובן־גוריון", "ארה״ב ובן־גוריון"),
        ('צה"ל ומנכ"לית בארה"ב, "ש"ס"', 'צה"ל ומנכ"לית בארה"ב , " ש"ס "'),
        ('"השב"כ אמר לי" "המו"מ עם"', '" השב"כ אמר לי " " המו"מ עם "'),
        ('ה"ארץ" ב״הארץ״ הַ"אָרֶץ"', 'ה " ארץ " ב ״ הארץ ״ הַ " אָרֶץ "'),
        ('ב"ידיעות אחרונות", ו"בזק בע"מ".', 'ב " ידיעות אחרונות " , ו " בזק בע"מ " .'),
        ('שב"כניק אמר: "לא", מ"מים בצה"ל', 'שב"כניק אמר : " לא " , מ"מים בצה"ל'),
        ("cafe\u0301,e\u0301te\u0301", "cafe\u0301 , e\u0301te\u0301"),
        ("在Berlin的東京タワー。", "在 Berlin 的 東 京 タワー 。"),
    ],
)
def test_signs_within_words(text, words):
    assert " ".join(words_of(text)) == words


INVISIBLE = (
    "\ufeff\u200b\u200c\u200d\u2060\u00ad\u200e\u200f\u061c\u202a\u202e\u2066\u2069\u180e\u034f"
    "\ufe0e\ufe0f\U000e0101\U000e0067\u115f\u3164\uffa0\x00\x7f\x81\ue000"
)


@pytest.mark.parametrize("sign", INVISIBLE)
def test_invisible_characters_are_at_no_edge_and_divide_nothing(sign):
    text = f"{sign}Pa{sign}ris{sign}{sign}'s,{sign} ({sign}Rome{sign}) {sign} U.N{sign}.{sign}"
    expected = [f"Pa{sign}ris", "'s", ",", "(", "Rome", ")", f"U.N{sign}."]
    assert words_of(text) == expected
    assert words_of(sign) == []
    assert visible_span(f"{sign}{sign}Pa{sign}ris{sign}") == (2, 8)
    assert visible_span(sign) == (1, 1)


def test_marks_that_follow_no_letter_are_in_no_word():
    assert words_of("\u0301Paris \u20e3(\u0301Rome") == ["Paris", "(", "Rome"]
    assert visible_span("\u0301Paris\u0301") == (1, 7)


def test_nothing_but_spaces_is_lost():
    choose = random.Random(0)
    for _ in range(4000):
        text = "".join(
            choose.choices("abA. ,'sS’\n(京é\u0301-1@&—\u200b😀_/t", k=choose.randrange(14))
        )
        spans = word_spans(text)
        covered = [place for begin, end in spans for place in range(begin, end)]
        assert covered == sorted(set(covered))
        lost = {text[place] for place in range(len(text)) if place not in covered}
        assert all(char.isspace() or char in "\u200b\u0301" for char in lost)
        assert all(begin < end for begin, end in spans)
        for begin, end in spans:
            assert visible_span(text[begin:end]) == (0, end - begin)


def test_words_of_the_corpus_stay_what_they_are(shared_data):
    columns = WordColumns(words="0", tags="-1")
    sentences = read_conll(shared_data / "ner/conll2003/valid.txt", columns)
    found = [words_of(" ".join(each.words)) for each in sentences]
    same = sum(a == list(b.words) for a, b in zip(found, sentences, strict=True))
    assert same >= 0.985 * len(sentences)


def test_ordinary_text_is_split_as_it_always_was(shared_data):
    columns = WordColumns(words="0", tags="-1")
    sentences = read_conll(shared_data / "ner/conll2003/valid.txt", columns)
    # In all of it, what is split anew, on purpose: numbers of headings, and words without a space.
    anew = re.compile(r"^\d{1,2}\.\s|[a-z]\.[A-Z][a-z]|[a-z]\+\d")
    texts = [text for each in sentences if not anew.search(text := " ".join(each.words))]
    assert len(texts) > 0.93 * len(sentences)
    for text in texts:
        assert words_of(text) == [text[a:b] for a, b in earlier_spans(text)]


def earlier_spans(text):
    """As it was before: slowly, and with no word divided at its signs but at its ends."""
    for chunk in re.finditer(r"\S+", text):
        begin, end, after = *chunk.span(), []
        while begin < end and is_sign(text[begin]):
            if CLITIC.fullmatch(text, begin, end) or re.match(r"[.+-]\d", text[begin:end]):
                break
            first = begin
            while begin < end and text[begin] == text[first]:
                begin += 1
            yield first, begin
        while begin < end:
            word = text[begin:end]
            clitic = CLITIC.search(word)
            if clitic is not None and clitic.start():
                length = len(clitic.group())
            elif is_sign(word[-1]) and not re.match(r"[^\W\d_]\.$|.*\w.*\..*\w\.$", word):
                length = len(word) - len(word.rstrip(word[-1]))
            else:
                break
            after.append((end - length, end))
            end -= length
        yield from [(begin, end)] * (begin < end)
        yield from reversed(after)


CLITIC = re.compile(r"(?:['’](?:[sSmMdD]|ve|VE|re|RE|ll|LL)|(?<=[a-z])n['’]t|(?<=[A-Z])N['’]T)$")


def is_sign(character):
    return unicodedata.category(character)[0] in "PS"


HOSTILE = [
    *"a.A1'’\"-—_@&,:/([<«»€🎉東\u0301\u200b\ufe0f\u00a0\u2028\U00020000\x00\ue000\ud800",
    *(
        "a.",
        "a. ",
        "A.",
        "a.Aa",
        "Aa.Aa",
        "a-",
        "a--",
        "a'",
        "'s",
        "s's",
        "n't",
        "a n't",
        "a@",
        "a_",
    ),
    *(
        "()",
        "[]",
        "<b>",
        "«»",
        "1.",
        "1,",
        "+1",
        "-1",
        "1.\n",
        "://",
        "http://",
        "http://.",
        "www.",
    ),
    *(
        "www.,",
        "https://a.b/c?",
        "a\u0301",
        "a\u200b",
        "\u200b.",
        "a…",
        "👩\u200d🚀",
        'א"',
        'ה"אא',
        'ה"אא ',
        " a",
        "''s",
    ),
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_the_time_is_linear(unit):
    for before, after in (("", ""), ("a", ")"), ("http://", "a"), ("'", ".")):
        short, long = (
            min(seconds(before + (unit * size)[:size] + after) for _ in range(2))
            for size in (2000, 16000)
        )
        assert long < 30 * short + 0.01  # 8 times is linear, 64 quadratic


def seconds(text):
    began = time.thread_time()
    word_spans(text)
    return time.thread_time() - began


def test_the_text_that_took_hours():
    assert words_of("a" * 8000 + "." * 8000 + ")") == ["a" * 8000, "." * 8000, ")"]
    assert len(word_spans("«»" * 50_000)) == 100_000
