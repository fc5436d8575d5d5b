"""Texts, part by part, on Ray Data: a job goes in, the files and the record of each part come out.

A part is done when its record is written, so a restart continues with the others. Ray is imported
only to run the parts: mistakes in settings are reported before it loads.
"""

import functools
import json
import logging
import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bert_core.disk import DiskFullError
from bert_core.errors import UserError
from bert_core.machine import release_memory
from bert_core.strict_files import read_json_object
from bert_core.text.shards import INDEX_NAME, write_bytes
from bert_core.text.sources import UnreadableFileError
from bert_core.text.texts import TextPart
from workflows.inference.text_input import (
    OR_SKIP,
    TextInput,
    TextPartsSettings,
    no_texts,
    num_tokens,
    refuse_many_skipped,
)
from workflows.output_folder import WorkKeptError, absolute_output, is_finished, work_folder
from workflows.progress import ProgressLine, duration

if TYPE_CHECKING:
    import torch


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
