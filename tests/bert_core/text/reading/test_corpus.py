import bz2
import gzip
import json
import lzma
import random
from collections import Counter

import pytest

from bert_core.text import corpus, sources
from bert_core.text.sources import CorpusError

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


EXTRACTED = (
    '<doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="Anarchism">\n'
    "Anarchism\n\nAnarchism is a philosophy.\n\nEtymology.\n\nThe term is &lt;b&gt;old&lt;/b&gt;.\n"
    "\n</doc>\n"
    '<doc id="13" url="https://en.wikipedia.org/wiki?curid=13" title="AT&amp;T">\n'
    "AT&T\n\nIt is a company.\n</doc>\n"
)
RECORDS = [
    {
        "id": "12",
        "revid": "1",
        "url": "https://en.wikipedia.org/wiki?curid=12",
        "title": "Anarchism",
        "text": "Anarchism is a philosophy.\n\nEtymology.\n\nThe term is &lt;b&gt;old&lt;/b&gt;.\n",
    },
    {
        "id": "13",
        "url": "https://en.wikipedia.org/wiki?curid=13",
        "title": "AT&T",
        "text": "It is a company.",
    },
]
PAGES = ["Anarchism is a philosophy.\nThe term is  old .", "It is a company."]


@pytest.mark.parametrize("name", ["a.txt", "wiki_00", "wiki_00.bz2", "b.txt.bz2"])
@pytest.mark.parametrize("records", [False, True])
def test_what_wikiextractor_writes(tmp_path, read, name, records):
    text = "\n".join(map(json.dumps, RECORDS)) + "\n" if records else EXTRACTED
    content = bz2.compress(text.encode()) if name.endswith("bz2") else text.encode()
    folder = tmp_path / "AA"
    folder.mkdir()
    write_file(folder / name, content)
    documents, dropped = read(tmp_path)
    assert documents == PAGES
    assert dropped["heading_lines"] == (1 if records else 3)
    assert dropped["wiki_markup_characters"] > 0


def test_json_lines_of_another_shape_in_a_text_file_stay_text(tmp_path, read):
    line = '{"id": 3, "body": "no column named so"}'
    assert read(write_file(tmp_path / "a.txt", line))[0] == [line]
    assert read(tmp_path / "a.txt", text_column="body")[0] == ["no column named so"]


@pytest.mark.parametrize("part_bytes", [1, 2, 7, 30, 100, 101, 1000])
def test_parts_of_an_extracted_file_give_each_document_once(
    tmp_path, monkeypatch, read, part_bytes
):
    text = "".join(
        f'<doc id="{n}" url="u" title="é {n}">\né {n}\n\n'
        f"{'word ' * (n % 9 + 1)}\n\nmore\n</doc>\n\n"
        for n in range(60)
    )
    path = write_file(tmp_path / "a.txt", text)
    whole = [f"{('word ' * (n % 9 + 1)).strip()}\nmore" for n in range(60)]
    monkeypatch.setattr(sources, "PART_BYTES", part_bytes)
    assert read(path)[0] == whole


def test_what_older_versions_of_wikiextractor_leave(tmp_path, read):
    text = (
        "<doc id='1' url='u' title='A'>\nA\n\nSection::::History.\nBULLET::::- One thing.\n"
        "__NOTOC__\nIt is old.\n</doc>\n"
    )
    documents, dropped = read(write_file(tmp_path / "a.txt", text))
    assert documents == ["One thing.\nIt is old."]
    assert dropped == {"heading_lines": 2, "wiki_markup_lines": 1}


@pytest.mark.parametrize("compressed", [False, True])
def test_lines_that_end_in_a_carriage_return_alone(tmp_path, read, compressed):
    content = "Eins.\rZwö.\r\rDrei.\r".encode()
    name = "a.txt.gz" if compressed else "a.txt"
    path = write_file(tmp_path / name, gzip.compress(content) if compressed else content)
    assert read(path)[0] == ["Eins.\nZwö.", "Drei."]


@pytest.mark.parametrize(
    "text",
    [
        '<DOC ID="1" URL="u" TITLE="A">\nA\nOne.\n</DOC>\n<DOC ID="2" TITLE="B">\nTwo.\n</DOC>\n',
        '<doc id="1"\nurl="u" title="A">\nA\n\nOne.\n</doc>\n<doc\tid="2">\nTwo.\n</doc>\n',
        '<doc id="1" title="A > B">One.</doc>\n<doc id="2" title=\'"B"\'>\nTwo.</doc>',
        '<doc id="1" title="5" disk">\nOne.\n</doc>\n<doc id = "2"\n\n\ntitle="B"\n>\nTwo.\n</doc>',
        "<DOC>\nOne.\n</DOC>\n<DOC>\nTwo.\n</DOC>\n",
        '<doc id="1"><p>One.</p></doc><doc id="2"><p>Two.</p></doc>\n',
        '<?xml version="1.0"?>\n<all>\n<doc x:id="1">\nOne.\n</doc>\n<doc id="2">Two.</doc></all>',
        '<doc id="1"\n title="A',
    ],
)
def test_tags_of_documents_in_other_writing(tmp_path, read, text):
    documents, _ = read(write_file(tmp_path / "a.txt", text))
    assert documents == (["One.", "Two."] if "Two" in text else [])


def test_parts_of_a_file_with_tags_over_two_lines_give_each_document_once(
    tmp_path, monkeypatch, read
):
    path = write_file(
        tmp_path / "a.txt",
        "".join(f'<DOC id="{n}"\ntitle="t{n}">\nword {n}\n</DOC>\n' for n in range(20)),
    )
    for part_bytes in (1, 7, 30, 64):
        monkeypatch.setattr(sources, "PART_BYTES", part_bytes)
        assert read(path)[0] == [f"word {n}" for n in range(20)]


def test_a_list_of_records_in_one_line_is_refused(tmp_path, read):
    path = write_file(tmp_path / "a.jsonl", '[{"text": "a"}, {"text": "b"}]')
    with pytest.raises(CorpusError, match=r"a list of records: .*a.jsonl .write one record a line"):
        read(path)


def test_a_list_between_records_is_a_dropped_line(tmp_path, read):
    path = write_file(tmp_path / "a.jsonl", '{"text": "one two"}\n[{"a": 1}]\n{"text": "three"}\n')
    assert read(path)[0] == ["one two", "three"]


def test_the_end_of_a_document_that_prose_names_ends_none(tmp_path, read):
    text = '<doc id="1" title="T">\nHTML uses </doc> as a tag.\nAfter it.\n</doc>\n'
    (found,) = read(write_file(tmp_path / "wiki_00", text))[0]
    assert "After it." in found
