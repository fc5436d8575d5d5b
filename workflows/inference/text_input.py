"""The input of extraction and prediction: its settings, its parts, and what was left out of it."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from bert_core.errors import UserError
from bert_core.text.sources import CorpusError, CorpusPart, UnreadableFileError, find_parts
from bert_core.text.texts import TextPart, divide, read_records
from workflows.output_folder import WorkKeptError
from workflows.settings import CommandLineSettings, default_storage

_FAULTS = (
    *("invalid_json_lines", "records_without_text", "records_with_half_a_character"),
    "records_of_words",
)
"""What is wrong with records that are left out; empty lines, say, are as they should be."""

_MOST_SKIPPED = 0.01
OR_SKIP_THEM = "or add --skip_bad to go on without them"
OR_SKIP = "or --skip_bad to go on without it"


OF_ONE_START = (
    *("output", "fresh", "num_workers", "use_gpu", "threads_per_worker", "max_tokens"),
    *("skip_bad", "storage", "tracking_uri", "model"),
)
"""The settings that may change when a command goes on: results depend on the others."""


class TextPartsSettings(CommandLineSettings):
    """What is read, by which model, and by how many processes."""

    model: str
    input: list[str] = Field(
        min_length=1,
        description="files, folders, globs, s3:// or gs:// addresses: a text per line of .txt, or"
        " record of .jsonl or .parquet",
    )
    output: Path = Field(description="folder of the results, visible to all nodes of a cluster")
    text_column: str = Field(default="text", description="column of the texts")
    id_column: str | None = Field(
        default=None,
        description="column of the ids; by default FILE:PLACE, a byte offset or a row of Parquet",
    )
    skip_bad: bool = Field(
        default=False,
        description="skip unreadable files, and allow more than 1 % bad records in a file",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32", description="type of matrix products"
    )
    max_tokens: int = Field(default=4096, ge=8, description="tokens of one forward pass, at most")
    num_workers: int | None = Field(
        default=None, ge=1, description="processes; by default one for each GPU, or each CPU"
    )
    use_gpu: bool | None = Field(
        default=None, description="one GPU per process; by default where there are any"
    )
    threads_per_worker: int = Field(default=1, ge=1, description="CPUs of a process, without GPU")
    part_bytes: int | None = Field(
        default=None,
        ge=1,
        description="size of a part, the unit of resuming; by default 1/64 of the input, 32 to 512"
        " KiB",
    )
    storage: str = Field(
        default_factory=default_storage,
        description="folder of runs and of the MLflow store",
    )
    tracking_uri: str | None = Field(
        default=None, description="MLflow tracking URI; by default the store under --storage"
    )
    fresh: bool = Field(
        default=False, description="start over; what stands in the output folder is renamed"
    )

    def of_job(self) -> dict[str, Any]:
        """What a `TextJob` takes from the settings, by the names of its fields."""
        names = ("id_column", "skip_bad", "max_tokens", "num_workers", "use_gpu")
        return {name: getattr(self, name) for name in (*names, "threads_per_worker")} | {
            "bfloat16": self.precision == "bfloat16"
        }


@dataclass(frozen=True)
class TextInput:
    """The parts of the files that were found, the same divided, and what is known to be left out.

    `skipped` counts by reason; `unreadable` are the files that cannot be read.
    """

    found: Sequence[CorpusPart]
    parts: list[TextPart]
    skipped: Counter[str]
    unreadable: Sequence[UnreadableFileError]


def find_input(settings: TextPartsSettings, columns: Mapping[str, str]) -> TextInput:
    """The input in parts, of which the first is read, so that what is wrong is said at once.

    `columns` are those of the texts by the option that names each, the longest texts first. Raises
    `CorpusError` for what is not there, cannot be read, lacks a column, or is not made of texts.
    """
    skipped: Counter[str] = Counter()
    unreadable: list[UnreadableFileError] = []
    option, column = next(iter(columns.items()))
    where = unreadable if settings.skip_bad else None
    try:
        found = list(find_parts(settings.input, column, skipped, unreadable=where, option=option))
    except UnreadableFileError as error:
        raise CorpusError(error.what, error.where, f"{error.remedy}, {OR_SKIP}") from error
    for part in found:
        if part.kind in ("documentation", "hugging_face"):
            raise CorpusError("no file of texts", part.typed, "give .txt, .jsonl or .parquet files")
    parts = list(divide(found, settings.part_bytes))
    for part in parts[:1]:
        texts = read_records(part, Counter(), columns, id_column=settings.id_column)
        try:
            deque(islice(texts, 1) if part.part.compression else texts, maxlen=0)
        except UnreadableFileError:
            continue  # said, or left out, in its turn
    return TextInput(found, parts, skipped, unreadable)


def gathered(records: Iterable[Mapping[str, Any]], given: TextInput) -> dict[str, Any]:
    """What index.json says of any work on parts: `counts`, `dropped`, `bad_files` and `parts`."""
    counts: Counter[str] = Counter()
    dropped = Counter(given.skipped)
    bad = [str(error) for error in given.unreadable]
    parts = []
    for record in records:
        if "error" in record:
            bad.append("{}: {} ({})".format(*record["error"]))
            continue
        counts += Counter(record["counts"])
        dropped += Counter(record["dropped"])
        parts.append({"name": record["name"], **record["counts"]})
    return {
        "counts": dict(counts),
        "dropped": dict(+dropped),
        "bad_files": sorted(set(bad)),
        "parts": parts,
    }


def refuse_many_skipped(
    settings: TextPartsSettings, records: Sequence[Mapping[str, Any]], given: TextInput
) -> None:
    """Raises `WorkKeptError` for a file of which many records are left out, unless that is asked.

    What is done is kept: the same command with --skip_bad has its result at once.
    """
    if settings.skip_bad:
        return
    skipped: Counter[str] = Counter()
    texts: Counter[str] = Counter()
    for part, record in zip(given.parts, records, strict=True):
        dropped = record.get("dropped", {})
        skipped[part.part.path] += sum(dropped.get(name, 0) for name in _FAULTS)
        texts[part.part.path] += record.get("counts", {}).get("texts", 0)
    for path, count in skipped.items():
        if count > _MOST_SKIPPED * (count + texts[path]):
            reasons = ", ".join(_dropped(gathered(records, given)))
            what = f"{count:,} of {count + texts[path]:,} records are no texts"
            raise WorkKeptError(what, path, f"dropped are {reasons}; fix them, {OR_SKIP_THEM}")


def left_out(index: Mapping[str, Any]) -> list[str]:
    """The lines of a summary that say what is not in the result, and why."""
    bad = [f"left out: {each}" for each in index["bad_files"]]
    return [f"dropped: {', '.join(_dropped(index)) or 'nothing'}", *bad]


def no_texts(settings: TextPartsSettings, index: Mapping[str, Any]) -> UserError:
    """The error for an input of which nothing is left, with the reasons."""
    reasons = [*_dropped(index), *(f"left out: {each}" for each in index["bad_files"])]
    what = f"no texts ({'; '.join(reasons) or 'the input is empty'})"
    return UserError(what, f"--input {' '.join(settings.input)}", "give files with texts")


def num_tokens(records: Iterable[Mapping[str, Any]]) -> int:
    """The tokens of the parts with these records."""
    return sum(record.get("counts", {}).get("tokens", 0) for record in records)


def _dropped(index: Mapping[str, Any]) -> list[str]:
    counted = sorted(index["dropped"].items())
    return [f"{number:,} {name.replace('_', ' ')}" for name, number in counted if number]
