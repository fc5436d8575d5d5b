import re
from collections import Counter
from random import Random

import numpy as np
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from bert_core.features.output import _characters_at_once, _num_characters, write_features
from bert_core.features.units import cut_texts, cut_tokens, cut_words, unit_rows, words_of
from bert_core.model.strategies import STRATEGIES, Strategy
from bert_core.special_tokens import SPECIAL_TOKENS
from bert_core.text.texts import NamedText, text_chunks
from bert_core.tokenizer import wordpiece_tokenizer

WORDS = [*SPECIAL_TOKENS, "un", "##aff", "##able", "cat", "a", ",", "é"]
VOCABULARY = {word: number for number, word in enumerate(WORDS)}


@pytest.fixture
def tokenizer() -> Tokenizer:
    return wordpiece_tokenizer(VOCABULARY, lowercase=False)


def test_texts_are_tokens_words_and_characters(tokenizer):
    texts = ["unaffable cat,", "", "a xyz"]
    tokens = cut_texts(tokenizer, texts)
    pieces = [WORDS[token_id] for token_id in tokens.input_ids]
    assert pieces == ["un", "##aff", "##able", "cat", ",", "a", "[UNK]"]
    assert tokens.lengths.tolist() == [5, 0, 2]
    assert tokens.words.tolist() == [0, 0, 0, 1, 2, 3, 4]
    assert tokens.word_counts.tolist() == [3, 0, 2]
    spans = [texts[0][a:b] for a, b in tokens.offsets[:5]] + [
        texts[2][a:b] for a, b in tokens.offsets[5:]
    ]
    assert spans == ["un", "aff", "able", "cat", ",", "a", "xyz"]
    fast = cut_texts(tokenizer, texts, offsets=False)
    assert fast.offsets is None
    for name in ("input_ids", "lengths", "words", "word_counts"):
        assert np.array_equal(getattr(fast, name), getattr(tokens, name)), name


def test_words_are_those_of_the_tokenizer(tokenizer):
    """As `tokenizers` itself counts them, over random strings of letters and signs."""
    random = Random(0)
    texts = ["".join(random.choices("unaffablect ,é#", k=random.randrange(40))) for _ in range(300)]
    tokens = cut_texts(tokenizer, texts)
    expected = [tokenizer.encode(text, add_special_tokens=False).word_ids for text in texts]
    offsets = np.cumsum(tokens.word_counts) - tokens.word_counts
    ends = np.cumsum(tokens.lengths)
    found = [
        (tokens.words[end - length : end] - offset).tolist()
        for end, length, offset in zip(ends, tokens.lengths, offsets, strict=True)
    ]
    assert found == expected


def test_lists_of_words_keep_their_words(tokenizer):
    tokens = cut_words(tokenizer, [["unaffable", "\u200b"], [], ["cat", "a,a"]])
    assert " ".join(WORDS[token_id] for token_id in tokens.input_ids) == "un ##aff ##able cat a , a"
    assert tokens.words.tolist() == [0, 0, 0, 2, 3, 3, 3]
    assert tokens.lengths.tolist() == [3, 0, 4]
    assert tokens.word_counts.tolist() == [2, 0, 2]


def byte_tokenizer():
    """A token for each byte: each space is one of its own."""
    names = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def piece_tokenizer():
    """A piece for each character, and one for the space before a word."""
    pieces = [*SPECIAL_TOKENS, "\u2581", *"cat,é東"]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=1))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace("\n", " "), normalizers.Replace("\u3000", " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


SPACED = pytest.mark.parametrize("make", [byte_tokenizer, piece_tokenizer])


@SPACED
def test_white_space_is_in_no_word(make):
    tokenizer, random = make(), Random(0)
    texts = ["cat  a\n\ncat ", "  ", " ,", "cat\u3000東"]
    # A Chinese character is a word; in bytes nothing says where it ends.
    word = r"東[^\W東]*|[^\W東]+|," if make is byte_tokenizer else r"東|[^\W東]+|,"
    texts += ["".join(random.choices("cat ,é東 \n", k=random.randrange(30))) for _ in range(200)]
    tokens = cut_texts(tokenizer, texts)
    expected = [list(re.finditer(word, text)) for text in texts]
    words, spans = words_of(tokens, texts)
    assert words == [found[0] for each in expected for found in each]
    assert spans.tolist() == [list(found.span()) for each in expected for found in each]
    assert tokens.word_counts.tolist() == list(map(len, expected))

    cut = cut_tokens(tokens, 5, "right")
    left = [text[: max(cut.offsets[end - length : end, 1], default=0)] for text, end, length in zip(
        texts, np.cumsum(cut.lengths), cut.lengths, strict=True
    )]  # fmt: skip
    if make is piece_tokenizer:  # of bytes, a cut may go through a letter
        assert words_of(cut, texts)[0] == [each for text in left for each in re.findall(word, text)]
    for pooling, size in (("first", 1), ("mean", None)):
        rows = unit_rows(tokens, tokenizer, unit="word", pooling=pooling, max_length=64)
        counts = np.bincount(rows.units, minlength=rows.num_units)
        lengths = [size or len(word.encode() if make is byte_tokenizer else word) for word in words]
        assert counts.tolist() == lengths
        at = np.repeat(rows.rows.first_tokens, rows.rows.place_counts) + rows.rows.places
        names = [tokenizer.id_to_token(each) for each in rows.rows.input_ids[at]]
        assert not {"\u0120", "\u010a", "\u2581"} & set(names)


@SPACED
def test_the_first_token_of_a_word_of_a_list_is_no_space(make):
    tokenizer = make()
    tokens = cut_words(tokenizer, [["cat", "東"], ["a"]])
    rows = unit_rows(tokens, tokenizer, unit="word", pooling="first", max_length=64)
    at = np.repeat(rows.rows.first_tokens, rows.rows.place_counts) + rows.rows.places
    names = [tokenizer.id_to_token(each) for each in rows.rows.input_ids[at]]
    assert names == ["c", tokenizer.encode("東").tokens[-1 if make is piece_tokenizer else 0], "a"]
    assert rows.units.tolist() == [0, 1, 2]


def places_in_rows(rows):
    """The token ids that are read, for each row."""
    ends, counts = np.cumsum(rows.lengths), rows.place_counts
    first_tokens, first_places = ends - rows.lengths, np.cumsum(counts) - counts
    return [
        [WORDS[rows.input_ids[token + place]] for place in rows.places[first : first + count]]
        for token, first, count in zip(first_tokens, first_places, counts, strict=True)
    ]


@pytest.mark.parametrize(
    ("unit", "pooling", "places", "units"),
    [
        ("token", None, [["un", "##aff", "cat"], [], ["a"]], [0, 1, 2, 3]),
        ("word", "first", [["un", "cat"], [], ["a"]], [0, 1, 2]),
        ("word", "mean", [["un", "##aff", "cat"], [], ["a"]], [0, 0, 1, 2]),
        ("text", "cls", [["[CLS]"]] * 3, [0, 1, 2]),
        (
            "text",
            "mean",
            [["[CLS]", "un", "##aff", "cat", "[SEP]"], ["[CLS]", "[SEP]"], ["[CLS]", "a", "[SEP]"]],
            [0] * 5 + [1] * 2 + [2] * 3,
        ),
    ],
)
def test_a_place_wherever_a_unit_is_read(tokenizer, unit, pooling, places, units):
    tokens = cut_texts(tokenizer, ["unaff cat", "", "a"])
    rows = unit_rows(tokens, tokenizer, unit=unit, pooling=pooling, max_length=16)
    assert places_in_rows(rows.rows) == places
    assert rows.units.tolist() == units
    assert rows.num_units == max(units) + 1
    assert rows.rows.lengths.tolist() == [5, 2, 3]


@pytest.mark.parametrize("stride", [None, 1, 5, 14])
def test_each_token_of_a_long_text_is_read_once(tokenizer, stride):
    random = Random(1)
    texts = [" ".join(random.choices(["unaffable", "cat", "a"], k=size)) for size in (3, 90, 0, 41)]
    tokens = cut_texts(tokenizer, texts)
    options = {"max_length": 16, "stride": stride}
    rows = unit_rows(tokens, tokenizer, unit="token", pooling=None, **options)
    assert rows.rows.lengths.max() == 16
    assert sorted(rows.units.tolist()) == list(range(len(tokens.input_ids)))
    ends = np.cumsum(rows.rows.lengths)
    first_tokens = np.repeat(ends - rows.rows.lengths, rows.rows.place_counts)
    read = rows.rows.input_ids[first_tokens + rows.rows.places]
    assert np.array_equal(read, tokens.input_ids[rows.units])  # each from where it stands

    means = unit_rows(tokens, tokenizer, unit="text", pooling="mean", **options)
    windows = Counter(means.rows.example.tolist())
    expected = {text: length + 2 * windows[text] for text, length in enumerate(tokens.lengths)}
    assert Counter(means.units.tolist()) == expected


def test_no_texts_are_no_rows(tokenizer):
    for tokens in (cut_texts(tokenizer, []), cut_words(tokenizer, [])):
        rows = unit_rows(tokens, tokenizer, unit="text", pooling="mean", max_length=16)
        assert rows.num_units == rows.rows.num_items == 0


@pytest.mark.parametrize("side", ["left", "right"])
def test_cut_texts_lose_tokens_and_words_on_a_side(tokenizer, side):
    texts = ["unaffable cat a", "cat", "", "a unaffable"]
    tokens = cut_texts(tokenizer, texts)
    short = cut_tokens(tokens, 3, side)
    assert short.lengths.tolist() == [3, 1, 0, 3]
    pieces = [tokenizer.id_to_token(token) for token in short.input_ids.tolist()]
    words = short.words.tolist()
    if side == "right":
        assert pieces == ["un", "##aff", "##able", "cat", "a", "un", "##aff"]
        assert words == [0, 0, 0, 1, 2, 3, 3] and short.word_counts.tolist() == [1, 1, 0, 2]
    else:
        assert pieces == ["##able", "cat", "a", "cat", "un", "##aff", "##able"]
        assert words == [0, 1, 2, 3, 4, 4, 4] and short.word_counts.tolist() == [3, 1, 0, 1]
    assert cut_tokens(tokens, 5, side).offsets.tolist() == tokens.offsets.tolist()


def test_texts_without_words_have_none(tokenizer):
    words, spans = words_of(cut_texts(tokenizer, ["", " "]), ["", " "])
    assert words == [] and spans.shape == (0, 2)


TEXTS = ["Unaffable cats, naïve!", "", "Short"]
NAMED = [NamedText(f"n{number}", text) for number, text in enumerate(TEXTS)]


@pytest.fixture
def embeddings_of(extractor_of):
    return lambda **choice: extractor_of(strategy=STRATEGIES["embeddings"], **choice)


def test_a_text_has_a_vector(embeddings_of, tmp_path):
    extractor = embeddings_of(normalize=True)
    path = tmp_path / "part.parquet"
    counts = write_features(extractor, NAMED, path)
    table = pq.read_table(path)
    assert table.column_names == ["id", "features"]
    assert table["id"].to_pylist() == ["n0", "n1", "n2"]
    found = np.array(table["features"].to_pylist(), np.float32)
    np.testing.assert_array_equal(found, extractor.of_texts(TEXTS))
    assert counts == {"texts": 3, "tokens": 8, "units": 3, "rows": 3}
    assert [each.name for each in tmp_path.iterdir()] == ["part.parquet"]


@pytest.mark.parametrize(
    ("unit", "shown"),
    [
        ("token", [["una", "##ffa", "##ble", "cats", ",", "naive", "!"], [], ["short"]]),
        ("word", [["Unaffable", "cats", ",", "naïve", "!"], [], ["Short"]]),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_tokens_and_words_bring_their_characters(embeddings_of, tmp_path, unit, shown, dtype):
    extractor = embeddings_of(unit=unit)
    path = tmp_path / "part.parquet"
    write_features(extractor, NAMED, path, dtype=dtype)
    table = pq.read_table(path).to_pydict()
    if unit == "token":
        extracted = [
            [text[a:b].lower() for a, b in zip(*places, strict=True)]
            for text, *places in zip(TEXTS, table["begins"], table["ends"], strict=True)
        ]
        plain = [
            [each.removeprefix("##").replace("naive", "naïve") for each in some]
            for some in table["tokens"]
        ]
        assert extracted == plain
    assert table[f"{unit}s"] == shown
    for text, words, begins, ends in zip(TEXTS, shown, table["begins"], table["ends"], strict=True):
        if unit == "word":
            assert [text[a:b] for a, b in zip(begins, ends, strict=True)] == words
    expected = extractor.of_texts(TEXTS)
    found = np.concatenate([np.array(each, dtype).reshape(-1, 384) for each in table["features"]])
    assert len(found) == sum(map(len, shown))
    np.testing.assert_array_equal(found, expected.astype(dtype))


def test_lists_of_words_have_no_characters(embeddings_of, tmp_path):
    named = [NamedText("a", ["Unaffable", "\u200b", "cats"]), NamedText("b", "one two")]
    path = tmp_path / "part.parquet"
    counts = write_features(embeddings_of(unit="word"), named, path)
    table = pq.read_table(path).to_pydict()
    assert table["words"] == [["Unaffable", "\u200b", "cats"], ["one", "two"]]
    assert table["begins"] == [None, [0, 4]]
    assert [len(each) for each in table["features"]] == [3, 2]
    assert not any(table["features"][0][1])
    assert counts["words_without_tokens"] == 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_array_holds_the_units_of_all_texts(embeddings_of, tmp_path, dtype):
    extractor = embeddings_of(unit="word")
    path = tmp_path / "part.parquet"
    write_features(extractor, NAMED, path, output_format="npy", dtype=dtype)
    array = np.load(tmp_path / "part.npy", mmap_mode="r", allow_pickle=False)
    np.testing.assert_array_equal(array, extractor.of_texts(TEXTS).astype(dtype))
    table = pq.read_table(path).to_pydict()
    assert table["num_units"] == [5, 0, 1]
    assert "features" not in table


def test_many_texts_are_written_a_thousand_at_a_time(embeddings_of, tmp_path):
    named = [NamedText(str(number), "a cat") for number in range(2100)]
    for output_format in ("parquet", "npy"):
        path = tmp_path / f"{output_format}.parquet"
        counts = write_features(embeddings_of(), named, path, output_format=output_format)
        assert counts["texts"] == counts["units"] == 2100
        assert pq.ParquetFile(path).metadata.num_row_groups == 3
    array = np.load(tmp_path / "npy.npy", allow_pickle=False)
    assert array.shape == (2100, 384)
    assert (array == array[0]).all()


def test_what_breaks_off_leaves_no_file(embeddings_of, tmp_path):
    def texts():
        yield NAMED[0]
        raise KeyboardInterrupt

    path = tmp_path / "part.parquet"
    with pytest.raises(KeyboardInterrupt):
        write_features(embeddings_of(), texts(), path)
    assert not path.exists()
    write_features(embeddings_of(), NAMED, path)
    assert [each.name for each in tmp_path.iterdir()] == ["part.parquet"]


def test_memory_is_bounded_by_what_tokens_take(embeddings_of, extractor_of):
    """256 MB of vectors, at three characters a token; whole texts take no more for their length."""
    assert _characters_at_once(embeddings_of()) == 1 << 20
    layers = Strategy("all", tuple(range(7)))
    wide = extractor_of(strategy=layers, unit="token")
    assert _characters_at_once(wide) == 3 * (2**28 // (4 * 7 * 384))
    long = [NamedText(str(number), "x" * 100) for number in range(10)]
    assert [len(chunk) for chunk in text_chunks(long, _num_characters, 350)] == [3, 3, 3, 1]
    assert [len(chunk) for chunk in text_chunks(long, _num_characters, 10)] == [1] * 10
