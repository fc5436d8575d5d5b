"""Parts of files -> single texts, each with its name, in the order of the file.

For what is asked of each text alone; `corpus` reads documents to learn from. A text is a line of a
text file, or a record of a JSONL or Parquet file: a string, or a list of words.
"""

import json
import lzma
import posixpath
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from bert_core.text.corpus import MAX_RECORD_BYTES
from bert_core.text.sources import (
    CorpusError,
    CorpusPart,
    damaged_file,
    is_divisible,
    missing_column,
    open_part,
    read_lines,
)

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_LINE_BYTES = 64 << 20
_ROWS_AT_ONCE = 256
TEXTS_AT_ONCE = 1024
CHARACTERS_AT_ONCE = 1 << 20

T = TypeVar("T")


def text_chunks(
    items: Iterable[T], num_characters: Callable[[T], int], most_characters: int | None = None
) -> Iterator[list[T]]:
    """Yields items in lists of at least one, so that memory holds no more than one list.

    A list has at most `TEXTS_AT_ONCE` items, and at most `most_characters` (`CHARACTERS_AT_ONCE`)
    unless a single item has more.
    """
    most_characters = most_characters or CHARACTERS_AT_ONCE
    chunk: list[T] = []
    total = 0
    for item in items:
        size = num_characters(item)
        if chunk and (len(chunk) >= TEXTS_AT_ONCE or total + size > most_characters):
            yield chunk
            chunk, total = [], 0
        chunk.append(item)
        total += size
    if chunk:
        yield chunk


@dataclass(frozen=True)
class TextPart:
    """What one task reads: a part, or of a large row group of Parquet the rows from `first` on.

    `name` is that of its file, in the ids of texts that bring none.
    """

    part: CorpusPart
    name: str
    first: int = 0
    count: int | None = None

    @property
    def text_bytes(self) -> float:
        """About how much text it holds, for progress only."""
        return self.part.text_bytes

    @property
    def stretch(self) -> str:
        """Which part of its file it is, for people: ", rows 0 to 99 of row group 2"; or nothing."""
        part = self.part
        if part.kind == "parquet" and self.count is not None:
            last = self.first + self.count - 1
            return f", rows {self.first:,} to {last:,} of row group {part.start}"
        return "" if part.end is None else f", bytes {part.start:,} to {part.end:,}"


def records_of(
    text_part: TextPart,
    dropped: Counter[str],
    columns: Mapping[str, str],
    text_columns: Mapping[str, str],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name by place, and the columns, of each record that begins in the part.

    Raises `CorpusError` for a column that is missing or holds no text, and for damaged Parquet.
    `columns` are those asked for, by the option that names them; a line of text stands in the first
    of `text_columns`, those among them that hold texts.
    """
    part, name = text_part.part, text_part.name
    if part.kind == "parquet":
        for row, record in _parquet_records(text_part, columns, text_columns):
            yield f"{name}:{row}", record
        return
    end = float("inf") if part.end is None else part.end
    names: set[str] = set()
    with open_part(part) as stream:
        records = part.kind == "jsonl"
        most = MAX_RECORD_BYTES if records else _MAX_LINE_BYTES
        for offset, line in read_lines(stream, part, most, dropped, records=records):
            if offset >= end:
                break
            if not line:
                dropped["empty_lines"] += part.kind == "text"
                continue
            record: Any = {next(iter(text_columns.values())): line}
            if part.kind == "jsonl":
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    dropped["invalid_json_lines"] += 1
                    continue
                if not isinstance(record, dict):
                    record = {}
                names.update(record)
            yield f"{name}:{offset}", {column: record.get(column) for column in columns.values()}
    for option, column in columns.items():
        if names and column not in names:
            raise missing_column(column, sorted(names), part.path, option)


def _parquet_records(
    text_part: TextPart, columns: Mapping[str, str], text_columns: Mapping[str, str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    part, first = text_part.part, text_part.first
    end = None if text_part.count is None else first + text_part.count
    try:
        with open_part(part) as stream:
            file = ParquetFile(stream)
            for option, column in columns.items():
                if column not in file.schema_arrow.names:
                    raise missing_column(column, file.schema_arrow.names, part.path, option)
            for option, column in text_columns.items():
                _check_type(file.schema_arrow.field(column), part, option)
            before = sum(file.metadata.row_group(group).num_rows for group in range(part.start))
            row = 0
            for batch in file.iter_batches(
                batch_size=_ROWS_AT_ONCE, row_groups=[part.start], columns=list(columns.values())
            ):
                if end is not None and row >= end:
                    break
                low = min(max(first - row, 0), len(batch))
                high = len(batch) if end is None else min(len(batch), end - row)
                mine = batch.slice(low, max(high - low, 0)).to_pylist()
                yield from enumerate(mine, start=before + row + low)
                row += len(batch)
    except ArrowException as error:
        raise damaged_file(part, error) from error


def _check_type(column: "pa.Field", part: CorpusPart, option: str) -> None:
    """Raises `CorpusError` for a column that can hold no text."""
    from pyarrow import types

    kind = column.type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    kind = kind.value_type if types.is_list(kind) or types.is_large_list(kind) else kind
    tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    if not any(test(kind) for test in tests):
        what = f"column {column.name!r} is {column.type}, neither text nor lists of words"
        raise CorpusError(what, part.path, f"give another --{option}")


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
            if part.num_bytes <= part_bytes or not is_divisible(part):
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
) -> Iterator[NamedText]:
    """Yields the texts that begin in a part, and counts by reason what it drops.

    Bytes that are not UTF-8 are replaced and counted. Raises `CorpusError` for damaged files and
    missing columns.
    """
    columns = {"text_column": text_column}
    for record in read_records(text_part, dropped, columns, id_column=id_column):
        yield NamedText(record.id, record.texts[0])


def read_records(
    text_part: TextPart,
    dropped: Counter[str],
    text_columns: Mapping[str, str],
    *,
    id_column: str | None = None,
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
        for place, record in records_of(text_part, dropped, columns, text_columns):
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
    words = text if isinstance(text, list) else [text]
    if not all(isinstance(word, str) for word in words):
        return "records_without_text"
    for word in words:
        if not word.isascii():
            try:
                word.encode()
            except UnicodeEncodeError:  # JSON can name one half of a character
                return "records_with_half_a_character"
    return None
