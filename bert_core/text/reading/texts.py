"""Parts of files go in; single texts come out, each with its name, in the order of the file.

For what is asked of each text alone; for documents to learn from there is `corpus`. A text is a
line of a text file, or a record of a JSONL or Parquet file: a string, or a list of words.
"""

import lzma
import posixpath
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any

from bert_core.text.reading.sources import CorpusError, CorpusPart, damaged_file, open_part
from bert_core.text.reading.text_records import TextPart, records_of

_WANTED_PARTS, _LEAST_BYTES, _MOST_BYTES = 64, 32 << 10, 512 << 10
_MOST_ROWS = 8192  # of a part, for the bytes of a column say little where its values repeat


@dataclass(frozen=True)
class NamedText:
    """A text or its words, and what it is called: its id, or its file and where it begins there.

    The place is a byte of a text or JSONL file, and a row of a Parquet file.
    """

    id: str
    text: str | list[str]


@dataclass(frozen=True)
class NamedTexts:
    """The texts of a record, or their words, and what it is called, as in `NamedText`."""

    id: str
    texts: tuple[str | list[str], ...]


def divide(parts: Sequence[CorpusPart], part_bytes: int | None = None) -> Iterator[TextPart]:
    """The same text in parts of about `part_bytes`, in the same order.

    By default a 64th of it all, so that progress can be seen, between 32 KiB and 512 KiB. A
    compressed file stays whole.
    """
    if part_bytes is None:
        whole = sum(part.text_bytes for part in parts)
        part_bytes = min(max(int(whole / _WANTED_PARTS), _LEAST_BYTES), _MOST_BYTES)
    names = _names({part.path for part in parts})
    for (path, kind), group in groupby(parts, lambda part: (part.path, part.kind)):
        if kind == "parquet":
            yield from _stretches_of_rows(list(group), names[path], part_bytes)
            continue
        for part in group:
            if part.compression or part.num_bytes <= part_bytes:
                yield TextPart(part, names[path])
            else:
                yield from _stretches_of_bytes(part, names[path], part_bytes)


def _names(paths: Collection[str]) -> dict[str, str]:
    """The name of each file; where two are alike, with the folders below those they share."""
    names = {path: PurePosixPath(path).name for path in paths}
    if len(set(names.values())) == len(names):
        return names
    if len({path.startswith("/") for path in paths}) > 1:  # of this machine, and of addresses
        return {path: path for path in paths}
    shared = posixpath.commonpath([posixpath.dirname(path) for path in paths])
    return {path: posixpath.relpath(path, shared or ".") for path in paths}


def _stretches_of_bytes(part: CorpusPart, name: str, part_bytes: int) -> Iterator[TextPart]:
    end = part.start + part.num_bytes
    for start in range(part.start, end, part_bytes):
        stop = min(start + part_bytes, end)
        yield TextPart(replace(part, start=start, end=stop, num_bytes=stop - start), name)


def _stretches_of_rows(
    row_groups: Sequence[CorpusPart], name: str, part_bytes: int
) -> Iterator[TextPart]:
    from pyarrow.parquet import ParquetFile

    with open_part(row_groups[0]) as stream:
        metadata = ParquetFile(stream).metadata
    for part in row_groups:
        num_rows = metadata.row_group(part.start).num_rows
        at_once = int(num_rows * part_bytes / max(part.num_bytes, 1))
        at_once = min(max(at_once, 1), _MOST_ROWS)
        firsts = range(0, num_rows, at_once)
        shared = replace(part, num_bytes=part.num_bytes // max(len(firsts), 1))
        for first in firsts:
            yield TextPart(shared, name, first, min(at_once, num_rows - first))


def read_texts(
    text_part: TextPart,
    dropped: Counter[str],
    *,
    text_column: str = "text",
    id_column: str | None = None,
    strict: bool = False,
) -> Iterator[NamedText]:
    """Yields the texts that begin in a part, and counts by reason what it drops.

    Bytes that are not UTF-8 are replaced and counted, or refused if `strict`. Raises `CorpusError`
    for damaged files and missing columns.
    """
    columns = {"text_column": text_column}
    for each in read_records(text_part, dropped, columns, id_column=id_column, strict=strict):
        yield NamedText(each.id, each.texts[0])


def read_records(
    text_part: TextPart,
    dropped: Counter[str],
    text_columns: Mapping[str, str],
    *,
    id_column: str | None = None,
    strict: bool = False,
) -> Iterator[NamedTexts]:
    """Yields the texts of the records that begin in a part, as `read_texts` does.

    `text_columns` are the columns of the texts, in their order, by the option that names each. A
    record is dropped where one of them holds no text. Raises `CorpusError`, too, for lines of text
    where a record has several.
    """
    part = text_part.part
    if part.kind == "text" and len(text_columns) > 1:
        names = " and ".join(text_columns.values())
        what = f"lines of text, and records of {names} are needed"
        raise CorpusError(what, part.path, "give .jsonl or .parquet files")
    try:
        columns = {**text_columns, **({"id_column": id_column} if id_column else {})}
        for place, record in records_of(text_part, dropped, columns, text_columns, strict=strict):
            texts = tuple(record[column] for column in text_columns.values())
            if fault := next(filter(None, map(_fault, texts)), None):
                dropped[fault] += 1
                continue
            name = place if not id_column or record[id_column] is None else str(record[id_column])
            if fault := _fault(name):
                dropped[fault] += 1
                continue
            yield NamedTexts(name, texts)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise damaged_file(part, error) from error


def _fault(text: Any) -> str | None:  # noqa: ANN401 - a table holds anything
    """Why something is no text, if so."""
    words = text if isinstance(text, list) else [text]
    if not all(isinstance(each, str) for each in words):
        return "records_without_text"
    for each in words:
        if not each.isascii():
            try:
                each.encode()
            except UnicodeEncodeError:  # JSON can name one half of a character
                return "records_with_half_a_character"
    return None
