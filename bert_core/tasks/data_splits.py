"""A split of labelled data goes in, records come out: of a file, a folder, or the Hub.

`hf://OWNER/NAME[:CONFIG]` is a data set of the Hugging Face Hub (see `bert_core.hub_data`).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from bert_core.hub_data import SCHEME, HubAddress, load_hub_data
from bert_core.tasks.delimited import MAX_SKIPPED
from bert_core.tasks.tables import (
    OTHER_SUFFIXES,
    SPLIT_NAMES,
    TABLE_SUFFIXES,
    Record,
    TaskDataError,
    arrow_records,
    read_table,
    split_file,
)

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

    Raises `HubDataError` where it cannot be had, `TaskDataError` where it has no such split.
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
        raise TaskDataError(
            f"no {split} split",
            f"{typed}: {', '.join(found)}",
            f"it may be called {', '.join(names)}",
        )
    batches = found[name].with_format("arrow").iter(_ROWS_AT_ONCE)
    return arrow_records(batches, found[name].features.arrow_schema, f"{typed}, {name}")
