"""A part of a file of texts -> its records, each with its place and the columns asked for."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bert_core.text.reading.lines import read_lines
from bert_core.text.reading.sources import (
    CorpusError,
    CorpusPart,
    damaged_file,
    missing_column,
    open_part,
)

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_LINE_BYTES = 64 << 20
_ROWS_AT_ONCE = 256


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
    *,
    strict: bool,
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
        for offset, line in read_lines(stream, part, _MAX_LINE_BYTES, dropped, strict):
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
