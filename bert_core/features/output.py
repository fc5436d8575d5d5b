"""Writes the features of texts to a file, completely or not at all.

Parquet has a row for each text: `id` and `features`; for tokens and words these are lists, with the
`tokens` or `words` and, for strings, their characters from `begins` up to `ends`. With npy the
features of all units are one array [U, F], and the other columns, with `num_units` in place of the
features, are in a Parquet file next to it. Shapes: U units, F feature size, W tokens.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from bert_core.disk import flush_to_disk, raise_disk_full
from bert_core.errors import UserError
from bert_core.features.extractor import Extractor
from bert_core.features.units import Tokens, UnitRows, cut_words, words_of
from bert_core.interface import OutputFormat, StoredDtype
from bert_core.special_tokens import num_embeddings
from bert_core.tasks.task import FloatArray
from bert_core.text.texts import CHARACTERS_AT_ONCE, NamedText, text_chunks

if TYPE_CHECKING:
    import pyarrow as pa

_BYTES_AT_ONCE = 1 << 28
_UNITS_AT_ONCE = 4096


def write_features(
    extractor: Extractor,
    texts: Iterable[NamedText],
    path: Path,
    *,
    output_format: OutputFormat = "parquet",
    dtype: StoredDtype = "float32",
) -> Counter[str]:
    """Writes the features of texts to `path`, a .parquet file, and an array to .npy next to it.

    Gives what there was to count: texts, tokens, units, rows (windows) of the encoder, and words
    without tokens. Memory holds a thousand texts at a time, fewer if they are long.
    """
    from pyarrow.parquet import ParquetWriter

    counts: Counter[str] = Counter()
    most_characters = _characters_at_once(extractor)
    chunks = (
        chunk  # of strings or of lists of words, never both
        for _, alike in groupby(texts, lambda given: type(given.text))
        for chunk in text_chunks(alike, _num_characters, most_characters)
    )
    array = path.with_suffix(".npy")
    beside, array_beside = (each.with_name(f".{each.name}.written") for each in (path, array))
    with _removed_on_error(path, beside, array_beside):
        with array_beside.open("w+b") as stream:
            is_array = output_format == "npy"
            schema = _schema(extractor, None if is_array else dtype)
            _write_header(stream, 0, extractor.feature_size, dtype)
            with ParquetWriter(beside, schema) as writer:
                for some in chunks:
                    tokens = _cut(extractor, some)
                    rows = extractor.rows(tokens)
                    features = extractor.of_rows(rows).astype(dtype, copy=False)
                    columns = _columns(extractor, some, tokens, rows)
                    if is_array:
                        stream.write(features.tobytes())
                    else:
                        columns["features"] = _nested(features, rows, extractor)
                    writer.write_table(_table(columns, schema))
                    counts += _count(tokens, rows)
            _write_header(stream, counts["units"], extractor.feature_size, dtype)
        if is_array:
            flush_to_disk(array_beside)
            array_beside.replace(array)
        else:
            array_beside.unlink()
        flush_to_disk(beside)
        beside.replace(path)
    return counts


def join_parts(paths: Sequence[Path], output: Path) -> None:
    """Joins parts with arrays, their .parquet files, into `output`, a .parquet and a .npy file.

    At least one part; they stay.
    """
    from pyarrow.parquet import ParquetFile, ParquetWriter

    arrays = [
        np.load(each.with_suffix(".npy"), mmap_mode="r", allow_pickle=False) for each in paths
    ]
    array = output.with_suffix(".npy")
    beside, array_beside = (each.with_name(f".{each.name}.written") for each in (output, array))
    with _removed_on_error(output, beside, array_beside):
        with array_beside.open("w+b") as stream:
            dtype: StoredDtype = "float16" if arrays[0].dtype == np.float16 else "float32"
            _write_header(stream, sum(map(len, arrays)), arrays[0].shape[1], dtype)
            for each in arrays:
                for begin in range(0, len(each), _UNITS_AT_ONCE):
                    stream.write(each[begin : begin + _UNITS_AT_ONCE].tobytes())
        with ParquetFile(paths[0]) as first:
            schema = first.schema_arrow
        with ParquetWriter(beside, schema) as writer:
            for path in paths:
                with ParquetFile(path) as file:
                    for batch in file.iter_batches():
                        writer.write_batch(batch)
        for written, final in ((array_beside, array), (beside, output)):
            flush_to_disk(written)
            written.replace(final)


@contextmanager
def _removed_on_error(output: Path, *paths: Path) -> Iterator[None]:
    """Removes files that were begun when their writing fails."""
    try:
        with raise_disk_full(output):
            yield
    except BaseException:
        for path in paths:
            path.unlink(missing_ok=True)
        raise


def _characters_at_once(extractor: Extractor) -> int:
    """Fewer where every token has a large vector: a token is three characters or more."""
    if extractor.choice.unit == "text":
        return CHARACTERS_AT_ONCE
    tokens = _BYTES_AT_ONCE // (4 * extractor.feature_size)
    return min(CHARACTERS_AT_ONCE, 3 * tokens)


def _num_characters(given: NamedText) -> int:
    return len(given.text) if isinstance(given.text, str) else sum(map(len, given.text))


def _cut(extractor: Extractor, texts: Sequence[NamedText]) -> Tokens:
    if isinstance(texts[0].text, str):
        strings = [text.text for text in texts if isinstance(text.text, str)]
        return extractor.tokens(strings)
    if extractor.choice.prompt:
        raise UserError("words, and a prompt before a text", texts[0].id, "give strings")
    lists = [text.text for text in texts if not isinstance(text.text, str)]
    return cut_words(extractor.tokenizer, lists)


def _count(tokens: Tokens, rows: UnitRows) -> Counter[str]:
    without = int(tokens.word_counts.sum()) - len(np.unique(tokens.words))
    return Counter(
        texts=len(tokens.lengths),
        tokens=len(tokens.input_ids),
        units=rows.num_units,
        rows=rows.rows.num_items,
        words_without_tokens=without,
    )


def _columns(
    extractor: Extractor, texts: Sequence[NamedText], tokens: Tokens, rows: UnitRows
) -> dict[str, Any]:
    """All columns but the features, as values of `_schema`."""
    import pyarrow as pa

    unit = extractor.choice.unit
    columns: dict[str, Any] = {"id": [text.id for text in texts], "num_units": rows.unit_counts}
    if unit == "text":
        return columns
    ends = np.cumsum(rows.unit_counts)
    bounds = pa.array(np.concatenate([[0], ends]), pa.int32())
    spans = tokens.offsets
    if unit == "token":
        names = map(extractor.tokenizer.id_to_token, range(num_embeddings(extractor.tokenizer)))
        shown = pa.array(names, pa.string()).take(pa.array(tokens.input_ids))
    elif spans is None:
        shown = pa.array(list(chain.from_iterable(text.text for text in texts)), pa.string())
    else:
        words, spans = words_of(tokens, [text.text for text in texts if isinstance(text.text, str)])
        shown = pa.array(words, pa.string())
    columns[f"{unit}s"] = pa.ListArray.from_arrays(bounds, shown)
    for name, side in (("begins", 0), ("ends", 1)):
        if spans is None:
            columns[name] = pa.nulls(len(texts), pa.list_(pa.int32()))
        else:
            places = pa.array(spans[:, side], pa.int32())
            columns[name] = pa.ListArray.from_arrays(bounds, places)
    return columns


def _nested(features: FloatArray, rows: UnitRows, extractor: Extractor) -> "pa.Array":
    """A vector of each text, or the list of those of its units."""
    import pyarrow as pa

    vectors = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), features.shape[1])
    if extractor.choice.unit == "text":
        return vectors
    bounds = np.concatenate([[0], np.cumsum(rows.unit_counts)])
    return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), vectors)


def _schema(extractor: Extractor, dtype: StoredDtype | None) -> "pa.Schema":
    """The columns of the Parquet file; with no features where `dtype` is None."""
    import pyarrow as pa

    unit = extractor.choice.unit
    fields: list[tuple[str, Any]] = [("id", pa.string())]
    if unit != "text":
        places = pa.list_(pa.int32())
        fields += [(f"{unit}s", pa.list_(pa.string())), ("begins", places), ("ends", places)]
    if dtype is None:
        fields.append(("num_units", pa.int64()))
    else:
        number = pa.float16() if dtype == "float16" else pa.float32()
        vector = pa.list_(number, extractor.feature_size)
        fields.append(("features", vector if unit == "text" else pa.list_(vector)))
    return pa.schema(fields)


def _table(columns: dict[str, Any], schema: "pa.Schema") -> "pa.Table":
    import pyarrow as pa

    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def _write_header(stream: IO[bytes], num_units: int, size: int, dtype: StoredDtype) -> None:
    """Writes the header of an array [num_units, size] at the start; it is as long for any number.

    numpy leaves room in it for an array that grows, so what follows stays in place.
    """
    stream.seek(0)
    described = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
        "fortran_order": False,
        "shape": (num_units, size),
    }
    np.lib.format.write_array_header_1_0(stream, described)
