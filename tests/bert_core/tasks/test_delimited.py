"""TSV and CSV as programs write them, and lines that are lost: named, counted or refused."""

import csv
import re
import tracemalloc

import pytest

from bert_core.tasks.classification import Classification
from bert_core.tasks.tables import TaskDataError, read_table


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
    "lines",
    [['"Great!"\tpos', '"Bad"\tneg'], ['"a"\t"b"'], ['""""\tx', *["a b\tx"] * 20]],
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
