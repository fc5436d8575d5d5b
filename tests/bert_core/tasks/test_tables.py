import csv
import gzip
import json

import pytest

from bert_core.tasks.tables import TaskDataError, column, read_table, split_file


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


def rows(path, *lines, **options):
    """Writes a file of these lines; its records' values and line numbers."""
    path.write_text("".join(f"{line}\n" for line in lines))
    found = list(read_table(path, **options))
    return [
        (int(each.where.rpartition(":")[2]), "|".join(map(str, each.values.values())))
        for each in found
    ]


def test_ragged_lines_are_named_or_left_out_and_told(tmp_path, caplog):
    path = tmp_path / "a.tsv"
    lines = ["a\tb", "1\t2", "3", *["4\t5"] * 98]
    with pytest.raises(TaskDataError, match=r"1 columns where 2 belong: .*a.tsv:3 .*skip_ragged"):
        rows(path, *lines)
    found = rows(path, *lines, skip_ragged=True)
    assert [number for number, _ in found] == [2, *range(4, 102)]
    assert "1 of 100 lines are lost" in caplog.text and "a.tsv:3" in caplog.text


@pytest.mark.parametrize("header", [True, False])
def test_more_than_a_share_of_ragged_lines_is_refused_until_it_is_asked_for(tmp_path, header):
    lines = ["a\tb", *["1\t2"] * 97, "3", "4\t5\t6"]
    with pytest.raises(TaskDataError, match=r"2 of (99|100) lines .*a.tsv:99.*max_skipped 0.02"):
        rows(tmp_path / "a.tsv", *lines, skip_ragged=True, header=header)
    found = rows(tmp_path / "a.tsv", *lines, skip_ragged=True, header=header, max_skipped=0.03)
    assert len(found) == 98 - header


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
@pytest.mark.parametrize("first", ["one", "1,2,3,4"])
def test_without_a_header_most_lines_say_how_many_columns_there_are(tmp_path, name, first):
    lines = [first, *["1,2"] * 400]
    if name == "a.tsv":
        lines = [line.replace(",", "\t") for line in lines]
    found = rows(tmp_path / name, *lines, header=False, skip_ragged=True)
    assert found == [(number, "1|2") for number in range(2, 402)]
    with pytest.raises(TaskDataError, match=rf"columns where 2 belong: .*{name}:1 "):
        rows(tmp_path / name, *lines, header=False)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "a,b\n1,2 x\n3,4\n"),
        ("a.csv", "\ufeffa;b\r\n1;2 x\r\n3;4\r\n"),
        ("a.csv", "a\tb\n\n1\t2 x\n3\t4"),
        ("a.csv", "a,b\r1,2 x\r3,4\r"),
        ("a.csv", '"a","b"\n"1","2 x"\n3,"4"\n'),
        ("a.tsv", "a\tb\r\n1\t2 x\r\n3\t4"),
        ("a.tsv", "a\tb\r1\t2 x\r3\t4\r"),
    ],
)
def test_dividers_and_line_ends_as_programs_write_them(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content.encode())
    assert [dict(each.values) for each in read_table(path)] == [
        {"a": "1", "b": "2 x"},
        {"a": "3", "b": "4"},
    ]


def test_a_carriage_return_within_a_line_is_a_letter(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b"a\tb\n1\r2\t3\n")
    assert [dict(each.values) for each in read_table(path)] == [{"a": "1\r2", "b": "3"}]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ('a,b\n1,2\n"3,4\n5,6\n7,8\n', "a quote that is not closed: .*a.csv:3"),
        ('a,b\n1,2\n\n"x"y,4\n', "not CSV, .*: .*a.csv:4"),
        # A second stray quote closes the first: what lies between them looks like records.
        ('a,b\n"1,2\n3,4\n5,6\n7,8\n9,0\n",1\n2,3\n', "4 of 6 lines .*within quotes.*a.csv:2"),
    ],
)
def test_a_quote_that_swallows_lines_is_named(tmp_path, content, match):
    path = tmp_path / "a.csv"
    path.write_text(content)
    with pytest.raises(TaskDataError, match=match):
        list(read_table(path))
    path.write_text('a,b\n"a, text\n\nof, several\nlines, indeed",1\n2,3\n')
    assert [each.where for each in read_table(path)] == [f"{path}:2", f"{path}:6"]


def test_a_cell_is_as_long_as_it_is_and_the_limit_of_others_stays(tmp_path):
    path = tmp_path / "a.csv"
    long = "word " * 100_000
    path.write_text(f'text,label\n"{long}",1\n{long},2\n')
    before = csv.field_size_limit()
    reader = read_table(path)
    assert next(reader).values == {"text": long, "label": "1"}
    assert csv.field_size_limit() == before, "while another reads"
    assert [each.values["label"] for each in reader] == ["2"]


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
