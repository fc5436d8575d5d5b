"""Predictions with their examples as a JSONL or Parquet file, a record each, and back."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_core.disk import written_whole
from bert_core.errors import UserError
from bert_core.evaluation.outcomes import outcomes
from bert_core.tasks.tables import read_table
from bert_core.tasks.task import Task

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".jsonl", ".parquet")


def prediction_records(
    task: Task, predictions: Sequence[Mapping[str, Any]], examples: Sequence[Any]
) -> list[dict[str, Any]]:
    """For each example the fields of its `Outcome`, and the whole `prediction`."""
    results = outcomes(task, predictions, examples)
    return [
        asdict(result) | {"prediction": dict(prediction)}
        for result, prediction in zip(results, predictions, strict=True)
    ]


def write_predictions(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes records beside `path` and renames them; its ending, .jsonl or .parquet, decides.

    Raises `UserError` for another ending.
    """
    if path.suffix not in SUFFIXES:
        raise UserError("unknown kind of file", str(path), f"use one of {', '.join(SUFFIXES)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as beside:
        if path.suffix == ".jsonl":
            with beside.open("w", encoding="utf-8") as file:
                for record in records:
                    file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")
        else:
            _write_parquet(records, beside)


def read_predictions(path: Path, task: Task, examples: Sequence[Any]) -> list[dict[str, Any]]:
    """The predictions of such a file, to compare a model with an earlier one.

    Raises `UserError` where they were made for other examples.
    """
    predictions = []
    records = list(read_table(path))
    if len(records) != len(examples):
        raise UserError(
            f"{len(records)} predictions for {len(examples)} examples",
            str(path),
            "compare on the same data",
        )
    for record in records:
        if not {"texts", "prediction"} <= set(record.values):
            raise UserError("not a file of predictions", record.where, "write it with evaluate.py")
        predictions.append(record.values["prediction"])
    results = outcomes(task, predictions, examples)
    for record, result in zip(records, results, strict=True):
        texts = {name: text for name, text in record.values["texts"].items() if text is not None}
        if texts != result.texts:
            raise UserError("a prediction for another text", record.where, result.where)
    return predictions


def _write_parquet(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for record in records for name in record))
    columns = {name: [record.get(name) for record in records] for name in names}
    # Parquet has no structs without fields.
    kept = {name: values for name, values in columns.items() if any(each != {} for each in values)}
    pq.write_table(pa.table({name: _array(values) for name, values in kept.items()}), path)


def _array(values: Sequence[Any]) -> "pa.Array":
    """Typed where all values are of one type, else each as JSON."""
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([json.dumps(each, ensure_ascii=False, default=str) for each in values])
