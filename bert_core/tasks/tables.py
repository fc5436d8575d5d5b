"""Labelled data as tables: a TSV, CSV, JSONL or Parquet file goes in, records come out.

Also finds the file of a split in a data folder, for every task.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_core.errors import UserError

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema, Table

SPLIT_NAMES: dict[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "dev": ("dev", "val", "valid", "validation", "dev_matched", "validation_matched", "testa"),
    "test": ("test", "test_matched", "testb"),
    "dev_mismatched": ("dev_mismatched", "validation_mismatched"),
}
"""What a split may be called, in the name of its file or on the Hugging Face Hub."""


class TaskDataError(UserError):
    """Labelled data that is missing, damaged, or not what the task expects."""


@dataclass(frozen=True)
class Record:
    """One line of a table, its values by column, and where it stands."""

    values: Mapping[str, Any]
    where: str


def split_file(data: str | Path, split: str, suffixes: Sequence[str]) -> Path:
    """The file of a split in a folder, `train.tsv`, or else `eng.train.tsv`, `news_train.tsv`.

    A file given by name is any split. Raises `TaskDataError` where there is none, or more than one,
    and for an address (`docs://`).
    """
    if "://" in str(data):
        raise TaskDataError("this task reads files", str(data), "give a file or folder as --data")
    data = Path(data)
    if data.is_file():
        return data
    if not data.is_dir():
        raise TaskDataError("no such file or folder", str(data), "check --data")
    stems = SPLIT_NAMES.get(split, (split,))
    files = sorted(path for path in data.iterdir() if path.is_file())
    endings = "|".join(map(re.escape, suffixes))
    for before, stem in product(("", "[^.].*[._-]"), stems):
        name = re.compile(f"{before}{re.escape(stem)}(?:{endings})")
        found = [path for path in files if name.fullmatch(path.name)]
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise TaskDataError(
                f"several files of the {split} split", f"{data}: {names}", "keep one"
            )
        if found:
            return found[0]
    known = ", ".join(suffix for suffix in suffixes if suffix)
    raise TaskDataError(
        f"no file of the {split} split",
        str(data),
        f"name one {stems[0]}{suffixes[0]} (known endings: {known})",
    )


TABLE_SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet")


def read_table(path: Path, *, header: bool = True, skip_ragged: bool = False) -> Iterator[Record]:
    """Yields the records of a table; without a header the columns are called 0, 1, ….

    TSV lines are split on tabs alone, quotes are letters (GLUE's files are written so); CSV is
    the dialect of spreadsheets. Raises `TaskDataError` for what is damaged, with its line; with
    `skip_ragged` lines of another number of columns are left out instead.
    """
    reader = {".tsv": _read_tsv, ".csv": _read_csv}.get(path.suffix)
    try:
        if reader is not None:
            yield from _with_columns(reader(path), path, header, skip_ragged)
        elif path.suffix == ".jsonl":
            yield from _read_jsonl(path)
        elif path.suffix == ".parquet":
            yield from _read_parquet(path)
        else:
            raise TaskDataError(
                "unknown kind of table", str(path), f"use one of {', '.join(TABLE_SUFFIXES)}"
            )
    except UnicodeDecodeError as error:
        raise TaskDataError("not UTF-8", str(path), "convert the file") from error
    except csv.Error as error:
        raise TaskDataError(f"not CSV, {error}", str(path), "mend the file") from error


def column(record: Record, name: str) -> Any:  # noqa: ANN401 - a table holds anything
    """The value of a column; raises `TaskDataError` with the nearest name where it is missing."""
    if name in record.values:
        return record.values[name]
    close = get_close_matches(name, record.values, n=1, cutoff=0.5)
    near = f", did you mean {close[0]}" if close else ""
    known = ", ".join(record.values)
    raise TaskDataError(
        f"no column {name}{near}", f"{record.where}: {known}", "name another column"
    )


def text_of(record: Record, name: str) -> str:
    """The text of a column, stripped; raises `TaskDataError` where it is missing or empty."""
    value = column(record, name)
    if not isinstance(value, str) or not value.strip():
        raise TaskDataError(f"no text in column {name}", record.where, "mend or remove the record")
    return value.strip()


def _read_tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            yield number, line.rstrip("\r\n").split("\t")


def _read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        for cells in reader:
            yield reader.line_num, cells


def _with_columns(
    lines: Iterator[tuple[int, list[str]]], path: Path, header: bool, skip_ragged: bool
) -> Iterator[Record]:
    names: list[str] | None = None
    for number, cells in lines:
        if cells in ([], [""]):
            continue
        if names is None:
            names = cells if header else [str(index) for index in range(len(cells))]
            refuse_same_names(names, f"{path}:{number}")
            if header:
                continue
        if len(cells) != len(names):
            if skip_ragged:
                continue
            raise TaskDataError(
                f"{len(cells)} columns where {len(names)} belong",
                f"{path}:{number}",
                "mend the line",
            )
        yield Record(dict(zip(names, cells, strict=True)), f"{path}:{number}")


def refuse_same_names(names: Sequence[str], where: str) -> None:
    """Raises `TaskDataError` where two columns have one name; a table may have several of none."""
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise TaskDataError(f"two columns called {twice[0]!r}", where, "rename or remove one")


def _as_dict(where: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        refuse_same_names([name for name, _ in pairs], where)
    return values


def _read_jsonl(path: Path) -> Iterator[Record]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                values = json.loads(line, object_pairs_hook=partial(_as_dict, where))
            except ValueError as error:
                raise TaskDataError("not JSON", where, "mend the line") from error
            if not isinstance(values, dict):
                raise TaskDataError("not a JSON object", where, 'write {"column": value}')
            yield Record(values, where)


def _read_parquet(path: Path) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path)
        refuse_same_names(table.schema_arrow.names, str(path))
        yield from arrow_records(table.iter_batches(), table.schema_arrow, str(path))
    except (pa.ArrowInvalid, OSError) as error:
        first = str(error).splitlines()[0]
        raise TaskDataError(f"damaged table, {first}", str(path), "restore the file") from error


def arrow_records(
    batches: Iterable["RecordBatch | Table"], schema: "Schema", where: str
) -> Iterator[Record]:
    """Yields the rows of Arrow tables; numbers of classes become their names.

    The names are those that the library `datasets` writes into the metadata of a schema; a class
    of -1, which it has for what is hidden, becomes None.
    """
    classes = _class_names(schema.metadata or {})
    number = 0
    for batch in batches:
        for values in batch.to_pylist():
            place = f"{where}, row {number}"
            named = {name: _named(values[name], classes[name], place) for name in classes}
            yield Record(values | named, place)
            number += 1


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """The names of the classes, of columns of classes and of columns of lists of them."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}  # not written by `datasets`, or without features
    found = {}
    for name, feature in features.items():
        single = feature[0] if isinstance(feature, list) else feature.get("feature", feature)
        if isinstance(single, dict) and single.get("_type") == "ClassLabel":
            found[name] = single.get("names")
    return {name: names for name, names in found.items() if names}


def _named(value: Any, names: Sequence[str], where: str) -> Any:  # noqa: ANN401 - as in the table
    if isinstance(value, list):
        each_named = [_named(each, names, where) for each in value]
        return None if None in each_named else each_named
    if value is None or value == -1:
        return None
    if not 0 <= value < len(names):
        raise TaskDataError(
            f"class {value}", where, f"there are {len(names)}, counted from 0; mend the table"
        )
    return names[value]
