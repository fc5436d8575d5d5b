"""Parts of files go in; single texts come out, each with its name, in the order of the file.

For what is asked of each text alone; for documents to learn from there is `corpus`. A text is a
line of a text file, or a record of a JSONL or Parquet file: a string, or a list of words.
"""

import json
import lzma
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any

from bert_core.text.reading.lines import read_lines
from bert_core.text.reading.sources import (
    CorpusPart,
    damaged_file,
    missing_column,
    open_part,
)

_MAX_LINE_BYTES = 64 << 20
_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class NamedText:
    """A text or its words, and what it is called: its id, or its file and where it begins there.

    The place is a byte of a text or JSONL file, and a row of a Parquet file.
    """

    id: str
    text: str | list[str]


@dataclass(frozen=True)
class TextPart:
    """What one task reads: a part, or of a large row group of Parquet the rows from `first` on."""

    part: CorpusPart
    first: int = 0
    count: int | None = None

    @property
    def text_bytes(self) -> float:
        """About how much text it holds, for progress only."""
        return self.part.text_bytes


def divide_rows(parts: Iterable[CorpusPart], max_rows: int) -> Iterator[TextPart]:
    """The same parts; row groups of Parquet in stretches of at most `max_rows`."""
    for (_, kind), group in groupby(parts, lambda part: (part.path, part.kind)):
        if kind != "parquet":
            yield from map(TextPart, group)
            continue
        for part, num_rows in _with_rows(list(group)):
            firsts = range(0, num_rows, max_rows)
            shared = replace(part, num_bytes=part.num_bytes // max(len(firsts), 1))
            for first in firsts:
                yield TextPart(shared, first, min(max_rows, num_rows - first))


def _with_rows(parts: list[CorpusPart]) -> list[tuple[CorpusPart, int]]:
    """Row groups of one file, each with the number of its rows."""
    from pyarrow.parquet import ParquetFile

    with open_part(parts[0]) as stream:
        metadata = ParquetFile(stream).metadata
    return [(part, metadata.row_group(part.start).num_rows) for part in parts]


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
    try:
        columns = {"text_column": text_column, **({"id_column": id_column} if id_column else {})}
        found = _records(text_part, dropped, columns, strict=strict)
        for place, record in found:
            text = record[text_column]
            is_words = isinstance(text, list) and all(isinstance(each, str) for each in text)
            if not isinstance(text, str) and not is_words:
                dropped["records_without_text"] += 1
                continue
            name = record[id_column] if id_column else None
            yield NamedText(place if name is None else str(name), text)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise damaged_file(text_part.part, error) from error


def _records(
    text_part: TextPart, dropped: Counter[str], columns: Mapping[str, str], *, strict: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name by place, and the columns, of each record that begins in the part.

    `columns` are those asked for, by the option that names them.
    """
    part = text_part.part
    name = PurePosixPath(part.path).name
    if part.kind == "parquet":
        for row, record in _parquet_records(text_part, columns):
            yield f"{name}:{row}", record
        return
    end = float("inf") if part.end is None else part.end
    names: set[str] = set()
    with open_part(part) as stream:
        for offset, line in read_lines(stream, part, _MAX_LINE_BYTES, dropped, strict):
            if offset >= end:
                break
            if not line:
                dropped["empty_lines"] += part.kind == "text"
                continue
            record: Any = {columns["text_column"]: line}
            if part.kind == "jsonl":
                try:
                    record = json.loads(line)
                except ValueError:
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
    text_part: TextPart, columns: Mapping[str, str]
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
