"""Texts, part by part, on Ray Data: a job goes in; files and a record of each part come out.

A part is done when its record is written, so a restart continues with the others. Ray is imported
only to run the parts: mistakes in settings and input are reported before it loads.
"""

import functools
import json
import logging
import os
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from bert_core.disk import DiskFullError
from bert_core.errors import UserError
from bert_core.machine import release_memory
from bert_core.strict_files import read_json_object
from bert_core.text.shards import INDEX_NAME, write_bytes
from bert_core.text.sources import CorpusError, CorpusPart, UnreadableFileError, find_parts
from bert_core.text.texts import TextPart, divide, read_records
from workflows.output_folder import WorkKeptError, absolute_output, is_finished, work_folder
from workflows.progress import ProgressLine, duration
from workflows.settings import StoreSettings

if TYPE_CHECKING:
    import torch

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


class TextPartsSettings(StoreSettings):
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
        if part.kind in ("documentation", "hugging_face", "task"):
            raise CorpusError("no file of texts", part.typed, "give .txt, .jsonl or .parquet files")
    if settings.id_column and found and all(part.kind == "text" for part in found):
        what, remedy = "lines of text have no column of ids", "leave --id_column out"
        raise CorpusError(what, found[0].typed, remedy)
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


@dataclass(frozen=True)
class TextJob(ABC):
    """What is to be done to parts of text; `work` is on a disk that all nodes see.

    The files of the parts lie in `folder`, below that of the work and then the output: nothing else
    lies in it. `label` is what the progress line begins with.
    """

    folder: ClassVar[str]
    label: ClassVar[str]

    work: Path
    parts: list[TextPart]
    model: Path
    id_column: str | None
    bfloat16: bool
    max_tokens: int
    skip_bad: bool
    num_workers: int | None
    use_gpu: bool | None
    threads_per_worker: int

    @abstractmethod
    def write(self, part: TextPart, stem: Path, dropped: Counter[str]) -> dict[str, Any]:
        """Writes the files of a part, `stem` and an ending, each whole or not at all.

        Gives what its record has: `counts`, and whatever else is JSON. Counts by reason what it
        drops. Raises `UserError`: an `UnreadableFileError` is one that can be left out.
        """


def move_parts(job: TextJob, output: Path, index: Mapping[str, Any]) -> list[Path]:
    """Moves the folder of the parts to the output, all at once; returns its path there."""
    del index
    if not (output / job.folder).is_dir():  # a kill came between this and the index
        (job.work / job.folder).replace(output / job.folder)
    return [output / job.folder]


def run_job(
    settings: TextPartsSettings,
    plan: dict[str, Any],
    given: TextInput,
    job_in: Callable[[Path], TextJob],
    *,
    index_of: Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]],
    describe: Callable[[dict[str, Any]], list[str]],
    publish: Callable[[TextJob, Path, dict[str, Any]], list[Path]] = move_parts,
) -> Path:
    """Does the job of the settings, or finishes it, or finds it finished; returns the output.

    `job_in` makes the job in a folder of work. `index_of` its records is written as index.json, of
    which `describe` prints a summary; `publish` moves the files of the parts to the output.
    """
    start = time.monotonic()
    output = absolute_output(settings.output)
    if is_finished(output, plan, fresh=settings.fresh):
        print(f"complete already: {output}")
        print("\n".join(describe(read_json_object(output / INDEX_NAME))))
        return output
    from workflows.clusters.tasks import connect

    with work_folder(output, plan) as work:
        job = job_in(work)
        (work / job.folder).mkdir(exist_ok=True)
        connect()
        done = finished_parts(job)
        if done:
            print(f"resuming: {len(done):,} of {len(given.parts):,} parts are done", flush=True)
        records = do_parts(job, done)
        index = index_of(records)
        if not index["counts"].get("texts"):
            raise no_texts(settings, index)
        refuse_many_skipped(settings, records, given)
        published = publish(job, output, index)
        text = json.dumps(index, indent=1, sort_keys=True) + "\n"
        write_bytes(output / INDEX_NAME, text.encode())
    seconds = time.monotonic() - start
    print("\n".join(describe(index)))
    tokens = index["counts"]["tokens"] - num_tokens(done.values())
    print(f"{duration(seconds)}, {tokens / seconds:,.0f} tokens a second")
    print(f"{job.folder}: {' and '.join(map(str, published))}")
    return output


def finished_parts(job: TextJob) -> dict[int, dict[str, Any]]:
    """The records of the parts that are done, by their numbers."""
    paths = {number: _record_path(job, number) for number in range(len(job.parts))}
    return {
        number: read_json_object(path, "delete it: the part is then done anew")
        for number, path in paths.items()
        if path.is_file()
    }


def do_parts(job: TextJob, done: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Writes all parts that are not done; the records of all, in order.

    A record has a `name`, what was `dropped` and what the job says, or an `error` of a file that is
    left out. Raises `UserError` for what is not left out: `WorkKeptError` where other parts are
    done and the same command, or one with --skip_bad, can go on.
    """
    total = sum(part.text_bytes for part in job.parts)
    found = dict(done)
    done_before = sum(job.parts[number].text_bytes for number in found)
    with ProgressLine(job.label, total, done_before=done_before) as line:
        missing = [number for number in range(len(job.parts)) if number not in found]
        for number, record in _work_off(job, missing):
            if "error" in record and not record["left_out"]:
                what, where, remedy = record["error"]
                if record.get("disk_is_full"):
                    raise WorkKeptError(what, where, f"{remedy}: it goes on")
                if not found or not record["can_be_left_out"]:
                    raise UserError(what, where, remedy)
                raise WorkKeptError(what, where, f"{remedy}; the parts that are done are kept")
            found[number] = record
            line.advance(job.parts[number].text_bytes)
    return [found[number] for number in range(len(job.parts))]


def part_name(number: int) -> str:
    """The stem of a part's files."""
    return f"part-{number:05d}"


def _work_off(job: TextJob, missing: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    if not missing:
        return
    import ray
    from ray.data import DataContext, TaskPoolStrategy, from_items

    resources = ray.cluster_resources()
    use_gpu = resources.get("GPU", 0) >= 1 if job.use_gpu is None else job.use_gpu
    most = int(resources.get("GPU", 0) if use_gpu else resources["CPU"] / job.threads_per_worker)
    if most < 1:  # Ray would wait for ever
        what = "no GPU" if use_gpu else f"{resources['CPU']:g} CPUs"
        option = "use_gpu" if use_gpu else f"threads_per_worker {job.threads_per_worker}"
        raise UserError(f"{what} in the cluster", f"--{option}", "leave it out")
    num_workers = min(job.num_workers or most, len(missing))
    DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    rows = from_items([{"number": number} for number in missing], override_num_blocks=len(missing))
    done = rows.map(
        functools.partial(_work, job=job),
        compute=TaskPoolStrategy(size=num_workers),
        num_cpus=1 if use_gpu else job.threads_per_worker,
        num_gpus=1 if use_gpu else None,
    )
    for row in done.iter_rows():
        yield int(row["number"]), json.loads(row["record"])


def _work(row: dict[str, Any], job: TextJob) -> dict[str, Any]:
    """Writes the part of a number, in a process that keeps its model from part to part."""
    import torch

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its CPUs are its own, the others' are not
    torch.set_num_threads(job.threads_per_worker)
    torch.set_flush_denormal(True)
    number = int(row["number"])
    try:
        record = json.dumps(write_part(job, number))
    except DiskFullError as error:
        told = [error.what, error.where, error.remedy]
        record = json.dumps({"error": told, "left_out": False, "disk_is_full": True})
    release_memory()
    return {"number": number, "record": record}


def worker_device() -> "torch.device":
    """The GPU that Ray has given this process, or the CPU."""
    import ray
    import torch

    on_gpu = ray.is_initialized() and ray.get_gpu_ids() and torch.cuda.is_available()
    return torch.device("cuda" if on_gpu else "cpu")


def write_part(job: TextJob, number: int) -> dict[str, Any]:
    """Writes one part, then its record, which it gives."""
    part, name = job.parts[number], part_name(number)
    dropped: Counter[str] = Counter()
    try:
        said = job.write(part, job.work / job.folder / name, dropped)
    except DiskFullError:
        raise
    except UserError as error:
        can_be_left_out = isinstance(error, UnreadableFileError)
        left_out = job.skip_bad and can_be_left_out
        remedy = f"{error.remedy}, {OR_SKIP}" if can_be_left_out and not left_out else error.remedy
        where = f"{error.where}{part.stretch}" if error.where == part.part.path else error.where
        said = {"left_out": left_out, "can_be_left_out": can_be_left_out}
        record: dict[str, Any] = {"error": [error.what, where, remedy], **said}
        if not left_out:  # the next start looks again
            return record
    else:
        record = {"name": name, "dropped": dict(+dropped), **said}
    write_bytes(_record_path(job, number), json.dumps(record).encode())
    return record


def _record_path(job: TextJob, number: int) -> Path:
    return job.work / f"{part_name(number)}.json"
