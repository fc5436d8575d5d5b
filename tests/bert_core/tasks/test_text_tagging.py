"""Words of raw text: those of the corpora, at the right characters, in linear time."""

import random
import time

import numpy as np
import pytest
import torch

from bert_core.special_tokens import SPECIAL_TOKENS
from bert_core.tasks.sequences import TooManyTokensError
from bert_core.tasks.tagged_sentences import TaggedSentence, WordColumns, read_conll
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.text_tagging import TextTagging, visible_span, word_spans
from bert_core.tokenizer import wordpiece_tokenizer


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
    found = [words_of(" ".join(sentence.words)) for sentence in sentences]
    same = sum(a == list(b.words) for a, b in zip(found, sentences, strict=True))
    assert same >= 0.985 * len(sentences)


SIGNS = "a.A1'’\"-—_@&,:/([<«»€🎉東\u0301\u200b\ufe0f\u00a0\u2028\U00020000\x00\ue000\ud800"
HOSTILE = [
    *SIGNS,
    *("a.", "a. ", "A.", "a.Aa", "Aa.Aa", "a-", "a--", "a'", "'s", "s's", "n't", "a n't", "a@"),
    *("a_", "()", "[]", "<b>", "«»", "1.", "1,", "+1", "-1", "1.\n", "://", "http://", "http://."),
    *("www.", "www.,", "https://a.b/c?", "a\u0301", "a\u200b", "\u200b.", "a…", "👩\u200d🚀"),
    *('א"', 'ה"אא', 'ה"אא ', " a", "''s"),
]


@pytest.mark.some(10)
@pytest.mark.parametrize("unit", HOSTILE)
def test_the_time_is_linear(unit):
    for before, after in (("", ""), ("a", ")"), ("http://", "a"), ("'", ".")):
        short, long = (
            min(seconds(before + (unit * size)[:size] + after) for _ in range(2))
            for size in (1000, 8000)
        )
        assert long < 30 * short + 0.01  # 8 times is linear, 64 quadratic


def seconds(text):
    began = time.thread_time()
    word_spans(text)
    return time.thread_time() - began


def test_the_text_that_took_hours():
    assert words_of("a" * 8000 + "." * 8000 + ")") == ["a" * 8000, "." * 8000, ")"]
    assert len(word_spans("«»" * 50_000)) == 100_000


LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TASK = Tagging(labels=LABELS, max_length=16)
TEXT = "(Anna Bach), of Ulm's abc 東!"


@pytest.fixture(scope="module")
def tokenizer():
    """Knows no word but single letters, as sub-words."""
    letters = [*map(chr, range(97, 123)), "'", "(", ")", ",", "!", "東"]
    entries = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]
    return wordpiece_tokenizer({word: i for i, word in enumerate(entries)}, lowercase=True)


def entities(tokenizer, aggregation, labels, text=TEXT, task=TASK):
    """What is found where sub-words, by their characters, have these labels; others the first."""
    every = TextTagging(task, "none").encode([text], tokenizer)
    outputs = np.zeros((len(every.places), len(task.labels)), dtype=np.float32)
    for row, (start, _) in zip(outputs, every.notes["pieces"].tolist(), strict=True):
        row[task.labels.index(labels.get(start, task.labels[0]))] = 4
    asked = TextTagging(task, aggregation)
    rows = asked.encode([text], tokenizer)
    if aggregation == "first":
        words = every.notes["words"].tolist()
        outputs = outputs[[words.index(word) for word in rows.notes["words"].tolist()]]
    (found,) = asked.decode(outputs, rows, [text])
    for each in found["entities"]:
        assert each["text"] == text[each["start"] : each["end"]]
    return [(each["type"], each["text"]) for each in found["entities"]]


@pytest.mark.parametrize(
    ("aggregation", "labels", "wanted"),
    [
        ("none", {1: "B-PER", 2: "I-PER", 16: "B-LOC"}, "B-PER A I-PER n B-LOC U"),
        ("simple", {1: "B-PER", 2: "I-PER", 3: "B-PER", 6: "I-LOC"}, "PER An PER n LOC B"),
        ("first", {1: "B-PER", 2: "B-LOC", 6: "I-PER", 16: "I-LOC"}, "PER Anna_Bach LOC Ulm"),
        # Of Ulm one of three sub-words says LOC, two O.
        ("average", {1: "B-PER", 2: "B-LOC", 3: "B-LOC", 4: "B-LOC", 16: "B-LOC"}, "LOC Anna"),
    ],
)
def test_entities_of_sub_words_and_of_words(tokenizer, aggregation, labels, wanted):
    found = entities(tokenizer, aggregation, labels)
    assert " ".join(f"{kind} {text.replace(' ', '_')}" for kind, text in found) == wanted


def test_words_by_the_surest(tokenizer):
    asked = TextTagging(TASK, "max")
    rows = asked.encode(["ab cd"], tokenizer)
    outputs = np.zeros((4, len(LABELS)), dtype=np.float32)
    outputs[[0, 1, 2, 3], [1, 3, 0, 2]] = 2, 1, 3, 4
    (found,) = asked.decode(outputs, rows, ["ab cd"])
    (entity,) = found["entities"]
    assert (entity["type"], entity["start_word"], entity["end_word"]) == ("PER", 0, 2)
    surest = torch.tensor(outputs).softmax(-1).amax(-1)
    assert entity["score"] == pytest.approx(float(surest[[0, 3]].mean()))


def test_first_is_what_the_task_finds_in_the_words(tokenizer):
    choose = np.random.default_rng(0)
    texts = [" ".join(choose.choice(list("abcdef'(,"), 30)) for _ in range(5)] + ["", "a", "b " * 9]
    asked = TextTagging(TASK, "first")
    rows = asked.encode(texts, tokenizer)
    sentences = [
        TaggedSentence(words=[text[a:b] for a, b in word_spans(text)], tags=None, scheme="iob2")
        for text in texts
    ]
    of_words = TASK.encode(sentences, tokenizer)
    assert np.array_equal(rows.input_ids, of_words.input_ids)
    assert np.array_equal(rows.places, of_words.places)
    outputs = choose.normal(size=(len(rows.places), len(LABELS))).astype(np.float32)
    for found, wanted in zip(
        asked.decode(outputs, rows, texts), TASK.decode(outputs, of_words, sentences), strict=True
    ):
        spans = [(e["type"], e["start_word"], e["end_word"]) for e in found["entities"]]
        assert spans == [(e["type"], e["start"], e["end"]) for e in wanted["entities"]]
        scores = [each["score"] for each in wanted["entities"]]
        assert [each["score"] for each in found["entities"]] == pytest.approx(scores)


@pytest.mark.parametrize("aggregation", ["none", "simple", "average", "max"])
def test_windows_are_read_as_one_text(tokenizer, aggregation):
    text = "abc " * 30
    asked = TextTagging(TASK, aggregation)
    rows = asked.encode([text], tokenizer)
    assert len(rows.lengths) > 1 and len(rows.places) == 90
    outputs = np.zeros((90, len(LABELS)), dtype=np.float32)
    outputs[:, 1] = 9  # each begins a PER
    (found,) = asked.decode(outputs, rows, [text])
    starts = [each["start"] for each in found["entities"]]
    step = {"none": 90, "simple": 90}.get(aggregation, 30)
    assert starts == sorted(starts) and len(starts) == step


def test_what_is_cut_off_is_outside_and_told(tokenizer):
    text = "abc " * 9
    for side, kept in (("right", range(4)), ("left", range(5, 9))):
        asked = TextTagging(TASK, "average", overflow=side)
        rows = asked.encode([text, "a"], tokenizer)
        outputs = np.zeros((len(rows.places), len(LABELS)), dtype=np.float32)
        outputs[:, 1] = 9
        found, _ = asked.decode(outputs, rows, [text, "a"])
        assert [each["start_word"] for each in found["entities"]] == list(kept)
        assert rows.truncated.tolist() == [True, False]
        assert rows.num_tokens.tolist() == [29, 3]


@pytest.mark.parametrize("texts", [["a b", "c d"], ["a b", ["c", "d"]], ["😀👍" * 100_000]])
def test_words_are_counted_while_they_are_made(tokenizer, texts):
    with pytest.raises(TooManyTokensError, match="at most 3"):
        TextTagging(TASK, max_words=3).encode(texts, tokenizer)
    assert len(TextTagging(TASK, max_words=4).encode(["a b", "c d"], tokenizer).lengths) == 2
    for side in ("left", "right"):
        cut = TextTagging(TASK, overflow=side, max_words=4).encode(["a b c d " * 9], tokenizer)
        assert len(cut.lengths) == 1, "what is to be cut off is no reason to refuse"


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
def test_words_that_are_given_have_the_characters_of_their_text(tokenizer, aggregation):
    words = ["Anna", "Bach", "of", "\u200b", "Ulm"]
    text = " ".join(words)
    asked = TextTagging(TASK, aggregation)
    given = asked.encode([words, [], "abc"], tokenizer)
    outputs = np.random.default_rng(0).normal(size=(len(given.places), len(LABELS)))
    found = asked.decode(outputs.astype(np.float32), given, [words, [], "abc"])
    assert found[1] == {"entities": []}
    assert found[0]["entities"]
    for each in found[0]["entities"]:
        assert each["text"] == text[each["start"] : each["end"]]
        if "start_word" in each:
            assert each["text"] == " ".join(words[each["start_word"] : each["end_word"]])
    split = asked.encode(["Anna Bach of Ulm"], tokenizer)
    assert split.input_ids.tolist() == asked.encode([words], tokenizer).input_ids.tolist()


@pytest.mark.parametrize("aggregation", ["simple", "first", "average", "max"])
def test_neighbours_with_a_plain_type_are_one_entity(tokenizer, aggregation):
    text = "anna bach of ulm, bonn ab"
    said = dict.fromkeys(range(9), "PER") | dict.fromkeys(range(13, 16), "LOC")
    said |= dict.fromkeys(range(18, 22), "LOC") | dict.fromkeys(range(23, 25), "PER")
    names = [("PER", "anna bach"), ("LOC", "ulm"), ("LOC", "bonn"), ("PER", "ab")]
    types = Tagging(labels=("O", "LOC", "PER"), max_length=64)
    assert entities(tokenizer, aggregation, said, text, types) == names
    # The folder may say that they are tags of single words, ...
    words = types.model_copy(update={"scheme": "none"})
    alone = [("PER", "anna"), ("PER", "bach"), *names[1:]]
    assert entities(tokenizer, aggregation, said, text, words) == alone


@pytest.mark.parametrize("aggregation", ["simple", "first", "average", "max"])
def test_parts_of_speech_are_of_single_words(tokenizer, aggregation):
    said = dict.fromkeys(range(4, 25), "NN")
    text = "the ab cd"
    parts = Tagging(labels=("DT", "NN"), max_length=64)
    found = [("DT", "the"), ("NN", "ab"), ("NN", "cd")]
    assert entities(tokenizer, aggregation, said, text, parts) == found
    # ... or that labels without O among them are types.
    types = parts.model_copy(update={"scheme": "io"})
    found = [("DT", "the"), ("NN", "ab cd")]
    assert entities(tokenizer, aggregation, said, text, types) == found


@pytest.mark.parametrize("labels", [("O", "LOC", "PER"), ("DT", "NN")])
def test_plain_entities_of_raw_text_are_those_of_the_words(tokenizer, labels):
    task = Tagging(labels=labels, max_length=64)
    text = "ab cd ef gh ab ab cd"
    words = text.split()
    rows = TextTagging(task).encode([text], tokenizer)
    sentences = [TaggedSentence(words=words, tags=None, scheme=None)]
    of_words = task.encode(sentences, tokenizer)
    outputs = np.random.default_rng(1).normal(size=(7, len(labels))).astype(np.float32)
    (found,) = TextTagging(task).decode(outputs, rows, [text])
    (wanted,) = task.decode(outputs, of_words, sentences)
    spans = [(each["type"], each["start_word"], each["end_word"]) for each in found["entities"]]
    assert spans == [(each["type"], each["start"], each["end"]) for each in wanted["entities"]]
    assert (len(spans) < 7) or labels[0] != "O"


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
def test_invisible_characters_are_at_no_edge_of_an_entity(tokenizer, aggregation):
    text = "\ufeffanna\u200b\u2060 \u202ebach\u202c, \ufe0fulm\ufe0f\u200d(ab)"
    task = Tagging(labels=("O", "PER"), max_length=64)
    asked = TextTagging(task, aggregation)
    for example in (text, ["\ufeffanna\u200b", "\u2060", "\ufe0fulm\ufe0f"]):
        rows = asked.encode([example], tokenizer)
        outputs = np.zeros((len(rows.places), 2), dtype=np.float32)
        outputs[:, 1] = 9
        (found,) = asked.decode(outputs, rows, [example])
        whole = example if isinstance(example, str) else " ".join(example)
        assert found["entities"]
        for each in found["entities"]:
            assert each["text"] == whole[each["start"] : each["end"]]
            assert each["text"][0].isprintable() and each["text"][-1].isprintable()
            assert each["text"][0].isascii() and each["text"][-1].isascii()
