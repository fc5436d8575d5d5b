"""What the trainers of tokenizers make of texts, the same each time."""

import hashlib
import os
import random
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from typing import get_args

import numpy as np
import pytest

from bert_core.special_tokens import TokenizerError, num_embeddings, special_token_ids
from bert_core.text.encoding import SentenceEncoder
from bert_core.tokenizer import load_tokenizer, save_tokenizer
from bert_core.tokenizer_training import TokenizerKind, train_tokenizer, train_wordpiece
from bert_core.word_marks import begins_word, space_mark, word_marks

TOKENIZER_KINDS = get_args(TokenizerKind)


def some_texts(num_texts=300, seed=7):
    """Many words of equal frequency and a wide alphabet, where ties have to be broken."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnopéüßñ漢字かな", k=5)) for _ in range(400)]
    return [" ".join(draw.choices(words, k=30)) + ", and so on." for _ in range(num_texts)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_wordpiece(some_texts(), 500, lowercase=True)


def trained(kind):
    """A tokenizer for which ties had to be broken, and characters left out."""
    coverage = {} if kind == "bpe" else {"alphabet_coverage": 0.9}
    return train_tokenizer(kind, some_texts(), 700, lowercase=True, **coverage)


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_training_is_equal_to_the_byte(kind):
    """In this process and in two others, with other hash seeds and numbers of threads."""
    script = (
        "import hashlib, sys; sys.path.insert(0, sys.argv[1]);"
        "from test_tokenizer_training import trained;"
        "print(hashlib.sha256(trained(sys.argv[2]).to_str().encode()).hexdigest())"
    )
    folder = __file__.rsplit("/", 1)[0]
    elsewhere = {
        subprocess.run(
            [sys.executable, "-c", script, folder, kind],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"RAYON_NUM_THREADS": num_threads},
        ).stdout.strip()
        for num_threads in "13"
    }
    here = {hashlib.sha256(trained(kind).to_str().encode()).hexdigest() for _ in range(2)}
    assert here == elsewhere and len(here) == 1


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_each_kind_has_the_special_tokens_first_and_gives_its_texts_back(kind, tmp_path):
    tokenizer = train_tokenizer(kind, some_texts(), 700, lowercase=False, **FULL[kind])
    assert special_token_ids(tokenizer).all == (0, 1, 2, 3, 4)
    assert num_embeddings(tokenizer) == tokenizer.get_vocab_size() <= 700
    text = some_texts()[0]
    ids = tokenizer.encode(text).ids
    assert ids[0] == 2 and ids[-1] == 3
    pair = tokenizer.encode("abc", "def")
    assert pair.tokens.count("[SEP]") == 2 and pair.type_ids[-1] == 1
    if kind != "wordpiece":  # which has each Chinese character stand alone
        assert tokenizer.decode(ids).strip() == text
    assert tokenizer.encode("a [MASK] b").ids.count(4) == 1
    save_tokenizer(tokenizer, tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path).encode(text).ids == ids


FULL = {"wordpiece": {"alphabet_coverage": 1.0}, "bpe": {}, "unigram": {"alphabet_coverage": 1.0}}


def test_bytes_know_every_text():
    tokenizer = trained("bpe")
    assert tokenizer.token_to_id("[UNK]") not in tokenizer.encode("Ωλ \U0001f642 ₿").ids
    assert "c" in tokenizer.get_vocab() and len(tokenizer.encode("Ω").ids) == 5


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_any_text_has_the_tokens_that_its_sentences_have_in_shards(kind, tmp_path):
    """Each sentence behind a space, the mask in place of a word with its space."""
    text = "The cat sat. If it sat, the cat had the mat."
    tokenizer = train_tokenizer(kind, [text] * 9, 320, lowercase=False)
    save_tokenizer(tokenizer, tmp_path / "tokenizer.json")
    tokenizer = load_tokenizer(tmp_path)
    encoded, _ = SentenceEncoder(tokenizer, "uint16").encode(["The cat sat.", text[13:]])
    shard = encoded.tolist()
    for given in (text, f"  {text}\n", text.replace(" ", "\n\t "), text.replace(" ", "\u00a0")):
        assert tokenizer.encode(given, add_special_tokens=False).ids == shard, repr(given)
    mark, vocabulary = space_mark(tokenizer), tokenizer.get_vocab()
    whole = [word for word in set(re.findall("[A-Za-z]+", text)) if f"{mark}{word}" in vocabulary]
    assert whole, "else nothing is masked"
    for word in whole:
        place = shard.index(vocabulary[f"{mark}{word}"])
        masked = [*shard[:place], vocabulary["[MASK]"], *shard[place + 1 :]]
        asked = re.sub(rf"\b{word}\b", "[MASK]", text, count=1)
        assert tokenizer.encode(asked, add_special_tokens=False).ids == masked, asked
    assert tokenizer.decode(shard) == text


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_chinese_clause_is_not_one_word(kind):
    text = "我们在北京看到了一只猫，它在垫子上坐着。"
    tokenizer = train_tokenizer(kind, [f"{text} The cat sat."] * 9, 320, lowercase=False)
    ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids)
    begins = begins_word(ids, word_marks(tokenizer))
    words = np.add.reduceat(np.ones_like(ids), np.flatnonzero(begins))
    assert words.max() <= 3 and len(words) > 3, "a character has three bytes at most"
    mixed = tokenizer.encode("cats sat", add_special_tokens=False).ids
    assert begins_word(np.array(mixed), word_marks(tokenizer)).sum() == 2


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_capitals_and_accents_are_left_out_when_asked(kind):
    for lowercase in (True, False):
        tokenizer = train_tokenizer(kind, ["Cafés Open in Paris"] * 20, 300, lowercase=lowercase)
        decoded = tokenizer.decode(tokenizer.encode("Cafés Open").ids).strip()
        assert decoded == ("cafes open" if lowercase else "Cafés Open")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_vowel_signs_are_no_accents(kind):
    # As in BERT's own: they are spacing marks. Without them work and less are one word.
    tokenizer = train_tokenizer(kind, ["यह काम कम है, বাংলা"] * 20, 400, lowercase=True)
    for text in ("काम", "कम", "বাংলা"):
        assert tokenizer.decode(tokenizer.encode(text).ids).strip() == text


def test_letters_with_separate_marks_are_counted_as_one():
    composed = ["".join(chr(0xAC00 + number * 7 % 900) for number in range(900))] * 3
    apart = [unicodedata.normalize("NFD", text) for text in composed]
    for texts in (composed, apart):
        with pytest.raises(TokenizerError, match="900 different .*lower alphabet coverage"):
            train_tokenizer("unigram", texts, 500, lowercase=False, alphabet_coverage=1.0)


def test_rare_characters_are_unknown_to_unigram():
    texts = [*["abc abd"] * 500, "x"]
    tokenizer = train_tokenizer("unigram", texts, 60, lowercase=True, alphabet_coverage=0.99)
    assert "x" not in tokenizer.get_vocab()
    assert tokenizer.encode("x", add_special_tokens=False).tokens[-1:] == ["x"]
    assert special_token_ids(tokenizer).unk in tokenizer.encode("x").ids


def test_a_one_shot_iterator_trains_the_same():
    once = train_wordpiece(iter(some_texts()), 300, lowercase=True)
    assert once.to_str() == train_wordpiece(some_texts(), 300, lowercase=True).to_str()


def test_encodes_as_bert_does(tokenizer):
    encoding = tokenizer.encode("Abc", "DÉF")
    assert encoding.tokens[0] == "[CLS]" and encoding.tokens[-1] == "[SEP]"
    assert set(encoding.type_ids) == {0, 1}
    assert "é" not in "".join(tokenizer.get_vocab())
    assert tokenizer.encode("漢字", add_special_tokens=False).tokens == ["漢", "字"]


def test_case_is_kept_when_asked():
    texts = ["Cafés Open in Paris"] * 20
    cased = train_wordpiece(texts, 80, lowercase=False)
    assert cased.decode(cased.encode("Cafés Open").ids) == "Cafés Open"
    lower = train_wordpiece(texts, 80, lowercase=True)
    assert lower.decode(lower.encode("Cafés Open").ids) == "cafes open"


def test_every_kept_character_can_continue_a_word(tokenizer):
    vocabulary = tokenizer.get_vocab()
    for char in "abcdefghijklmnop":
        assert char in vocabulary and f"##{char}" in vocabulary
    assert "," in vocabulary and "##," not in vocabulary and "##漢" not in vocabulary


def chinese_texts(num_characters=20_000, alphabet=6000):
    """Text whose characters are about as frequent as those of Chinese: the r-th as 1/(r + 60)."""
    draw = random.Random(3)
    characters = [chr(0x4E00 + 3 * rank) for rank in range(alphabet)]
    weights = [(1 / (rank + 60)) ** 1.3 for rank in range(alphabet)]
    drawn = draw.choices(characters, weights, k=num_characters)
    return ["".join(drawn[begin : begin + 30]) + "。" for begin in range(0, num_characters, 30)]


@pytest.mark.slow
def test_the_alphabet_covers_text_of_many_characters():
    texts = chinese_texts()
    used = Counter("".join(texts))
    assert sum(n for _, n in used.most_common(1000)) < 0.95 * used.total()  # more are needed
    trained = train_wordpiece(texts, 30_000, lowercase=True)
    ids = [each.ids for each in trained.encode_batch(texts, add_special_tokens=False)]
    unknown = sum(row.count(trained.token_to_id("[UNK]")) for row in ids)
    assert 0 < unknown <= 0.0005 * sum(map(len, ids))
    every = train_wordpiece(texts, 30_000, lowercase=True, alphabet_coverage=1.0)
    assert all(char in every.get_vocab() for char in used)
    with pytest.raises(TokenizerError, match="lower alphabet coverage"):
        train_wordpiece(texts, 3000, lowercase=True)


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(TokenizerError, match="give more text"):
        train_wordpiece([" "], 100, lowercase=True)
    with pytest.raises(TokenizerError, match="larger vocabulary"):
        train_wordpiece(some_texts(), 20, lowercase=True)
    for kind in TOKENIZER_KINDS:
        with pytest.raises(TokenizerError, match="larger vocabulary"):
            train_tokenizer(kind, some_texts(), 20, lowercase=True)
    with pytest.raises(TokenizerError, match="give more text"):
        train_tokenizer("unigram", [" "], 100, lowercase=True)
