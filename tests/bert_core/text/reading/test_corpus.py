import gzip
import json
import lzma
import random
from collections import Counter

import pytest

from bert_core.text.reading import corpus, sources
from bert_core.text.reading.sources import CorpusError

PLAIN = "First line.\nSecond line.\n\n\n  Another document.  \n \nThe third.\n"
TITLED = "= One =\nA b c.\n\n== Part ==\nD e.\n= Two =\n\nF g.\n"


def write_file(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_blank_lines_divide_documents(tmp_path, read):
    documents, dropped = read(write_file(tmp_path / "a.txt", PLAIN))
    assert documents == ["First line.\nSecond line.", "Another document.", "The third."]
    assert dropped == {}


def test_titles_divide_documents_and_headings_are_dropped(tmp_path, read):
    documents, dropped = read(write_file(tmp_path / "a.txt", "\n" + TITLED))
    assert documents == ["A b c.\nD e.", "F g."]
    assert dropped == {"heading_lines": 3}


@pytest.mark.parametrize("titled", [True, False])
@pytest.mark.parametrize("end_of_line", ["\n", "\r\n"])
def test_parts_of_a_file_give_each_document_once(tmp_path, monkeypatch, titled, end_of_line, read):
    draw = random.Random(titled)
    pieces = []
    for number in range(120):
        lines = [f"é {number} " * draw.randint(1, 9) for _ in range(draw.randint(1, 4))]
        body = end_of_line.join(lines)
        blank = end_of_line * draw.randint(2, 4)
        pieces.append(f"= {number} ={end_of_line}{body}{blank}" if titled else body + blank)
    path = write_file(tmp_path / "a.txt", "".join(pieces))
    whole, _ = read(path)
    assert len(whole) == 120
    for part_bytes in [1, 2, 3, 7, 30, 100, 101, 1000]:
        monkeypatch.setattr(sources, "PART_BYTES", part_bytes)
        parts = list(sources.find_parts([str(path)], "text", Counter()))
        assert len(parts) == -(-path.stat().st_size // part_bytes)
        assert read(path)[0] == whole


def test_compressed_files_say_the_same(tmp_path, read):
    write_file(tmp_path / "a.txt", TITLED)
    write_file(tmp_path / "b.txt.xz", lzma.compress(TITLED.encode()))
    write_file(tmp_path / "c.txt.gz", gzip.compress(TITLED.encode()))
    for name in ("a.txt", "b.txt.xz", "c.txt.gz"):
        assert read(tmp_path / name)[0] == ["A b c.\nD e.", "F g."]


@pytest.mark.parametrize("compress", [lzma.compress, gzip.compress])
def test_a_truncated_archive_is_named(tmp_path, compress, read):
    suffix = "xz" if compress is lzma.compress else "gz"
    content = compress(random.Random(1).randbytes(5000).hex().encode())
    path = write_file(tmp_path / f"a.txt.{suffix}", content[:-2000])
    with pytest.raises(CorpusError, match=r"a\.txt"):
        read(path)
    with pytest.raises(CorpusError, match="cannot read to the end"):
        read(write_file(tmp_path / f"b.txt.{suffix}", b"no archive"))


def test_a_document_without_end_is_cut(tmp_path, monkeypatch, read):
    monkeypatch.setattr(corpus, "MAX_DOCUMENT_BYTES", 1000)
    monkeypatch.setattr(corpus, "_MAX_LINE_BYTES", 100)
    text = "\n".join(["é" * 40 + " word"] * 50)
    for path in (
        write_file(tmp_path / "a.txt", text),
        write_file(tmp_path / "a.jsonl", json.dumps({"text": text})),
    ):
        documents, dropped = read(path)
        assert "\n".join(documents) == text
        assert dropped["documents_cut_for_length"] == len(documents) - 1 > 3
        assert max(len(document.encode()) for document in documents) < 1200
