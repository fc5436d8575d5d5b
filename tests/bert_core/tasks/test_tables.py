"""TSV and CSV as programs write them, and lines that are lost: named, counted or refused."""

import csv
import gzip
import json
import re
import tracemalloc

import pytest

from bert_core.hub import HubError
from bert_core.tasks.classification import Classification
from bert_core.tasks.tables import (
    OTHER_SUFFIXES,
    TABLE_SUFFIXES,
    TaskDataError,
    column,
    read_split,
    read_table,
    split_file,
)


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
    with pytest.raises(TaskDataError, match=r"1 columns, expected 2: .*a.tsv:3 .*skip_ragged"):
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


@pytest.mark.parametrize("good", [0, 1, 7])
def test_the_remedy_for_many_ragged_lines_helps(tmp_path, good):
    lines = ["a\tb", *["1\t2"] * good, *["3"] * 13]
    with pytest.raises(TaskDataError) as refused:
        rows(tmp_path / "a.tsv", *lines, skip_ragged=True)
    told = re.search(r"--options.max_skipped ([\d.]+) ", refused.value.remedy)
    assert told
    task = Classification(skip_ragged=True, max_skipped=float(told[1]))
    found = rows(tmp_path / "a.tsv", *lines, skip_ragged=True, max_skipped=task.max_skipped)
    assert len(found) == good


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
@pytest.mark.parametrize("first", ["one", "1,2,3,4"])
def test_without_a_header_most_lines_say_how_many_columns_there_are(tmp_path, name, first):
    lines = [first, *["1,2"] * 400]
    if name == "a.tsv":
        lines = [line.replace(",", "\t") for line in lines]
    found = rows(tmp_path / name, *lines, header=False, skip_ragged=True)
    assert found == [(number, "1|2") for number in range(2, 402)]
    with pytest.raises(TaskDataError, match=rf"columns, expected 2: .*{name}:1 "):
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


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        (['"text"\t"label"', '"a"\t1'], {}),
        (['"text"\tlabel', "a\t1"], {}),
        (["text\tlabel", '"She said ""no"""\t1', "b\t0"], {}),
        (["text\tlabel", *['"a"\t1', '"b"\t0'] * 5], {}),
        (['"a"\t1', '"b"\t0'] * 5, {"header": False}),
        (["text\tlabel", '"a\tb"\t1'], {}),
        (["text\tlabel", '"a', 'b"\t1'], {}),
    ],
)
def test_tsv_whose_quotes_enclose_cells_is_sent_to_csv(tmp_path, lines, options):
    with pytest.raises(TaskDataError, match=r"a.tsv:\d.*rename the file to .csv"):
        rows(tmp_path / "a.tsv", *lines, **options)
    found = rows(tmp_path / "a.csv", *lines, **options)
    assert found and not any(value.startswith('"') for _, value in found), "the remedy helps"


def test_tsv_whose_quotes_may_enclose_cells_is_told(tmp_path, caplog):
    quoted = ["text\tlabel", '"Yes, sir"\t1', "no\t0"]
    assert rows(tmp_path / "a.tsv", *quoted)[0] == (2, '"Yes, sir"|1')
    assert '1 cells in quotes, as "Yes, sir"' in caplog.text and "a.tsv:2" in caplog.text
    caplog.clear()
    spoken = ["text\tlabel", '"Yes"\t1', '"No," she said\t0', 'an 8" disk\t0', '" "" "\t1']
    assert len(rows(tmp_path / "b.tsv", *spoken)) == 4
    assert not caplog.text, "quotes elsewhere are no marks of CSV"


@pytest.mark.parametrize(
    "lines", [['"Great!"\tpos', '"Bad"\tneg'], ['"a"\t"b"'], ['""""\tx', *["a b\tx"] * 20]]
)
def test_tsv_of_few_quotes_is_read_and_told(tmp_path, caplog, lines):
    assert len(rows(tmp_path / "a.tsv", "text\tlabel", *lines)) == len(lines)
    assert "in quotes" in caplog.text


def test_a_long_cell_in_quotes_costs_little(tmp_path):
    tracemalloc.start()
    try:
        rows(tmp_path / "a.tsv", "text\tlabel", f'"{"a" * 2_000_000}"\tx')
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_empty_rows_between_others_are_counted_those_below_are_not(tmp_path, caplog, name):
    divider = "\t" if name.endswith("tsv") else ","
    row, empty = divider.join("ab"), divider
    assert len(rows(tmp_path / name, row, *[row] * 300, empty, empty)) == 300
    assert not caplog.text
    assert len(rows(tmp_path / name, row, *[row] * 300, empty, row)) == 301
    assert re.search(rf"1 of 302 lines .*all cells are empty.*{name}:302", caplog.text)
    with pytest.raises(TaskDataError, match=r"1 of 3 lines in which all cells are empty"):
        rows(tmp_path / name, row, row, empty, row)


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
    with pytest.raises(TaskDataError, match="lone surrogate.*a.jsonl:2"):
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
    for name in ("train.json", "train.tsv"):  # rarer endings count where there are no others
        (tmp_path / name).touch()
        assert split_file(tmp_path, "train", TABLE_SUFFIXES, OTHER_SUFFIXES).name == name


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
        ('[{"a": "\\ud83d"}]', "lone surrogate.*record 0"),
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


@pytest.fixture
def typed(hub_copy):
    """A data set whose test split hides the classes."""
    from datasets import ClassLabel, List, Value

    features = {
        "text": Value("string"),
        "label": ClassLabel(names=["bad", "good"]),
        "tags": List(ClassLabel(names=["O", "B-PER"])),
        "number": Value("int64"),
    }
    columns = {"text": ["a", "b"], "label": [1, 0], "tags": [[0, 1], []], "number": [1, 0]}
    hidden = {"text": ["c"], "label": [-1], "tags": [[-1, -1]], "number": [-1]}
    return hub_copy(
        features,
        train=columns,
        validation_matched=columns,
        validation_mismatched=columns,
        test=hidden,
    )


def test_classes_have_their_names_and_hidden_ones_none(typed):
    first, second = read_split(typed, "train")
    assert first.values == {"text": "a", "label": "good", "tags": ["O", "B-PER"], "number": 1}
    assert second.values == {"text": "b", "label": "bad", "tags": [], "number": 0}
    assert [first.where, second.where] == [f"{typed}, train, row {n}" for n in range(2)]
    (hidden,) = read_split(typed, "test")
    assert hidden.values == {"text": "c", "label": None, "tags": None, "number": -1}


def test_splits_have_the_names_that_we_give_them(typed):
    for split, name in (
        ("dev", "validation_matched"),
        ("dev_mismatched", "validation_mismatched"),
        ("validation_matched", "validation_matched"),
    ):
        assert next(read_split(typed, split)).where == f"{typed}, {name}, row 0"


def test_the_files_of_a_copy_say_the_same_as_the_copy(typed):
    folder = typed.removeprefix("hf://").removesuffix(":small")
    for split in ("train", "dev", "test"):
        of_files, of_hub = (
            [each.values for each in read_split(data, split)] for data in (folder, typed)
        )
        assert of_files == of_hub


def test_a_table_is_a_file_too(tmp_path):
    (tmp_path / "dev.tsv").write_text("a\tb\n")
    (record,) = read_split(tmp_path, "dev", header=False)
    assert record.values == {"0": "a", "1": "b"}


def test_what_is_not_there_is_said(typed):
    with pytest.raises(TaskDataError, match="no extra split: .*train, validation_matched.*extra"):
        read_split(typed, "extra")
    with pytest.raises(TaskDataError, match=r"a split in the address: .*--split"):
        read_split(f"{typed}:train", "train")
    with pytest.raises(HubError, match="'other' not found"):
        read_split(typed.replace("small", "other"), "train")
