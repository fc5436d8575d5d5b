"""Single texts of files, with their names, however the files are divided."""

import gzip
import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_core.text.sources import CorpusError, UnreadableFileError, find_parts
from bert_core.text.texts import divide, read_records, read_texts


def read(*paths, text_column="text", id_column=None, part_bytes=None, **options):
    """All texts as (id, text), and what was dropped."""
    dropped = Counter()
    found = find_parts([str(path) for path in paths], text_column, Counter(), **options)
    parts = list(divide(list(found), part_bytes))
    found = [
        (text.id, text.text)
        for part in parts
        for text in read_texts(part, dropped, text_column=text_column, id_column=id_column)
    ]
    return found, +dropped


def test_a_line_is_a_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("= One =\n\n two \nthree")
    assert read(path) == (
        [("a.txt:0", "= One ="), ("a.txt:9", "two"), ("a.txt:15", "three")],
        {"empty_lines": 1},
    )


def test_records_bring_their_ids(tmp_path):
    records = [{"id": 7, "body": "one"}, {"body": ["two", "words"]}, {"id": "x", "body": 3}, 4]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + "{torn\n")
    found, dropped = read(path, text_column="body", id_column="id")
    assert found == [("7", "one"), ("a.jsonl:25", ["two", "words"])]
    assert dropped == {"records_without_text": 2, "invalid_json_lines": 1}
    assert read(path, text_column="body")[0][0] == ("a.jsonl:0", "one")


def test_rows_of_parquet_count_through_its_groups(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [f"text {i}" for i in range(7)], "other": range(7)})
    pq.write_table(table, path, row_group_size=3)
    assert read(path)[0] == [(f"a.parquet:{i}", f"text {i}") for i in range(7)]
    for part_bytes in (1, 40, 90):
        assert read(path, part_bytes=part_bytes) == read(path)
    found, _ = read(path, id_column="other")
    assert [name for name, _ in found] == list("0123456")


def test_large_row_groups_are_divided(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"text {i}" for i in range(1000)]}), path)
    (group,) = find_parts([str(path)], "text", Counter())
    parts = list(divide([group], group.num_bytes // 3))
    assert len(parts) == 4
    assert [part.first for part in parts] == [i * parts[0].count for i in range(4)]
    assert sum(part.count for part in parts) == 1000
    assert parts[0].stretch == f", rows 0 to {parts[0].count - 1} of row group 0"
    for part_bytes in (group.num_bytes // 3, 1 << 20):
        assert read(path, part_bytes=part_bytes)[0] == [
            (f"a.parquet:{i}", f"text {i}") for i in range(1000)
        ]


def test_values_that_repeat_take_few_bytes_and_are_divided_all_the_same(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["the same text"] * 20_000}), path)
    parts = list(divide(list(find_parts([str(path)], "text", Counter()))))
    assert [part.count for part in parts] == [8192, 8192, 3616]


def test_there_are_parts_enough_to_see_progress(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one two three\n" * 200_000)
    found = list(find_parts([str(path)], "text", Counter()))
    assert 64 <= len(list(divide(found))) <= 65
    assert len(list(divide(found, 1 << 20))) == 3


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path):
    for name in ("left/a.txt", "right/deep/a.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(f"text of {name}")
    found = read(tmp_path / "left/a.txt", tmp_path / "right/deep/a.txt")[0]
    assert [name for name, _ in found] == ["left/a.txt:0", "right/deep/a.txt:0"]
    assert read(tmp_path / "left")[0] == [("a.txt:0", "text of left/a.txt")]


@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_parts_lose_and_double_nothing(tmp_path, suffix):
    texts = [f"text {i}" + "x" * (i * 7 % 40) for i in range(300)]
    lines = [text if suffix == "txt" else json.dumps({"text": text}) for text in texts]
    path = tmp_path / f"a.{suffix}"
    path.write_text("\n".join(lines))
    whole = read(path)
    for part_bytes in (1, 37, 1000):
        assert read(path, part_bytes=part_bytes) == whole
    assert [text for _, text in whole[0]] == texts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_column": "txt"}, "no column 'txt': .*give --text_column, for example text"),
        ({"id_column": "name"}, "no column 'name': .*give --id_column, for example"),
    ],
)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_column_that_is_not_there_is_named(tmp_path, suffix, options, message):
    path = tmp_path / f"a.{suffix}"
    if suffix == "jsonl":
        path.write_text('{"text": "one", "id": 1}\n')
    else:
        pq.write_table(pa.table({"text": ["one"], "id": [1]}), path)
    with pytest.raises(CorpusError, match=message):
        read(path, **options)


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.int64())])
def test_a_column_that_holds_no_text_is_refused(tmp_path, kind):
    pq.write_table(pa.table({"text": pa.array([None], kind)}), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match=r"column 'text' is .*int64.*a\.parquet .*--text_column"):
        read(tmp_path / "a.parquet")
    texts = pa.array(["one", "one"]).dictionary_encode()
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    assert [text for _, text in read(tmp_path / "a.parquet")[0]] == ["one", "one"]


def test_files_that_break_off_are_named(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one\n" * 10_000)[:-20])
    with pytest.raises(CorpusError, match=r"cannot read to the end \(.*\): .*a\.txt\.gz"):
        read(path)
    whole, torn = tmp_path / "b.parquet", tmp_path / "c.parquet"
    pq.write_table(pa.table({"text": ["one"]}), whole)
    torn.write_bytes(whole.read_bytes()[:-9])
    with pytest.raises(CorpusError, match=r"damaged parquet file: .*c\.parquet"):
        read(whole, torn)
    unreadable = []
    assert read(torn, whole, unreadable=unreadable)[0] == [("b.parquet:0", "one")]
    assert [each.where for each in unreadable] == [str(torn)]
    with pytest.raises(CorpusError, match="no column 'body'"):  # which is no damage
        read(whole, text_column="body", unreadable=unreadable)


def test_what_may_not_be_read_is_said(open_folder, nobody):
    path, closed = open_folder / "a.txt", open_folder / "closed"
    closed.mkdir()
    hidden = open_folder / ".hidden"
    hidden.mkdir(0)  # which is nobody's business
    path.write_text("one")
    (closed / "b.txt").write_text("two")
    path.chmod(0)
    closed.chmod(0)
    unreadable = []
    with nobody():
        with pytest.raises(UnreadableFileError, match=r"no permission to read: .*a\.txt"):
            read(path)
        with pytest.raises(CorpusError, match=r"cannot read the folder \(.*\): .*closed"):
            read(open_folder)
        with pytest.raises(CorpusError, match=r"cannot read the folder \(.*\): .*closed"):
            read(closed)
    closed.chmod(0o755)
    with nobody():
        assert read(open_folder, unreadable=unreadable)[0] == [("b.txt:0", "two")]
    assert [each.where for each in unreadable] == [str(path)]


def test_bytes_that_are_no_text_are_counted(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntw\xff\n")
    assert read(path) == (
        [("a.txt:0", "one"), ("a.txt:4", "tw\ufffd")],
        {"invalid_utf8_characters_replaced": 1},
    )


COLUMNS = {"context_column": "context", "question_column": "question"}


def read_columns(path, columns=COLUMNS, **options):
    """All records as (id, texts), and what was dropped."""
    dropped = Counter()
    option, column = next(iter(columns.items()))
    parts = divide(list(find_parts([str(path)], column, Counter(), option=option)))
    found = [
        (record.id, record.texts)
        for part in parts
        for record in read_records(part, dropped, columns, **options)
    ]
    return found, +dropped


def test_a_record_has_its_texts_in_the_order_of_the_columns(tmp_path):
    records = [{"question": "q", "context": "c", "id": 5}, {"question": "q", "id": 6}]
    records += [{"question": "q", "context": "\udcff"}, {"question": ["q"], "context": ["c", "d"]}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    found, dropped = read_columns(path, id_column="id")
    assert found == [("5", ("c", "q")), (found[1][0], (["c", "d"], ["q"]))]
    assert found[1][0].startswith("a.jsonl:")
    assert dropped == {"records_without_text": 1, "records_with_half_a_character": 1}


def test_each_column_of_parquet_has_to_hold_texts(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"context": ["c", None], "question": ["q", "r"]}), path)
    assert read_columns(path) == ([("a.parquet:0", ("c", "q"))], {"records_without_text": 1})
    pq.write_table(pa.table({"context": ["c"], "question": [1]}), path)
    with pytest.raises(CorpusError, match="int64, neither .*give another --question_column"):
        read_columns(path)
    pq.write_table(pa.table({"contexts": ["c"], "question": ["q"]}), path)
    with pytest.raises(CorpusError, match="give --context_column, for example contexts"):
        read_columns(path)


def test_a_line_is_one_text_alone(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    assert read_columns(tmp_path / "a.txt", {"text_column": "body"})[0] == [
        ("a.txt:0", ("one",)),
        ("a.txt:5", ("two",)),
    ]
    with pytest.raises(CorpusError, match="records of context and question are needed"):
        read_columns(tmp_path / "a.txt")
