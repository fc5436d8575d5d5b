"""Parts of text files -> documents: one string each, one paragraph a line.

A text file whose first line is `= Title =` has a document per title, one whose first line is a tag
`<doc id=… title=…>` a document per tag, as WikiExtractor writes them; any other has a blank line
between documents. Headings and markup residue of the first two are dropped. A text file whose first
line is a JSON object with the text column is read as records.
"""

import json
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import IO

from bert_core.hub import HubAddress, load_hub_data
from bert_core.text.documentation import read_documentation
from bert_core.text.sources import (
    CorpusError,
    CorpusPart,
    damaged_file,
    missing_column,
    open_part,
    read_lines,
)
from bert_core.text.wiki import (
    clean_wiki_line,
    doc_tag_end,
    is_doc_tag,
    is_prologue,
    is_title,
    is_title_of,
    is_wiki_record,
)

MAX_DOCUMENT_BYTES = 4 << 20
"""A longer document is cut at a line's end, so that no task ever holds more."""

_MAX_LINE_BYTES = 1 << 20
_MAX_TAG_LINES = 8
_DOC_END, _DOC_ENDS = "</doc>", re.compile(r"(</doc>)(?=\s*(?:<doc[\s>]|$))", re.IGNORECASE)
_RECORD = re.compile(r'\{\s?"[^"\\]{1,100}"\s?:')


def read_documents(
    part: CorpusPart, dropped: Counter[str], *, text_column: str = "text", strict: bool = False
) -> Iterator[str]:
    """Yields the documents that begin in a part, and counts by reason what it drops.

    A document is at most `MAX_DOCUMENT_BYTES` long and holds no NUL. Bytes that are not UTF-8 are
    replaced and counted, or refused if `strict`.
    Raises `CorpusError` for damaged files, with the byte where they are wrong.
    """
    if part.kind == "documentation":
        yield from _cut(read_documentation(part.path, dropped), dropped)
    elif part.kind == "hugging_face":
        yield from _cut(read_dataset(part, dropped, text_column), dropped)
    elif part.kind == "task":
        yield from _cut(read_task_texts(part), dropped)
    elif part.kind == "parquet":
        yield from _cut(read_parquet(part, dropped, text_column), dropped)
    else:
        try:
            with open_part(part) as stream:
                if part.kind == "jsonl":
                    yield from _cut(read_jsonl(stream, part, dropped, text_column, strict), dropped)
                else:
                    yield from _read_text(stream, part, dropped, text_column, strict)
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise damaged_file(part, error) from error


def _read_text(
    stream: IO[bytes], part: CorpusPart, dropped: Counter[str], text_column: str, strict: bool
) -> Iterator[str]:
    first = _first_line(stream)
    if _RECORD.match(first) and f'"{text_column}"' in first:
        yield from _cut(read_jsonl(stream, part, dropped, text_column, strict), dropped)
        return
    lines = read_lines(stream, part, _MAX_LINE_BYTES, dropped, strict=strict)
    end = float("inf") if part.end is None else part.end
    if is_title(first):
        divided, clean = _titled_documents(lines, part.start, end), clean_wiki_line
    elif is_doc_tag(first):
        divided, clean = _tagged_documents(lines, part.start, end, dropped), clean_wiki_line
    else:
        divided, clean = _blank_line_documents(lines, part.start, end), _keep_line
    num_bytes = 0
    document: list[str] = []
    for line in divided:
        if line is not None:
            cleaned = clean(line, dropped)
            if cleaned:
                document.append(cleaned)
                num_bytes += len(cleaned.encode()) + 1
        if line is None or num_bytes > MAX_DOCUMENT_BYTES:
            dropped["documents_cut_for_length"] += line is not None
            dropped["empty_documents"] += not document
            if document:
                yield "\n".join(document)
            document, num_bytes = [], 0


def _first_line(stream: IO[bytes]) -> str:
    """The first line that is not blank, at most 64 KiB of it; the stream is at its start again.

    Or the first tag of a document, where nothing but a few tags of other kinds stands before it.
    """
    head = stream.read(1 << 16).removeprefix(b"\xef\xbb\xbf").lstrip()
    stream.seek(0)
    lines = [line.strip().decode("utf-8", "replace") for line in head.split(b"\n", 8)]
    below = next((line for line in lines if line and not is_prologue(line)), "")
    return below if is_doc_tag(below) else lines[0]


def _titled_documents(
    lines: Iterator[tuple[int, str]], start: int, end: float
) -> Iterator[str | None]:
    """Yields the lines of the documents whose title begins in [start, end), None after each."""
    mine = False
    for offset, line in lines:
        if is_title(line):
            if mine:
                yield None
            mine = start <= offset < end
        if mine:
            yield line
        elif offset >= end:
            return
    if mine:
        yield None


def _tagged_documents(
    lines: Iterator[tuple[int, str]], start: int, end: float, dropped: Counter[str]
) -> Iterator[str | None]:
    """Yields the lines of the documents whose tag begins in [start, end), None after each.

    WikiExtractor repeats the title below the tag.
    """
    tag, below_tag = "", False
    for offset, line in _tags_apart(lines):
        if is_doc_tag(line) or line == _DOC_END:
            if tag:
                yield None
            tag = line if line != _DOC_END and start <= offset < end else ""
            below_tag = True
        elif not tag:
            if offset >= end:
                return
        elif line:
            if below_tag and is_title_of(line, tag):
                dropped["heading_lines"] += 1
            else:
                yield line
            below_tag = False
    if tag:
        yield None


def _tags_apart(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The lines, with each tag that begins or ends a document whole on a line of its own."""
    for offset, line in lines:
        for piece in _DOC_ENDS.split(line) if "</" in line else [line]:
            text = piece.strip()
            if is_doc_tag(text):
                yield from _whole_tag(offset, text, lines)
            elif text or not line:
                yield offset, text.lower() if _DOC_ENDS.fullmatch(text) else text


def _whole_tag(
    offset: int, line: str, lines: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, str]]:
    """The tag that a line begins with, to its end in one of the next lines, and what follows it."""
    pieces = [(offset, line)]
    while not (end := doc_tag_end(line)) and len(pieces) < _MAX_TAG_LINES:
        pieces += [next(lines, (offset, ">"))]
        line = " ".join(piece for _, piece in pieces)
    if not end:
        yield from pieces
        return
    yield offset, line[:end]
    if line[end:].strip():
        yield offset, line[end:].strip()


def _blank_line_documents(
    lines: Iterator[tuple[int, str]], start: int, end: float
) -> Iterator[str | None]:
    """Yields the lines of documents whose blank line before begins in [start, end), None after."""
    blank_before = 0 if start == 0 else None
    inside = False
    for offset, line in lines:
        if not line:
            if inside:
                yield None
            inside, blank_before = False, offset
            continue
        if blank_before is not None and not inside:
            if blank_before >= end:
                return
            inside = True
        if inside:
            yield line
        elif offset >= end:
            return
    if inside:
        yield None


def _keep_line(line: str, _: Counter[str]) -> str:
    return line


def _cut(texts: Iterator[str], dropped: Counter[str]) -> Iterator[str]:
    """Strips the lines of whole texts, and cuts those that are too long for one document."""
    for text in texts:
        text = text.encode("utf-8", "replace").decode().replace("\0", "")
        lines = [stripped for line in text.split("\n") if (stripped := line.strip())]
        dropped["empty_documents"] += not lines
        if len(text) * 4 <= MAX_DOCUMENT_BYTES and lines:
            yield "\n".join(lines)
        elif lines:
            yield from _cut_lines(lines, dropped)


def _cut_lines(lines: list[str], dropped: Counter[str]) -> Iterator[str]:
    document: list[str] = []
    num_bytes = 0
    for line in lines:
        for begin in range(0, len(line), _MAX_LINE_BYTES):
            stretch = line[begin : begin + _MAX_LINE_BYTES]
            size = len(stretch.encode()) + 1
            if document and num_bytes + size > MAX_DOCUMENT_BYTES:
                dropped["documents_cut_for_length"] += 1
                yield "\n".join(document)
                document, num_bytes = [], 0
            document.append(stretch)
            num_bytes += size
    yield "\n".join(document)


MAX_RECORD_BYTES = 256 << 20
"""A longer line of JSON is refused: it is held in memory several times over."""


def read_jsonl(
    stream: IO[bytes], part: CorpusPart, dropped: Counter[str], text_column: str, strict: bool
) -> Iterator[str]:
    """Yields the texts of the records that begin in the part; invalid lines are counted.

    Raises `CorpusError` if no record has the column.
    """
    end = float("inf") if part.end is None else part.end
    names: set[str] = set()
    lines = read_lines(stream, part, MAX_RECORD_BYTES, dropped, strict=strict, records=True)
    for offset, line in lines:
        if offset >= end:
            break
        if not line:
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if strict:
                where = f"{part.path}, byte {offset}"
                raise CorpusError("invalid JSON", where, "fix or remove the line") from error
            dropped["invalid_json_lines"] += 1
            continue
        text = None
        if not names and isinstance(record, list) and record and isinstance(record[0], dict):
            raise CorpusError("a list of records", part.path, "write one record a line")
        if isinstance(record, dict):
            names.update(record)
            text = record.get(text_column)
            if isinstance(text, str) and is_wiki_record(record):
                cleaned = (clean_wiki_line(line.strip(), dropped) for line in text.split("\n"))
                text = "\n".join(cleaned)
        yield from _strings([text], dropped)
    if names and text_column not in names:
        raise missing_column(text_column, sorted(names), part.path)


def read_parquet(part: CorpusPart, dropped: Counter[str], text_column: str) -> Iterator[str]:
    """Yields the texts of one row group; raises `CorpusError` for a damaged file."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with open_part(part) as stream:
            batches = ParquetFile(stream).iter_batches(
                batch_size=256, row_groups=[part.start], columns=[text_column]
            )
            for batch in batches:
                yield from _strings(batch.column(0).to_pylist(), dropped)
    except (ArrowException, OSError) as error:
        raise damaged_file(part, error) from error


def read_dataset(part: CorpusPart, dropped: Counter[str], text_column: str) -> Iterator[str]:
    """Yields the texts of `hf://OWNER/NAME[:CONFIG[:SPLIT]]`, as a stream.

    Raises `HubError` where it cannot be had, `CorpusError` where it has no such column.
    """
    address = HubAddress.of(part.typed)
    records = load_hub_data(address, split=address.split or "train", streaming=True)
    for record in records:
        if text_column not in record:
            raise missing_column(text_column, list(record), part.typed)
        yield from _strings([record[text_column]], dropped)


def read_task_texts(part: CorpusPart) -> Iterator[str]:
    """Yields each text of a task's training examples once, never of those it is measured on.

    Raises `UserError` for data that cannot be read.
    """
    from bert_core.tasks.catalog import TASKS

    name, _, data = part.path.partition("=")
    task = TASKS[name]
    seen: set[str] = set()
    for example in task.examples(data, "train"):
        for text in task.texts(example):
            if text not in seen:
                seen.add(text)
                yield text


def _strings(values: list[object], dropped: Counter[str]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        else:
            dropped["records_without_text"] += 1
