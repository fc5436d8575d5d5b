import json

import pytest

from bert_core.text import corpus as records
from bert_core.text import sources
from bert_core.text.sources import CorpusError


def write_file(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_jsonl(tmp_path, read):
    records = [
        '{"text": "a\\n\\nb"}',
        '{"text": null}',
        "{bad",
        '"text"',
        '{"text": "\\ud800c"}',
        "",
    ]
    path = write_file(tmp_path / "a.jsonl", "\n".join(records))
    documents, dropped = read(path)
    assert documents == ["a\nb", "?c"]
    assert dropped == {"records_without_text": 2, "invalid_json_lines": 1}
    with pytest.raises(CorpusError, match="invalid JSON"):
        read(path, strict=True)
    with pytest.raises(CorpusError, match="no column 'txet'.*for example text"):
        read(path, text_column="txet")


def test_parquet(tmp_path, read):
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"body": [f"document {n}" for n in range(10)] + [None], "id": range(11)})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    documents, dropped = read(tmp_path / "a.parquet", text_column="body")
    assert documents == [f"document {n}" for n in range(10)]
    assert dropped == {"records_without_text": 1}
    with pytest.raises(CorpusError, match="for example body"):
        read(tmp_path / "a.parquet", text_column="bodies")
    with pytest.raises(CorpusError, match="damaged parquet"):
        read(write_file(tmp_path / "b.parquet", b"PAR1 no"))


def test_parts_of_a_jsonl_file_give_each_record_once(tmp_path, monkeypatch, read):
    path = write_file(
        tmp_path / "a.jsonl", "\n".join(json.dumps({"text": str(n) * n}) for n in range(30))
    )
    monkeypatch.setattr(sources, "PART_BYTES", 17)
    assert read(path)[0] == [str(n) * n for n in range(1, 30)]


def test_a_long_record_is_read_and_one_that_is_too_long_refused(tmp_path, monkeypatch, read):
    long = "a sentence of it. " * (17 * 2**20 // 18)
    path = write_file(tmp_path / "a.jsonl", f'{{"text": "short"}}\n{json.dumps({"text": long})}\n')
    documents, dropped = read(path)
    assert documents[0] == "short" and "".join(documents[1:]).replace("\n", "") == long.strip()
    assert set(dropped) <= {"documents_cut_for_length"}
    monkeypatch.setattr(records, "MAX_RECORD_BYTES", 1 << 20)
    with pytest.raises(CorpusError, match=r"a record of more than 1 MiB: .*a\.jsonl, byte 18"):
        read(path)
