import gzip
import json

import pytest

from bert_core.tasks.tables import (
    OTHER_SUFFIXES,
    TABLE_SUFFIXES,
    TaskDataError,
    column,
    read_table,
    split_file,
)


def test_quotes_are_letters_in_tsv_and_marks_in_csv(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b'\xef\xbb\xbfa\tb\r\n"x\ty"\n\n1\t\n')
    found = [dict(each.values) for each in read_table(tmp_path / "a.tsv")]
    assert found == [{"a": '"x', "b": 'y"'}, {"a": "1", "b": ""}]
    (tmp_path / "a.csv").write_text('a,b\n"x, ""y""","two\nlines"\n')
    (record,) = read_table(tmp_path / "a.csv")
    assert record.values == {"a": 'x, "y"', "b": "two\nlines"}


def test_a_table_without_a_header_counts_its_columns(tmp_path):
    (tmp_path / "a.tsv").write_text("x\ty\n1\t2\n")
    found = [dict(each.values) for each in read_table(tmp_path / "a.tsv", header=False)]
    assert found == [{"0": "x", "1": "y"}, {"0": "1", "1": "2"}]


@pytest.mark.parametrize("divided", ["text;label", "text|label", "text,label"])
def test_a_missing_column_says_what_may_be_wrong(tmp_path, divided):
    path = tmp_path / "a.tsv"
    path.write_text(f"{divided}\nx\n")
    (record,) = read_table(path)
    with pytest.raises(TaskDataError, match="no column text: .*seems to be divided by"):
        column(record, "text")
    path.write_text("a fine film\t1\na poor one\t0\n")
    (record,) = read_table(path)
    with pytest.raises(TaskDataError, match="no column text: .*--no-options.header"):
        column(record, "text")


@pytest.mark.parametrize(
    "line", ['{"a": "\\ud800"}', '{"\\uDFFF": [{"b": 1}]}', '{"a": ["\\ud83d"]}']
)
def test_half_a_character_is_refused_where_it_is_read(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"a": "\\ud83d\\ude00"}}\n{line}\n')
    records = read_table(path)
    assert next(records).values == {"a": "\U0001f600"}
    with pytest.raises(TaskDataError, match="half a surrogate pair.*a.jsonl:2"):
        next(records)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"text,label,text\na,b,c\n"),
        ("a.tsv", b"text\tlabel\ttext\na\tb\tc\n"),
        ("a.jsonl", b'{"text": "a", "label": "b", "text": "c"}\n'),
    ],
)
def test_two_columns_of_one_name_are_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskDataError, match=rf"two columns called 'text': .*{name}:1 "):
        list(read_table(tmp_path / name))


def test_two_columns_of_one_name_are_refused_in_parquet_too(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [pa.array(["a"]), pa.array(["b"])]
    pq.write_table(pa.Table.from_arrays(columns, ["text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(TaskDataError, match=r"two columns called 'text': .*a\.parquet "):
        list(read_table(tmp_path / "a.parquet"))


def test_columns_without_a_name_may_be_several(tmp_path):
    (tmp_path / "a.csv").write_text("text,label,,\na,b,,\n")
    (record,) = read_table(tmp_path / "a.csv")
    assert (record.values["text"], record.values["label"]) == ("a", "b")


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a.csv", b'a\n"x', "not CSV"),
        ("a.jsonl", b'{"a": 1}\n[1]\n', "not a JSON object: .*a.jsonl:2"),
        ("a.tsv", b"a\n\xff\n", "not UTF-8"),
        ("a.parquet", b"PAR1", "damaged table"),
        ("a.tsv.gz", gzip.compress(b"a\n"), "unknown kind of table"),
    ],
)
def test_what_is_damaged_is_refused(tmp_path, name, content, match):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskDataError, match=match):
        list(read_table(tmp_path / name))


def test_the_file_of_a_split_goes_by_many_names(tmp_path):
    suffixes = (".tsv", ".jsonl")
    (tmp_path / "validation.jsonl").touch()
    assert split_file(tmp_path, "dev", suffixes).name == "validation.jsonl"
    (tmp_path / "dev.tsv").touch()
    assert split_file(tmp_path, "dev", suffixes).name == "dev.tsv", "the first name that is there"
    assert split_file(tmp_path / "dev.tsv", "test", suffixes).name == "dev.tsv"
    with pytest.raises(TaskDataError, match=r"no file of the train split.*name one train.tsv"):
        split_file(tmp_path, "train", suffixes)


def test_the_name_of_a_split_may_follow_another(tmp_path):
    for name in ("eng.train", "eng.testa", "eng.testb", "news-train.tsv", "a_dev.tsv", "test"):
        (tmp_path / name).touch()
    (tmp_path / "old.dev.tsv").mkdir()
    suffixes = (".txt", ".tsv", "")
    assert split_file(tmp_path, "test", suffixes).name == "test", "the name alone comes first"
    assert split_file(tmp_path, "testb", suffixes).name == "eng.testb"
    (tmp_path / "test").unlink()
    assert split_file(tmp_path, "test", suffixes).name == "eng.testb"
    assert split_file(tmp_path, "dev", (".tsv",)).name == "a_dev.tsv"
    assert split_file(tmp_path, "dev", (".txt", "")).name == "eng.testa"
    with pytest.raises(
        TaskDataError, match="several files of the train.*eng.train, news-train.tsv"
    ):
        split_file(tmp_path, "train", suffixes)
    with pytest.raises(TaskDataError, match=r"no file of the extra.*known endings: .txt, .tsv\)"):
        split_file(tmp_path, "extra", suffixes)


def test_classes_that_have_no_name_are_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    written = {
        "ClassLabel": {"names": ["no", "yes"], "_type": "ClassLabel"},
        "Value": {"dtype": "int64", "_type": "Value"},
    }
    for kind, feature in written.items():
        metadata = {"huggingface": json.dumps({"info": {"features": {"label": feature}}})}
        table = pa.table({"label": [1, 2]}).replace_schema_metadata(metadata)
        pq.write_table(table, tmp_path / f"{kind}.parquet")
    assert [each.values["label"] for each in read_table(tmp_path / "Value.parquet")] == [1, 2]
    records = read_table(tmp_path / "ClassLabel.parquet")
    assert next(records).values == {"label": "yes"}
    with pytest.raises(TaskDataError, match="class 2: .*ClassLabel.parquet, row 1 .*there are 2"):
        next(records)


@pytest.mark.parametrize("name", ["train.json", "train.jsonl"])
@pytest.mark.parametrize(
    "text",
    [
        '[{"a": 1}, {"a": "x"}]',
        '\ufeff[\n {"a": 1},\n {"a": "x"}\n]\n\n',
        '{"a": 1}\r\n\r\n{"a": "x"}\r\n',
    ],
)
def test_json_is_a_list_or_an_object_a_line(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode())
    found = list(read_table(split_file(tmp_path, "train", TABLE_SUFFIXES, OTHER_SUFFIXES)))
    assert [each.values for each in found] == [{"a": 1}, {"a": "x"}]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('[{"a": 1},\n {"a": 2}', "not JSON: .*a.json:2"),
        ('[{"a": 1}, 3]', "not a JSON object: .*a.json, record 1"),
        ('[{"a": 1, "a": 2}]', "two columns called 'a': .*a.json"),
        ('[{"a": "\\ud83d"}]', "half a surrogate pair.*record 0"),
        ("[" * 100_000, "not JSON: .*a.json"),
        ('{\n "a": 1\n}', "not JSON: .*a.json:1 .*one object a line, or all in one list"),
    ],
)
def test_damaged_json_lists_are_refused(tmp_path, text, match):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(TaskDataError, match=match):
        list(read_table(tmp_path / "a.json"))


def test_compressed_tables_are_to_be_unpacked(tmp_path):
    (tmp_path / "train.csv.gz").write_bytes(b"")
    for place in (tmp_path, tmp_path / "train.csv.gz"):
        with pytest.raises(TaskDataError, match=r"compressed.*train.csv.gz .unpack it"):
            split_file(place, "train", TABLE_SUFFIXES)
    (tmp_path / "dev.json.gz").write_bytes(b"")
    with pytest.raises(TaskDataError, match="dev.json.gz"):
        split_file(tmp_path, "dev", TABLE_SUFFIXES, OTHER_SUFFIXES)
    assert split_file(tmp_path, "dev", (".json", ".json.gz")).name == "dev.json.gz"


def test_rarer_endings_count_where_there_are_no_others(tmp_path):
    (tmp_path / "train.json").write_bytes(b"")
    found = split_file(tmp_path, "train", TABLE_SUFFIXES, OTHER_SUFFIXES)
    assert found.name == "train.json"
    (tmp_path / "train.tsv").write_bytes(b"")
    found = split_file(tmp_path, "train", TABLE_SUFFIXES, OTHER_SUFFIXES)
    assert found.name == "train.tsv"
