"""Rows of words: nothing lost, each word asked for once, where most is seen around it."""

import time
import unicodedata

import numpy as np
import pytest
from tokenizers import Tokenizer

from bert_core.special_tokens import SPECIAL_TOKENS, special_token_ids
from bert_core.tasks.sequences import (
    TooManyTokensError,
    Windows,
    align,
    cut,
    encode_sequences,
    max_context,
    slide,
    truncate_pairs,
)
from bert_core.tasks.tagged_sentences import WordColumns, read_conll
from bert_core.tasks.word_rows import best_windows, encode_words, word_windows
from bert_core.tokenizer import wordpiece_tokenizer
from bert_core.tokenizer_training import train_tokenizer, train_wordpiece


def published_windows(num_tokens, room, stride):
    """The loop of run_squad.py (google-research/bert): start and length of each window."""
    windows, start = [], 0
    while start < num_tokens:
        length = min(num_tokens - start, room)
        windows.append((start, length))
        if start + length == num_tokens:
            break
        start += min(length, stride)
    return windows


def published_max_context(windows, window_index, position):
    """`_check_is_max_context` of run_squad.py."""
    best_score = best_index = None
    for index, (start, length) in enumerate(windows):
        end = start + length - 1
        if position < start or position > end:
            continue
        score = min(position - start, end - position) + 0.01 * length
        if best_score is None or score > best_score:
            best_score, best_index = score, index
    return window_index == best_index


def some_texts(count=300):
    random = np.random.default_rng(0)
    lengths = random.integers(1, 900, count)
    rooms = random.integers(60, 380, count)
    return lengths, rooms


def test_windows_are_the_published_ones():
    lengths, rooms = some_texts()
    for stride in (1, 37, 128, 500):
        some = slice(None) if stride > 1 else slice(30)
        windows = slide(lengths[some], rooms[some], stride)
        expected = [
            (text, *window)
            for text, (length, room) in enumerate(zip(lengths[some], rooms[some], strict=True))
            for window in published_windows(length, room, stride)
        ]
        assert np.stack([windows.text, windows.starts, windows.lengths], axis=1).tolist() == [
            list(map(int, each)) for each in expected
        ]


def test_a_text_without_tokens_has_one_empty_window():
    windows = slide(np.array([0, 3, 0]), np.array([5, 5, 5]), 2)
    assert windows.text.tolist() == [0, 1, 2]
    assert windows.lengths.tolist() == [0, 3, 0]
    assert max_context(windows).tolist() == [True] * 3
    none = np.empty(0, dtype=np.int64)
    assert len(max_context(slide(none, none, 128))) == 0


def test_a_text_that_is_cut_keeps_the_other_side():
    lengths, rooms = np.array([5, 0, 9]), np.array([6, 6, 4])
    left, right = cut(lengths, rooms, "left"), cut(lengths, rooms, "right")
    assert left.text.tolist() == right.text.tolist() == [0, 1, 2]
    assert left.lengths.tolist() == right.lengths.tolist() == [5, 0, 4]
    assert left.starts.tolist() == [0, 0, 5] and right.starts.tolist() == [0, 0, 0]


def test_the_best_window_is_the_published_one():
    lengths, rooms = some_texts(60)
    # Last windows that are 100 shorter tie but for rounding, 110 shorter lose though more central.
    lengths, rooms = np.append(lengths, [328, 456, 318, 446]), np.append(rooms, [300] * 4)
    windows = slide(lengths, rooms, 128)
    found = max_context(windows)
    expected = []
    for length, room in zip(lengths, rooms, strict=True):
        published = published_windows(length, room, 128)
        expected += [
            published_max_context(published, index, start + within)
            for index, (start, window_length) in enumerate(published)
            for within in range(window_length)
        ]
    assert found.tolist() == expected


def test_every_token_has_one_best_window():
    windows = slide(np.array([1000, 20, 384]), np.array([320, 320, 320]), 128)
    found = max_context(windows)
    assert found.sum() == 1404
    middle = Windows(np.zeros(3, int), np.array([0, 128, 256]), np.array([320, 320, 320]))
    within = max_context(middle).reshape(3, 320)
    assert within[1, 96:224].all(), "where the second window has most on both sides"
    assert within[0, :128].all() and within[2, 192:].all(), "seen by one window alone"


def test_windows_are_counted_before_they_are_made():
    lengths, rooms = some_texts()
    beside = np.arange(len(lengths))
    for stride in (1, 37, 128, 500):
        windows = slide(lengths, rooms, stride)
        num_tokens = int((windows.lengths + beside[windows.text]).sum())
        same = slide(lengths, rooms, stride, beside=beside, max_tokens=num_tokens)
        assert np.array_equal(same.starts, windows.starts)
        with pytest.raises(TooManyTokensError, match=f"{num_tokens} tokens"):
            slide(lengths, rooms, stride, beside=beside, max_tokens=num_tokens - 1)
    with pytest.raises(TooManyTokensError):  # which would be terabytes
        slide(np.array([10**9]), np.array([10]), 1, max_tokens=10**6)


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


def test_a_character_of_several_words_is_found_from_its_first_token_on():
    greeting = "قال النبي محمد ﷺ في المدينة"  # one character that NFKC writes as four words
    known = unicodedata.normalize("NFKC", greeting)
    tokenizer = train_tokenizer("unigram", [known] * 6, 400, lowercase=False)
    for count in range(12):
        text = "قال " * count + greeting
        place = text.index("ﷺ")
        tokens = align(tokenizer, [text])
        found = tokens.token_spans(np.array([0]), np.array([place]), np.array([place + 1]))
        sharing = np.flatnonzero((tokens.offsets[:, 0] <= place) & (tokens.offsets[:, 1] > place))
        assert (found[0][0], found[1][0]) == (sharing[0], sharing[-1])


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


def test_marks_are_taken_in_in_linear_time(uncased):
    began = time.thread_time()
    tokens = align(uncased, ["a" + "\u0301" * 500_000])
    assert tokens.offsets.tolist() == [[0, 500_001]]
    assert time.thread_time() - began < 5  # 0.4 s


def sides_of(texts):
    """First texts, and second ones where there are any."""
    second = [text.second for text in texts]
    return [text.first for text in texts], None if second[0] is None else second


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("max_length", [8, 15, 16, 200])
@pytest.mark.parametrize("pairs", [False, True])
def test_rows_are_those_of_the_tokenizers_library(tokenizer, some_texts, max_length, pairs, side):
    first, second = sides_of(some_texts(range(60), pairs=pairs))
    found = encode_sequences(tokenizer, first, second, max_length, side)
    cutting = Tokenizer.from_str(tokenizer.to_str())
    cutting.enable_truncation(max_length, strategy="longest_first", direction=side)
    inputs = first if second is None else list(zip(first, second, strict=True))
    expected = cutting.encode_batch(inputs)
    assert found.lengths.tolist() == [len(each.ids) for each in expected]
    assert found.input_ids.tolist() == [token for each in expected for token in each.ids]
    assert found.first_lengths.tolist() == [each.type_ids.count(0) for each in expected]
    whole = tokenizer.encode_batch(inputs)
    assert found.num_tokens.tolist() == [len(each.ids) for each in whole]
    assert found.truncated.tolist() == [len(each.ids) > max_length for each in whole]
    assert found.truncated.any() == (max_length < 200)


@pytest.mark.parametrize("max_length", [8, 15, 16, 200])
@pytest.mark.parametrize("pairs", [False, True])
def test_windows_hold_every_token_and_nothing_else(tokenizer, some_texts, max_length, pairs):
    first, second = sides_of(some_texts(range(60), pairs=pairs))
    found = encode_sequences(tokenizer, first, second, max_length, "window")
    assert found.lengths.max() <= max_length
    assert set(found.text.tolist()) == set(range(60)) and (np.diff(found.text) >= 0).all()
    rows = np.split(found.input_ids, np.cumsum(found.lengths)[:-1])
    for number, parts in enumerate(zip(first, second, strict=True) if pairs else zip(first)):
        wholes = [tokenizer.encode(part, add_special_tokens=False).ids for part in parts]
        longer = max(range(len(wholes)), key=lambda part: len(wholes[part]))
        room = max_length - len(parts) - 1
        kept = min(len(wholes[1 - longer]), room // 2) if pairs else 0
        half = max((room - kept) // 2, 1)
        end = 0
        for window, row in enumerate(np.flatnonzero(found.text == number).tolist()):
            length = int(found.first_lengths[row])
            cut = [rows[row][1 : length - 1].tolist(), rows[row][length:-1].tolist()]
            begin, end = window * half, window * half + len(cut[longer])
            assert cut[longer] == wholes[longer][begin : begin + room - kept]
            if pairs:
                assert cut[1 - longer] == wholes[1 - longer][:kept]
        assert end == len(wholes[longer])
        assert found.truncated[number] == (pairs and kept < len(wholes[1 - longer]))
        if found.num_tokens[number] <= max_length:
            assert (found.text == number).sum() == 1 and not found.truncated[number]


def test_the_longer_of_a_pair_gives_way_first():
    first, second = np.array([3, 30, 30, 10, 9]), np.array([4, 5, 40, 10, 30])
    kept = truncate_pairs(first, second, 19)
    assert np.stack(kept, 1).tolist() == [[3, 4], [14, 5], [9, 10], [9, 10], [9, 10]]
    assert np.stack(truncate_pairs(np.array([40]), np.array([30]), 19), 1).tolist() == [[10, 9]]


@pytest.mark.parametrize("overflow", ["right", "left", "window"])
@pytest.mark.parametrize("max_length", [8, 15, 200])
def test_texts_and_pairs_may_stand_side_by_side(tokenizer, some_texts, max_length, overflow):
    first, second = sides_of(some_texts(range(40), pairs=True))
    mixed = [each if number % 3 else None for number, each in enumerate(second)]
    found = encode_sequences(tokenizer, first, mixed, max_length, overflow)
    alone = [
        encode_sequences(tokenizer, [a], None if b is None else [b], max_length, overflow)
        for a, b in zip(first, mixed, strict=True)
    ]
    for name in ("input_ids", "lengths", "first_lengths", "num_tokens", "truncated"):
        expected = np.concatenate([getattr(each, name) for each in alone])
        np.testing.assert_array_equal(getattr(found, name), expected)


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


@pytest.mark.some(8)
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
    text_of_word = np.repeat(texts, [len(sentence) for sentence in sentences])
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
    sentence_of = np.repeat(np.arange(200), [len(sentence) for sentence in sentences])
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


def test_the_tokens_are_those_of_a_tokenizer_of_whole_sentences(shared_data, uncased):
    path = shared_data / "ner" / "conll2003" / "valid.txt"
    sentences = [each.words for each in read_conll(path, WordColumns("0", "3"))][:1000]
    rows = encode_words(uncased, sentences, np.arange(1000), 512)
    assert len(rows.lengths) == 1000 and rows.num_without_tokens == 0
    encodings = uncased.encode_batch(sentences, is_pretokenized=True)
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
