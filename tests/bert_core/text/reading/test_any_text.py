"""Whatever a file of text holds, texts come out of it, counted drops, or a refusal in one line."""

import gzip
import json
import lzma
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_core.errors import UserError
from bert_core.text.corpus import read_documents
from bert_core.text.sources import find_parts
from bert_core.text.texts import divide, read_records

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
    return all(isinstance(each, str) and each.encode() is not None for each in texts)


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
    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
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
