"""Documents of text files, wiki extracts and records, and whatever else stands in a file."""

import bz2
import gzip
import json
import lzma
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_core.errors import UserError
from bert_core.text import corpus, sources
from bert_core.text import corpus as records
from bert_core.text.corpus import read_documents
from bert_core.text.sources import CorpusError, find_parts
from bert_core.text.texts import divide, read_records
from bert_core.text.wiki import clean_wiki_line, is_doc_tag, is_title

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
    for number in range(40):
        lines = [f"é {number} " * draw.randint(1, 9) for _ in range(draw.randint(1, 4))]
        body = end_of_line.join(lines)
        blank = end_of_line * draw.randint(2, 4)
        pieces.append(f"= {number} ={end_of_line}{body}{blank}" if titled else body + blank)
    path = write_file(tmp_path / "a.txt", "".join(pieces))
    whole, _ = read(path)
    assert len(whole) == 40
    for part_bytes in [1, 7, 30, 101, 1000]:
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


EXTRACTED_PAGE = '<doc id="{n}" url="u" title="é {n}">\né {n}\n\n{words}\n\nmore\n</doc>\n\n'


@pytest.mark.parametrize(
    ("name", "page", "document"),
    [
        ("a.txt", EXTRACTED_PAGE, "{words}\nmore"),
        ("a.txt", '<DOC id="{n}"\ntitle="t{n}">\n{words}\n</DOC>\n', "{words}"),
        ("a.jsonl", '{{"text": "{words}"}}\n', "{words}"),
    ],
)
def test_parts_of_pages_and_records_give_each_once(
    tmp_path, monkeypatch, read, name, page, document
):
    pages = [{"n": n, "words": " ".join(["word"] * (n % 9 + 1))} for n in range(30)]
    path = write_file(tmp_path / name, "".join(page.format(**each) for each in pages))
    for part_bytes in (1, 7, 30, 101, 1000):
        monkeypatch.setattr(sources, "PART_BYTES", part_bytes)
        assert read(path)[0] == [document.format(**each) for each in pages]


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


def test_a_long_record_is_read_and_one_that_is_too_long_refused(tmp_path, monkeypatch, read):
    long = "a sentence of it. " * (17 * 2**20 // 18)
    path = write_file(tmp_path / "a.jsonl", f'{{"text": "short"}}\n{json.dumps({"text": long})}\n')
    documents, dropped = read(path)
    assert documents[0] == "short" and "".join(documents[1:]).replace("\n", "") == long.strip()
    assert set(dropped) <= {"documents_cut_for_length"}
    monkeypatch.setattr(records, "MAX_RECORD_BYTES", 1 << 20)
    with pytest.raises(CorpusError, match=r"a record of more than 1 MiB: .*a\.jsonl, byte 18"):
        read(path)


def test_wiki_residue_is_dropped_where_there_are_titles(tmp_path, read):
    text = (
        '= T =\nAs of 2013[ [update]], x.<br>y<ref name="z"></ref>\n'
        "See [[page|the page]] and [[it]].\n{{a|b}}\n| cell\n! Office\n#if: x\n}}{{\n"
        "1 < 2 and [3] {4} stay\nleft {{over\n"
    )
    documents, dropped = read(write_file(tmp_path / "a.txt", text))
    assert documents == [
        "As of 2013, x. y\nSee the page and it.\n1 < 2 and [3] {4} stay\nleft  over"
    ]
    assert dropped["wiki_markup_lines"] == 5 and dropped["wiki_markup_characters"] > 30
    documents, dropped = read(write_file(tmp_path / "b.txt", "a {{b}} <br>\n| c\n"))
    assert documents == ["a {{b}} <br>\n| c"] and dropped == {}


@pytest.mark.parametrize(
    "line",
    [
        "#switch:",
        "#ifeq: | 1910",
        "#invoke:Coord|x",
        '">em;',
        '">Paleogene',
        "em;",
        "px; width:px;",
        'class="wikitable" style="margin:0.5em auto; font-size:95%;clear:both;"',
        'title="ctx_ver=Z39.88-2004&rft_val_fmt=info"',
        "height:31.9em;",
        "margin: 0 auto 0;",
        'tright" style="width:280px;">',
        "box-shadow: 1px 1px 3px rgba(0,0,0,0.2);",
    ],
)
def test_residue_of_templates_and_tables_is_dropped(line):
    dropped = Counter()
    assert clean_wiki_line(line, dropped) == ""
    assert dropped == {"wiki_markup_lines": 1}


@pytest.mark.parametrize(
    "name",
    [
        *("History", "See also.", "References:", "Weblinks", "参见", "脚注", "出典", "参考资料"),
        *("參考資料", "참고 문헌", "อ้างอิง", "ดูเพิ่ม", "المراجع", "Примечания"),
    ],
)
def test_a_section_name_alone_is_a_heading(name):
    dropped = Counter()
    assert clean_wiki_line(name, dropped) == "" and dropped == {"heading_lines": 1}
    text = f"{name} 東京"
    assert clean_wiki_line(text, dropped) == text


@pytest.mark.parametrize(
    "line",
    [
        "History is written by the victors.",
        "He wrote: #1 was first; all else followed.",
        "Width: see the table; height: unknown.",
        "red: the colour of blood;",
        "x < y and y > z = 3",
        'The value "n">3 is odd.',
        "AT&T &c. and R&D",
    ],
)
def test_ordinary_text_stays(line):
    assert clean_wiki_line(line, Counter()) == line


def test_character_references_are_read():
    line = (
        "Fish &amp; chips&#160;&lt;br&gt;cost &pound;5 &#99999999; &unknown; &#" + "9" * 5000 + ";"
    )
    cleaned = clean_wiki_line(line, Counter())
    assert cleaned.startswith("Fish & chips\xa0 cost £5 &#99999999; &unknown; &#9999")


@pytest.mark.parametrize(
    "repeated", ["=", " =", "= ", "[[", "]]", "{{", "<a", "<!--", "&#1", "a|", '="', "em;", "\t"]
)
def test_no_line_takes_more_than_linear_time(repeated):
    for begin in ("", "=", "[[", "{{", "<doc ", "= ", "margin:"):
        line = begin + repeated * (200_000 // len(repeated)) + "x"
        started = time.process_time()
        clean_wiki_line(line, Counter())
        is_title(line)
        is_doc_tag(line)
        seconds = time.process_time() - started
        assert seconds < 2, begin  # 0.05 s; the quadratic ones would take minutes


ODD = [
    *(b"\n", b"\n\n", b"\r", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b" ", b"\t"),
    *(b"= Title =", b"=" * 300, b"[[", b"{{", b"<doc>", b"</doc>", b"a" * 3000, b"[" * 5000),
    *(b'{"text": "ba"}', b'{"text": 1}', b'{"text": ["ba"]}', b'{"text": "\\ud800"}', b"{}", b"4"),
    *(b'{"id": "\\ud800", "text": "ba"}', b'{"text": ' + b"9" * 5000 + b"}", b"NaN", b'{"text": "'),
]
VALUES = [
    pa.array(["ba", None, "", "keli\0"]),
    pa.array([["ba"], [], None, ["keli", None]]),
    pa.array([b"\xff", b"", None, b"a"]),
    pa.array([1, 2, None, 4]),
    pa.array([None] * 4),
    pa.array(["a", "b", "a", None]).dictionary_encode(),
]
ENDINGS = ("txt", "jsonl", "txt.gz", "jsonl.xz", "parquet")


@st.composite
def any_content(draw, ending):
    """Bytes of such a file, some of which may be changed after all."""
    if ending == "parquet":
        columns = {"text": draw(st.sampled_from(VALUES)), "id": draw(st.sampled_from(VALUES))}
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(columns).slice(0, draw(st.integers(0, 4))), sink)
        content = sink.getvalue().to_pybytes()
    else:
        some = st.lists(st.sampled_from(ODD) | st.binary(max_size=3), max_size=12)
        divider = draw(st.sampled_from([b"\n", b""]))
        content = divider.join(draw(some))
    if ending.endswith("gz"):
        content = gzip.compress(content)
    elif ending.endswith("xz"):
        content = lzma.compress(content)
    if content and draw(st.integers(0, 3)) == 0:
        place = draw(st.integers(0, len(content) - 1))
        content = content[:place] + draw(st.binary(max_size=2)) + content[place + 1 :]
    return content


def is_text(value):
    texts = [value] if isinstance(value, str) else value
    return all(isinstance(text, str) and text.encode() is not None for text in texts)


def read_as_a_corpus(path, strict):
    dropped = Counter()
    for part in find_parts([str(path)], "text", dropped):
        for document in read_documents(part, dropped, strict=strict):
            assert is_text(document) and document.strip() and "\0" not in document


def read_one_by_one(path, id_column):
    dropped = Counter()
    parts = list(find_parts([str(path)], "text", dropped))
    columns = {"text_column": "text"}
    for part in divide(parts, 64):
        for record in read_records(part, dropped, columns, id_column=id_column):
            assert is_text(record.texts[0]) and is_text(record.id)
            json.dumps(record.id, ensure_ascii=False).encode()


@pytest.mark.parametrize("ending", ENDINGS)
def test_any_bytes_give_texts_or_one_line(ending):
    @settings(max_examples=30, deadline=None, derandomize=True, database=None)
    @given(content=any_content(ending), flag=st.booleans())
    def run(content, flag):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"a.{ending}"
            path.write_bytes(content)
            readers = (read_as_a_corpus, flag), (read_one_by_one, "id" if flag else None)
            for read, option in readers:
                try:
                    read(path, option)
                except UserError as error:
                    assert "\n" not in str(error) and error.remedy
                    str(error).encode()

    run()
