"""Labelled data as tables: reads records from TSV, CSV, JSONL and Parquet, or from the Hub.

Also finds the file of a split in a data folder. `hf://OWNER/NAME[:CONFIG]` is a data set of the
Hugging Face Hub (see `bert_core.hub`).
"""

import json
import re
from ast import literal_eval
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_core.errors import NoSuchSplitError, TaskDataError
from bert_core.hub import SCHEME, HubAddress, load_hub_data
from bert_core.tasks.delimited import (
    MAX_SKIPPED,
    Lines,
    SkippedLines,
    is_blank,
    read_csv,
    read_tsv,
    usual_width,
)
from bert_core.text_encoding import lone_surrogate, open_text

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema, Table

SPLIT_NAMES: dict[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "dev": ("dev", "val", "valid", "validation", "dev_matched", "validation_matched", "testa"),
    "test": ("test", "test_matched", "testb"),
    "dev_mismatched": ("dev_mismatched", "validation_mismatched"),
}
"""What a split may be called, in the name of its file or on the Hugging Face Hub."""


_COMPRESSED = (".gz", ".xz", ".bz2", ".zip", ".zst")


@dataclass(frozen=True)
class Record:
    """One line of a table: its values by column, and its place in the file.

    `has_header` says that the names of the columns come from the first line of the file.
    """

    values: Mapping[str, Any]
    where: str
    has_header: bool = False


def split_file(
    data: str | Path, split: str, suffixes: Sequence[str], others: Sequence[str] = ()
) -> Path:
    """The file of a split in a folder, `train.tsv`, or else `eng.train.tsv`, `news_train.tsv`.

    Files of `others` count where there is none of `suffixes`. A file given by name is any split.
    Raises `TaskDataError` where there is none, or more than one, and for an address (`docs://`).
    """
    if "://" in str(data):
        raise TaskDataError("this task reads files", str(data), "give a file or folder")
    data = Path(data)
    if data.is_file():
        known = any(suffix.endswith(data.suffix) for suffix in suffixes)
        if data.suffix in _COMPRESSED and not known:
            raise TaskDataError("a compressed file", str(data), "unpack it")
        return data
    if not data.is_dir():
        raise TaskDataError("no such file or folder", str(data), "check the path")
    stems = SPLIT_NAMES.get(split, (split,))
    files = sorted(path for path in data.iterdir() if path.is_file())
    for some, before, stem in product((suffixes, others), ("", "[^.].*[._-]"), stems):
        endings = "|".join(map(re.escape, some)) or "(?!)"
        name = re.compile(f"{before}{re.escape(stem)}(?:{endings})")
        found = [path for path in files if name.fullmatch(path.name)]
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise TaskDataError(
                f"several files of the {split} split", f"{data}: {names}", "keep one"
            )
        if found:
            return found[0]
    for path in files:
        if path.suffix in _COMPRESSED and path.name.partition(".")[0] in stems:
            what = f"the file of the {split} split is compressed"
            raise TaskDataError(what, str(path), "unpack it")
    known = ", ".join(suffix for suffix in (*suffixes, *others) if suffix)
    raise NoSuchSplitError(
        f"no file of the {split} split",
        str(data),
        f"name one {stems[0]}{suffixes[0]} (known endings: {known})",
    )


TABLE_SUFFIXES, OTHER_SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet"), (".json",)

HEADERLESS = "--no-options.header (evaluate.py: --options header=false)"
"""How a user says that a table has no header."""

_NO_COMMA = re.compile(r"['\"]\s+['\"]")
_LONGEST_WRITTEN = 100_000
_LONE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_table(
    path: Path, *, header: bool = True, skip_ragged: bool = False, max_skipped: float = MAX_SKIPPED
) -> Iterator[Record]:
    """Yields the records of a table; without a header the columns are called 0, 1, ….

    TSV is split at tabs only, and quotes are part of the text, as in GLUE's files. CSV is the
    dialect of spreadsheets, split at what its first line has most of: commas, semicolons or tabs.
    Without a header the most frequent number of columns counts.

    Raises `TaskDataError` for what is damaged, with its line. With `skip_ragged` lines of another
    number of columns are left out and logged, and refused where they are more than the share
    `max_skipped` of the file.
    """
    reader = {".tsv": read_tsv, ".csv": read_csv}.get(path.suffix)
    try:
        if reader is not None:
            width = None if header else usual_width(reader, path)
            skipped = SkippedLines(path, skip_ragged, max_skipped)
            yield from _with_columns(reader(path), skipped, width)
        elif path.suffix in (".jsonl", ".json"):
            yield from _read_jsonl(path)
        elif path.suffix == ".parquet":
            yield from _read_parquet(path)
        else:
            raise TaskDataError(
                "unknown kind of table",
                str(path),
                f"use one of {', '.join((*TABLE_SUFFIXES, *OTHER_SUFFIXES))}",
            )
    except OSError as error:
        raise TaskDataError("cannot read", str(path), error.strerror or "check the file") from error


def value_of(record: Record, name: str) -> Any:  # noqa: ANN401 - a table holds anything
    """The value of a column, or of a field within one (`question.stem`); None where it is not."""
    if name in record.values:
        return record.values[name]
    found: Any = record.values
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def parse_cell(value: Any) -> Any:  # noqa: ANN401 - a table holds anything
    """The list or mapping that a text writes as Python or JSON do (pandas in CSV), or the value."""
    text = value.strip() if isinstance(value, str) else ""
    if len(text) > _LONGEST_WRITTEN or text[:1] + text[-1:] not in ("[]", "{}"):
        return value
    # Python would join 'x' 'y', which is how numpy writes two texts.
    for read in (json.loads,) if _NO_COMMA.search(text) else (json.loads, literal_eval):
        try:
            found = read(text)
            if "\\" in text:  # an escape may write half a character
                json.dumps(found, ensure_ascii=False, default=str).encode()
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        if isinstance(found, list | dict):
            return found
    return value


def column(record: Record, name: str) -> Any:  # noqa: ANN401 - a table holds anything
    """The value of a column; raises `TaskDataError` with the nearest name where it is missing."""
    found = value_of(record, name)
    if found is not None or name in record.values:
        return found
    close = get_close_matches(name, record.values, n=1, cutoff=0.5)
    near = f", did you mean {close[0]}" if close else ""
    known = ", ".join(record.values)
    remedy = "name another column"
    if record.has_header:
        remedy += f"; if the first line is no header, give {HEADERLESS}"
    divider = next((each for each in ",;|\t" if each in known), None)
    if len(record.values) == 1 and divider:
        near = ""
        remedy = f"the file seems to be divided by {divider!r}: write commas in .csv, tabs in .tsv"
    raise TaskDataError(f"no column {name}{near}", f"{record.where}: {known[:200]}", remedy)


def text_of(record: Record, name: str) -> str:
    """The text of a column, stripped; raises `TaskDataError` where it is missing or empty."""
    value = column(record, name)
    if not isinstance(value, str) or not value.strip():
        remedy = "fix or remove the record"
        if isinstance(value, Mapping) and value:
            remedy = f"name a field of it, {' or '.join(f'{name}.{each}' for each in value)}"
        raise TaskDataError(f"no text in column {name}", record.where, remedy)
    return value.strip()


def _with_columns(lines: Lines, skipped: SkippedLines, width: int | None) -> Iterator[Record]:
    """The records of lines; the first one names the columns unless their number is given."""
    has_header, is_csv = width is None, skipped.path.suffix == ".csv"
    names = [str(index) for index in range(width or 0)]
    empty: list[int] = []
    for number, cells in lines:
        if is_blank(cells):
            empty += [number] if names and len(cells) > 1 else []
            continue
        if has_header and not names:
            names = [cell.strip() for cell in cells]
            if not is_csv:
                skipped.quoted(number, names, is_header=True)
            refuse_same_names(names, f"{skipped.path}:{number}")
            continue
        if empty:  # rows below a table are padding, between others they may be lost ones
            skipped.empty(empty[0], len(empty))
            empty = []
        skipped.lines += 1
        if len(cells) != len(names):
            is_open = not is_csv and any(cell.count('"') % 2 for cell in cells)
            skipped.ragged(number, len(cells), len(names), is_open=is_open)
            continue
        if not is_csv:
            skipped.quoted(number, cells)
        elif "\n" in "".join(cells):
            skipped.swallowed(number, cells)
        yield Record(dict(zip(names, cells, strict=True)), f"{skipped.path}:{number}", has_header)
    skipped.tell()


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
    """The objects of a file that has one a line, or all in one list."""
    with open_text(path, TaskDataError) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            if number == 1 and line.lstrip().startswith("["):
                yield from _read_list(line + file.read(), path)
                return
            yield _json_record(line, where)


def _json_record(line: str, where: str) -> Record:
    try:
        values = json.loads(line, object_pairs_hook=partial(_as_dict, where))
    except (ValueError, RecursionError) as error:
        remedy = "fix the line: a file has one object a line, or all in one list"
        raise TaskDataError("not JSON", where, remedy) from error
    return _record(values, where, may_have_halves=_LONE_SURROGATE.search(line) is not None)


def _read_list(text: str, path: Path) -> Iterator[Record]:
    try:
        found = json.loads(text, object_pairs_hook=partial(_as_dict, str(path)))
    except json.JSONDecodeError as error:
        raise TaskDataError("not JSON", f"{path}:{error.lineno}", "fix the line") from error
    except (ValueError, RecursionError) as error:
        raise TaskDataError("not JSON", str(path), "fix the file") from error
    may_have_halves = _LONE_SURROGATE.search(text) is not None
    for number, values in enumerate(found):
        yield _record(values, f"{path}, record {number}", may_have_halves=may_have_halves)


def _record(values: object, where: str, *, may_have_halves: bool) -> Record:
    """Refuses half of a surrogate pair, which only JSON's escapes can write."""
    if not isinstance(values, dict):
        raise TaskDataError("not a JSON object", where, 'write {"column": value}')
    if may_have_halves:
        text = json.dumps(values, ensure_ascii=False)
        half = lone_surrogate(text)
        if half is not None:
            raise TaskDataError(f"lone surrogate, {text[half]!r}", where, "fix the text")
    return Record(values, where)


def _read_parquet(path: Path) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path)
        refuse_same_names(table.schema_arrow.names, str(path))
        yield from arrow_records(table.iter_batches(), table.schema_arrow, str(path))
    except (pa.ArrowException, OSError, OverflowError, ValueError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
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
            for name in classes.keys() & values.keys():
                values[name] = _named(values[name], classes[name], place)
            yield Record(values, place)
            number += 1


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """The names of the classes, of columns of classes and of columns of lists of them."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"].items()
        singles = {
            name: feature[0] if isinstance(feature, list) else feature.get("feature", feature)
            for name, feature in features
        }
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError):
        return {}  # not written by `datasets`, or without features
    names = {
        name: single.get("names")
        for name, single in singles.items()
        if isinstance(single, dict) and single.get("_type") == "ClassLabel"
    }
    return {name: found for name, found in names.items() if found and isinstance(found, list)}


def _named(value: Any, names: Sequence[str], where: str) -> Any:  # noqa: ANN401 - as in the table
    if isinstance(value, list):
        each_named = [_named(each, names, where) for each in value]
        return None if None in each_named else each_named
    if value is None or value == -1:
        return None
    if not isinstance(value, int) or not 0 <= value < len(names):
        raise TaskDataError(
            f"class {value}", where, f"there are {len(names)}, counted from 0; fix the table"
        )
    return str(names[value])


_ROWS_AT_ONCE = 1000
_UNSET = {"header": "true", "skip_ragged": "false", "max_skipped": str(MAX_SKIPPED)}


def is_on_hub(data: str | Path) -> bool:
    """Whether data is an address of the Hub; a path never is."""
    return isinstance(data, str) and data.startswith(SCHEME)


def read_split(
    data: str | Path,
    split: str,
    *,
    header: bool = True,
    skip_ragged: bool = False,
    max_skipped: float = MAX_SKIPPED,
    refuse_unused: bool = True,
) -> Iterator[Record]:
    """Yields the records of a split; the options of TSV and CSV as `read_table` has them.

    Raises `TaskDataError` where there is no such split, and for what is damaged. Other tables name
    their columns in each record: with `refuse_unused` options that say nothing there are refused.
    """
    on_hub = is_on_hub(data)
    path = Path() if on_hub else split_file(data, split, TABLE_SUFFIXES, OTHER_SUFFIXES)
    if refuse_unused and path.suffix not in (".tsv", ".csv"):
        given = {"header": not header, "skip_ragged": skip_ragged}
        given["max_skipped"] = max_skipped != MAX_SKIPPED
        for name in (name for name, is_given in given.items() if is_given):
            where = str(data) if on_hub else str(path)
            raise TaskDataError(
                f"--options.{name} is for .tsv and .csv",
                where,
                f"leave it out, or of a trained model: --options {name}={_UNSET[name]}",
            )
    if on_hub:
        return read_hub_split(str(data), split)
    return read_table(path, header=header, skip_ragged=skip_ragged, max_skipped=max_skipped)


def read_hub_split(typed: str, split: str) -> Iterator[Record]:
    """Yields the records of a split of a data set of the Hub.

    Raises `HubError` where it cannot be had, `TaskDataError` where it has no such split.
    """
    address = HubAddress.of(typed)
    if address.split is not None:
        raise TaskDataError(
            "a split in the address",
            typed,
            "leave it out: training reads train and dev, evaluation takes --split",
        )
    found = load_hub_data(address)
    names: Sequence[str] = SPLIT_NAMES.get(split, (split,))
    name = next((each for each in names if each in found), None)
    if name is None:
        raise NoSuchSplitError(
            f"no {split} split",
            f"{typed}: {', '.join(found)}",
            f"it may be called {', '.join(names)}",
        )
    batches = found[name].with_format("arrow").iter(_ROWS_AT_ONCE)
    return arrow_records(batches, found[name].features.arrow_schema, f"{typed}, {name}")
