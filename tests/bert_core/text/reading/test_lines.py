import pytest

from bert_core.text.reading import corpus
from bert_core.text.reading.sources import CorpusError


def write_file(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_invalid_utf8_is_counted_or_refused(tmp_path, read):
    path = write_file(tmp_path / "a.txt", b"fine\nbad \xff\xfe byte \xef\xbf\xbd\n")
    documents, dropped = read(path)
    assert documents == ["fine\nbad �� byte �"]
    assert dropped == {"invalid_utf8_characters_replaced": 2}
    with pytest.raises(CorpusError, match=r"a\.txt, byte 9"):
        read(path, strict=True)


@pytest.mark.parametrize("word", ["wörd ", "é", "漢", "🎈", "a"])
def test_a_line_without_end_is_cut_between_characters(tmp_path, monkeypatch, word, read):
    monkeypatch.setattr(corpus, "_MAX_LINE_BYTES", 64)
    path = write_file(tmp_path / "a.txt", word * 300)
    documents, dropped = read(path)
    assert "".join(documents[0].split()) == "".join((word * 300).split())
    assert dropped["lines_cut_for_length"] > 3 and len(dropped) == 1
    assert max(len(line.encode()) for line in documents[0].split("\n")) <= 64


def test_line_ends_byte_order_mark_and_nul(tmp_path, read):
    documents, dropped = read(
        write_file(tmp_path / "a.txt", b"\xef\xbb\xbf= T =\r\na\0b\r\n\r\nc\r\n")
    )
    assert documents == ["ab\nc"] and dropped == {"heading_lines": 1}


@pytest.mark.parametrize("start", [b"", b"a", b"\xf0\x9f\x8e\x88"])
def test_a_line_of_nothing_but_damaged_characters_ends(tmp_path, monkeypatch, start, read):
    monkeypatch.setattr(corpus, "_MAX_LINE_BYTES", 64)
    documents, dropped = read(write_file(tmp_path / "a.txt", start + b"\x80" * 300))
    assert "".join(documents[0].split("\n")) == start.decode() + "\ufffd" * 300
    assert dropped["invalid_utf8_characters_replaced"] == 300
