"""Records of parts, for texts of several columns; single texts are in test_texts.py."""

import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_core.text.sources import CorpusError, find_parts
from bert_core.text.texts import divide, read_records

COLUMNS = {"context_column": "context", "question_column": "question"}


def read(path, columns=COLUMNS, **options):
    """All records as (id, texts), and what was dropped."""
    dropped = Counter()
    option, column = next(iter(columns.items()))
    parts = divide(list(find_parts([str(path)], column, Counter(), option=option)))
    found = [
        (each.id, each.texts)
        for part in parts
        for each in read_records(part, dropped, columns, **options)
    ]
    return found, +dropped


def test_a_record_has_its_texts_in_the_order_of_the_columns(tmp_path):
    records = [{"question": "q", "context": "c", "id": 5}, {"question": "q", "id": 6}]
    records += [{"question": "q", "context": "\udcff"}, {"question": ["q"], "context": ["c", "d"]}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    found, dropped = read(path, id_column="id")
    assert found == [("5", ("c", "q")), (found[1][0], (["c", "d"], ["q"]))]
    assert found[1][0].startswith("a.jsonl:")
    assert dropped == {"records_without_text": 1, "records_with_half_a_character": 1}


def test_each_column_of_parquet_has_to_hold_texts(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"context": ["c", None], "question": ["q", "r"]}), path)
    assert read(path) == ([("a.parquet:0", ("c", "q"))], {"records_without_text": 1})
    pq.write_table(pa.table({"context": ["c"], "question": [1]}), path)
    with pytest.raises(CorpusError, match="int64, neither .*give another --question_column"):
        read(path)
    pq.write_table(pa.table({"contexts": ["c"], "question": ["q"]}), path)
    with pytest.raises(CorpusError, match="give --context_column, for example contexts"):
        read(path)


def test_a_line_is_one_text_alone(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    assert read(tmp_path / "a.txt", {"text_column": "body"})[0] == [
        ("a.txt:0", ("one",)),
        ("a.txt:5", ("two",)),
    ]
    with pytest.raises(CorpusError, match="records of context and question are needed"):
        read(tmp_path / "a.txt")
