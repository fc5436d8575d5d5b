"""Rows of predictions -> a JSONL or Parquet file, which appears whole or not at all."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_core.disk import written_whole
from workflows.inference.predict_settings import PredictionFormat
from workflows.inference.prediction_request import Kind

if TYPE_CHECKING:
    import pyarrow as pa

Rows = Sequence[dict[str, Any]]


@contextmanager
def prediction_file(
    path: Path, output_format: PredictionFormat, kind: Kind
) -> Iterator[Callable[[Rows], None]]:
    """Opens a file for the rows of a kind of model, and gives what writes some of them.

    A row has `id`, `n_tokens`, `truncated` and the fields of the kind. The file has its name when
    the block ends, and is gone if it ends in an error.
    """
    with written_whole(path) as beside:
        opened = _jsonl(beside) if output_format == "jsonl" else _parquet(beside, kind)
        with opened as write:
            yield write


@contextmanager
def _jsonl(path: Path) -> Iterator[Callable[[Rows], None]]:
    with path.open("w", encoding="utf-8") as file:

        def write(rows: Rows) -> None:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

        yield write


@contextmanager
def _parquet(path: Path, kind: Kind) -> Iterator[Callable[[Rows], None]]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    schema = schema_of(kind)
    with ParquetWriter(path, schema) as writer:

        def write(rows: Rows) -> None:
            writer.write_table(pa.Table.from_pylist(list(rows), schema=schema))

        yield write


def schema_of(kind: Kind) -> "pa.Schema":
    """The columns of the Parquet files of a kind of model."""
    import pyarrow as pa

    text, number, place = pa.string(), pa.float64(), pa.int64()
    scores = pa.list_(pa.struct({"label": text, "score": number}))
    characters = {"text": text, "start": place, "end": place}
    words = {"start_word": place, "end_word": place}
    fields: dict[Kind, dict[str, pa.DataType]] = {
        "label": {"label": text, "scores": scores},
        "labels": {"labels": pa.list_(text), "scores": scores},
        "value": {"value": number},
        "entities": {
            "entities": pa.list_(pa.struct({"type": text, **characters, **words, "score": number}))
        },
        "answers": {
            "answers": pa.list_(pa.struct({**characters, "score": number, "probability": number})),
            "null_score": number,
        },
    }
    return pa.schema({"id": text, "n_tokens": place, "truncated": pa.bool_(), **fields[kind]})
