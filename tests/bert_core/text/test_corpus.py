import gzip
import json
import lzma
import random
from collections import Counter

import pytest

from bert_core.errors import UserError
from bert_core.text import corpus, sources
from bert_core.text.corpus import read_documents
from bert_core.text.sources import CorpusError, find_parts

PLAIN = "First line.\nSecond line.\n\n\n  Another document.  \n \nThe third.\n"
TITLED = "= One =\nA b c.\n\n== Part ==\nD e.\n= Two =\n\nF g.\n"


def read(*texts, strict=False, text_column="text"):
    dropped = Counter()
    skipped = Counter()
    documents = [
        document
        for part in find_parts([str(text) for text in texts], text_column, skipped)
        for document in read_documents(part, dropped, text_column=text_column, strict=strict)
    ]
    return documents, {reason: n for reason, n in (dropped + skipped).items() if n}


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_blank_lines_divide_documents(tmp_path):
    documents, dropped = read(write(tmp_path / "a.txt", PLAIN))
    assert documents == ["First line.\nSecond line.", "Another document.", "The third."]
    assert dropped == {}


def test_titles_divide_documents_and_headings_are_dropped(tmp_path):
    documents, dropped = read(write(tmp_path / "a.txt", "\n" + TITLED))
    assert documents == ["A b c.\nD e.", "F g."]
    assert dropped == {"heading_lines": 3}


def test_line_ends_byte_order_mark_and_nul(tmp_path):
    documents, dropped = read(write(tmp_path / "a.txt", b"\xef\xbb\xbf= T =\r\na\0b\r\n\r\nc\r\n"))
    assert documents == ["ab\nc"] and dropped == {"heading_lines": 1}


def test_wiki_residue_is_dropped_where_there_are_titles(tmp_path):
    text = (
        '= T =\nAs of 2013[ [update]], x.<br>y<ref name="z"></ref>\n'
        "See [[page|the page]] and [[it]].\n{{a|b}}\n| cell\n! Office\n#if: x\n}}{{\n"
        "1 < 2 and [3] {4} stay\nleft {{over\n"
    )
    documents, dropped = read(write(tmp_path / "a.txt", text))
    assert documents == [
        "As of 2013, x. y\nSee the page and it.\n1 < 2 and [3] {4} stay\nleft  over"
    ]
    assert dropped["wiki_markup_lines"] == 5 and dropped["wiki_markup_characters"] > 30
    documents, dropped = read(write(tmp_path / "b.txt", "a {{b}} <br>\n| c\n"))
    assert documents == ["a {{b}} <br>\n| c"] and dropped == {}


@pytest.mark.parametrize("titled", [True, False])
@pytest.mark.parametrize("end_of_line", ["\n", "\r\n"])
def test_parts_of_a_file_give_each_document_once(tmp_path, monkeypatch, titled, end_of_line):
    draw = random.Random(titled)
    pieces = []
    for number in range(120):
        lines = [f"é {number} " * draw.randint(1, 9) for _ in range(draw.randint(1, 4))]
        body = end_of_line.join(lines)
        blank = end_of_line * draw.randint(2, 4)
        pieces.append(f"= {number} ={end_of_line}{body}{blank}" if titled else body + blank)
    path = write(tmp_path / "a.txt", "".join(pieces))
    whole, _ = read(path)
    assert len(whole) == 120
    for part_bytes in [1, 2, 3, 7, 30, 100, 101, 1000]:
        monkeypatch.setattr(sources, "PART_BYTES", part_bytes)
        assert read(path)[0] == whole


def test_parts_of_a_jsonl_file_give_each_record_once(tmp_path, monkeypatch):
    path = write(
        tmp_path / "a.jsonl", "\n".join(json.dumps({"text": str(n) * n}) for n in range(30))
    )
    monkeypatch.setattr(sources, "PART_BYTES", 17)
    assert read(path)[0] == [str(n) * n for n in range(1, 30)]


def test_compressed_files_say_the_same(tmp_path):
    write(tmp_path / "a.txt", TITLED)
    write(tmp_path / "b.txt.xz", lzma.compress(TITLED.encode()))
    write(tmp_path / "c.txt.gz", gzip.compress(TITLED.encode()))
    for name in ("a.txt", "b.txt.xz", "c.txt.gz"):
        assert read(tmp_path / name)[0] == ["A b c.\nD e.", "F g."]


@pytest.mark.parametrize("compress", [lzma.compress, gzip.compress])
def test_a_truncated_archive_is_named(tmp_path, compress):
    suffix = "xz" if compress is lzma.compress else "gz"
    content = compress(random.Random(1).randbytes(5000).hex().encode())
    path = write(tmp_path / f"a.txt.{suffix}", content[:-2000])
    with pytest.raises(CorpusError, match=r"a\.txt"):
        read(path)
    with pytest.raises(CorpusError, match="cannot read to the end"):
        read(write(tmp_path / f"b.txt.{suffix}", b"no archive"))


def test_invalid_utf8_is_counted_or_refused(tmp_path):
    path = write(tmp_path / "a.txt", b"fine\nbad \xff\xfe byte \xef\xbf\xbd\n")
    documents, dropped = read(path)
    assert documents == ["fine\nbad �� byte �"]
    assert dropped == {"invalid_utf8_characters_replaced": 2}
    with pytest.raises(CorpusError, match=r"a\.txt, byte 9"):
        read(path, strict=True)


def test_jsonl(tmp_path):
    records = [
        '{"text": "a\\n\\nb"}',
        '{"text": null}',
        "{bad",
        '"text"',
        '{"text": "\\ud800c"}',
        "",
    ]
    path = write(tmp_path / "a.jsonl", "\n".join(records))
    documents, dropped = read(path)
    assert documents == ["a\nb", "?c"]
    assert dropped == {"records_without_text": 2, "invalid_json_lines": 1}
    with pytest.raises(CorpusError, match="invalid JSON"):
        read(path, strict=True)
    with pytest.raises(CorpusError, match="no column 'txet'.*for example text"):
        read(path, text_column="txet")


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"body": [f"document {n}" for n in range(10)] + [None], "id": range(11)})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    documents, dropped = read(tmp_path / "a.parquet", text_column="body")
    assert documents == [f"document {n}" for n in range(10)]
    assert dropped == {"records_without_text": 1}
    with pytest.raises(CorpusError, match="for example body"):
        read(tmp_path / "a.parquet", text_column="bodies")
    with pytest.raises(CorpusError, match="damaged parquet"):
        read(write(tmp_path / "b.parquet", b"PAR1 no"))


def make_folder(folder):
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    write(folder / "b.txt", "b")
    write(folder / "deep" / "a.jsonl", '{"text": "a"}')
    write(folder / "c.txt.gz", gzip.compress(b"c"))
    write(folder / "notes.md", "not read")
    write(folder / ".hidden" / "d.txt", "not read")
    return folder


def test_folders_and_globs_are_read_in_the_order_of_their_paths(tmp_path):
    folder = make_folder(tmp_path / "texts")
    assert read(folder) == (["b", "c", "a"], {"files_of_unknown_format": 1})
    assert read(folder / "*.txt*")[0] == ["b", "c"]
    assert read(folder / "**" / "*.jsonl", folder / "b.txt")[0] == ["a", "b"]


def test_addresses_are_read_through_pyarrow(tmp_path):
    pytest.importorskip("pyarrow")
    folder = make_folder(tmp_path / "texts")
    address = folder.as_uri()
    assert read(f"{address}/b.txt")[0] == ["b"]
    assert read(f"{address}/*.txt*")[0] == ["b", "c"]
    found, skipped = read(address)
    assert {"a", "b", "c"} <= set(found) and skipped == {"files_of_unknown_format": 1}
    with pytest.raises(CorpusError, match="no text files at this address"):
        read(f"{address}/none.txt")
    with pytest.raises(CorpusError, match="no such kind of address"):
        read("ftp://somewhere/a.txt")


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path):
    write(tmp_path / "a.doc", "x")
    (tmp_path / "empty").mkdir()
    for text, message in [
        (tmp_path / "absent.txt", "no such file or folder"),
        (tmp_path / "*.txt", "no such file or folder"),
        (tmp_path / "empty", "no text files"),
        (tmp_path / "a.doc", "unknown text format"),
        ("docs://no_such_package", "no such package"),
    ]:
        with pytest.raises(UserError, match=message) as caught:
            read(text)
        assert "\n" not in str(caught.value)


def test_datasets_of_hugging_face_need_their_package(tmp_path):
    try:
        import datasets  # noqa: F401
    except ImportError:
        with pytest.raises(CorpusError, match=r"pip install 'bertline\[datasets\]'"):
            read("hf://org/name:config:train")
        return
    write(tmp_path / "a.jsonl", '{"text": "a"}\n{"text": "b"}\n')
    assert read(f"hf://{tmp_path}")[0] == ["a", "b"]


def test_a_document_without_end_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "MAX_DOCUMENT_BYTES", 1000)
    monkeypatch.setattr(corpus, "_MAX_LINE_BYTES", 100)
    text = "\n".join(["é" * 40 + " word"] * 50)
    for path in (
        write(tmp_path / "a.txt", text),
        write(tmp_path / "a.jsonl", json.dumps({"text": text})),
    ):
        documents, dropped = read(path)
        assert "\n".join(documents) == text
        assert dropped["documents_cut_for_length"] == len(documents) - 1 > 3
        assert max(len(document.encode()) for document in documents) < 1200


@pytest.mark.parametrize("word", ["wörd ", "é", "漢", "🎈", "a"])
def test_a_line_without_end_is_cut_between_characters(tmp_path, monkeypatch, word):
    monkeypatch.setattr(corpus, "_MAX_LINE_BYTES", 64)
    path = write(tmp_path / "a.txt", word * 300)
    documents, dropped = read(path)
    assert "".join(documents[0].split()) == "".join((word * 300).split())
    assert dropped["lines_cut_for_length"] > 3 and len(dropped) == 1
    assert max(len(line.encode()) for line in documents[0].split("\n")) <= 64
