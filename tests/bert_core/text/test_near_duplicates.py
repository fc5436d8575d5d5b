"""Documents that are nearly the same: n-grams of words, signatures, buckets."""

import random

import numpy as np
import pytest

from bert_core.text import near_duplicates
from bert_core.text.near_duplicates import (
    NUM_SLOTS,
    Signatures,
    band_keys,
    find_earlier,
    has_words,
    rows_of_a_band,
    sign,
)
from bert_core.text.word_ngrams import Words

VOCABULARY = [f"word{number}" for number in range(5000)]


def changed(document, num_words, draw):
    """The document with some of its words exchanged for others."""
    words = document.split()
    for place in draw.sample(range(len(words)), num_words):
        words[place] = draw.choice(VOCABULARY)
    return " ".join(words)


def jaccard(first, second):
    def shingles(text):
        words = text.split()
        return {tuple(words[n : n + 5]) for n in range(len(words) - 4)}

    return len(shingles(first) & shingles(second)) / len(shingles(first) | shingles(second))


def found(documents, threshold):
    signatures = sign(Words.of(documents))
    bands = band_keys(signatures, threshold)
    # In three pieces, as on disk.
    on_disk = Signatures(np.array_split(signatures, 3), threshold)
    return find_earlier(bands, len(documents), on_disk.similar)


def same_words(first, second):
    return np.array_equal(Words.of([first]).hashes, Words.of([second]).hashes)


def test_words_have_no_case_and_no_punctuation():
    assert same_words("State-of-the-ART, “now”…", "state of the art now")
    assert len(Words.of(["— …\u200b \U0010fffd"]).hashes) == 0
    assert len(Words.of(["हिन्दी।"]).hashes) == 1
    assert same_words("東京tower", "東 京 tower") and not same_words("東京", "京東")
    assert not same_words("ab", "ba") and not same_words("a b", "b a") and same_words("ÉÄ", "éä")


def test_a_word_has_the_same_hash_wherever_it_stands(monkeypatch):
    draw = random.Random(5)
    texts = [" ".join(draw.choices([*VOCABULARY, "東京", "—"], k=50)) for _ in range(100)]
    whole = Words.of(texts)
    monkeypatch.setattr("bert_core.text.word_ngrams._BLOCK_CHARACTERS", 700)
    in_blocks = Words.of(texts)
    assert np.array_equal(whole.hashes, in_blocks.hashes)
    assert np.array_equal(whole.offsets, in_blocks.offsets)
    alone = np.concatenate([Words.of([text]).hashes for text in texts])
    assert np.array_equal(whole.hashes, alone)
    words = {word for text in texts for word in text.replace("東京", "東 京").split()} - {"—"}
    assert len(set(whole.hashes.tolist())) == len(words)


def test_ngrams_are_those_of_each_text_alone():
    words = Words.of(["a b c d", "", "a, B c!", "x", "b c d"])
    ngrams = words.ngrams(3, pad=False)
    hashes = ngrams.hashes
    assert ngrams.offsets.tolist() == [0, 2, 2, 3, 3, 4]
    assert hashes[0] == hashes[2] and hashes[1] == hashes[3] and hashes[0] != hashes[1]
    padded = words.ngrams(3, pad=True)
    assert padded.offsets.tolist() == [0, 2, 2, 3, 4, 5] and len({*padded.hashes.tolist()}) == 3
    short = Words.of(["x", "x y", "y x", "x"]).ngrams(3, pad=True).hashes
    assert short[0] == short[3] and len({*short.tolist()}) == 3
    assert Words.of([]).ngrams(3, pad=True).offsets.tolist() == [0]


def test_hashes_are_the_same_in_every_process_and_version():
    """Signatures on disk outlive the process that wrote them."""
    words = Words.of(["the quick brown fox jumps over"])
    assert [f"{value:016x}" for value in words.ngrams(5, pad=True).hashes] == [
        "13e11a2c5c8dd071",
        "2dd5c73949ea1e62",
    ]
    assert sign(words)[0, :3].tolist() == [415504658, 3647962886, 3316724242]


def test_documents_are_signed_some_at_a_time(monkeypatch):
    draw = random.Random(6)
    words = Words.of([" ".join(draw.choices(VOCABULARY, k=20)) for _ in range(50)] + [""])
    whole = sign(words)
    monkeypatch.setattr(near_duplicates, "_DOCUMENTS_AT_ONCE", 7)
    assert np.array_equal(sign(words), whole) and not has_words(whole)[-1]


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.9, 1.0])
def test_bands_find_what_is_as_similar_as_the_threshold(threshold):
    rows = rows_of_a_band(threshold)
    assert 1 - (1 - threshold**rows) ** (NUM_SLOTS // rows) >= 0.98
    assert rows_of_a_band(1.0) == NUM_SLOTS


def test_near_duplicates_are_found_and_others_are_not():
    draw = random.Random(0)
    originals = [" ".join(draw.choices(VOCABULARY, k=300)) for _ in range(200)]
    close = [changed(document, 3, draw) for document in originals]
    far = [changed(document, 60, draw) for document in originals]
    assert min(map(jaccard, originals, close)) > 0.85
    assert max(map(jaccard, originals, far)) < 0.6
    earlier = found([*originals, *close, *far], 0.75)
    assert (earlier[:200] == -1).all() and (earlier[400:] == -1).all()
    assert (earlier[200:400] == np.arange(200)).all()


def test_no_two_documents_that_are_kept_are_similar():
    draw = random.Random(1)
    document = " ".join(draw.choices(VOCABULARY, k=200))
    chain = [document]
    for _ in range(60):  # each is like the one before, the last not like the first
        chain.append(changed(chain[-1], 4, draw))
    earlier = found(chain, 0.8)
    kept = np.flatnonzero(earlier < 0)
    assert 0 in kept and 2 < len(kept) < 45
    signatures = sign(Words.of(chain))
    for place, first in enumerate(kept):
        for second in kept[place + 1 :]:
            equal = (signatures[first] == signatures[second]).mean()
            assert equal < 0.8 or not shares_a_band(signatures, first, second)
    for index in np.flatnonzero(earlier >= 0):
        assert earlier[index] < index
        assert (signatures[index] == signatures[earlier[index]]).mean() >= 0.8


def shares_a_band(signatures, first, second):
    keys = band_keys(signatures[[first, second]], 0.8)
    return (keys[:, 0] == keys[:, 1]).any()


def test_short_documents_and_those_without_words():
    documents = ["...", "Two words", "two WORDS.", "", "other words", "!"]
    signatures = sign(Words.of(documents))
    assert has_words(signatures).tolist() == [False, True, True, False, True, False]
    assert sign(Words.of([])).shape == (0, NUM_SLOTS)
    assert band_keys(sign(Words.of([])), 0.8).shape[1] == 0
    assert found(["Two words", "two WORDS.", "other words"], 0.8).tolist() == [-1, 0, -1]


def test_work_is_bounded_where_many_documents_share_a_bucket():
    pairs = 0

    def never(first, second):
        nonlocal pairs
        pairs += len(first)
        return np.zeros(len(first), dtype=bool)

    bands = np.zeros((2, 1000), dtype=np.uint64)
    assert (find_earlier(bands, 1000, never) == -1).all()
    assert pairs <= 2 * 1000 * near_duplicates._MOST_LEADERS
