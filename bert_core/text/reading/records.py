"""Texts of records: a jsonl or parquet file or a Hugging Face dataset goes in, texts come out."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import IO

from bert_core.hub_data import HubAddress, load_hub_data
from bert_core.text.reading.lines import read_lines
from bert_core.text.reading.sources import (
    CorpusError,
    CorpusPart,
    damaged_file,
    missing_column,
    open_part,
)
from bert_core.text.reading.wiki_markup import clean_wiki_line, is_wiki_record

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
    lines = read_lines(stream, part, MAX_RECORD_BYTES, dropped, strict, records=True)
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
                raise CorpusError("invalid JSON", where, "mend or remove the line") from error
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

    Raises `HubDataError` where it cannot be had, `CorpusError` where it has no such column.
    """
    address = HubAddress.of(part.typed)
    records = load_hub_data(address, split=address.split or "train", streaming=True)
    for record in records:
        if text_column not in record:
            raise missing_column(text_column, list(record), part.typed)
        yield from _strings([record[text_column]], dropped)


def _strings(values: list[object], dropped: Counter[str]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        else:
            dropped["records_without_text"] += 1
