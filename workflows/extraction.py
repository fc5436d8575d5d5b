"""Texts to features on Ray Data: a plan goes in, a file for each part of the text comes out.

A part is done when its record stands beside it, so a restart goes on with the others.
"""

import ctypes
import functools
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch

from bert_core.errors import UserError
from bert_core.features.extractor import Extractor, FeatureChoice, load_extractor
from bert_core.features.output import OutputFormat, write_features
from bert_core.features.store import Precision
from bert_core.text.reading.sources import UnreadableFileError
from bert_core.text.reading.texts import TextPart, read_texts
from bert_core.text.shard_index import write_bytes
from workflows.output_folder import WorkKeptError
from workflows.progress import ProgressLine

FEATURES = "features"
"""The folder of the parts, in that of the work and then in the output: nothing else lies in it."""

OR_SKIP = "or --skip_bad to go on without it"


@dataclass(frozen=True)
class Extraction:
    """What is to be extracted, and how; `work` is on a disk that all nodes see."""

    work: Path
    parts: list[TextPart]
    model: Path
    choice: FeatureChoice
    text_column: str
    id_column: str | None
    output_format: OutputFormat
    dtype: Precision
    skip_bad: bool
    bfloat16: bool
    max_tokens: int
    num_workers: int | None
    use_gpu: bool | None
    threads_per_worker: int


def finished_parts(plan: Extraction) -> dict[int, dict[str, Any]]:
    """The records of the parts that are done, by their numbers."""
    paths = {number: _record_path(plan, number) for number in range(len(plan.parts))}
    return {
        number: json.loads(path.read_bytes()) for number, path in paths.items() if path.is_file()
    }


def extract_parts(plan: Extraction, done: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Writes all parts that are not done; the records of all, in order.

    A record has a `name`, `counts` and what was `dropped`, or an `error` of a file that is left
    out. Raises `UserError` for what cannot be read and is not left out: `WorkKeptError` where other
    parts are done.
    """
    total = sum(part.text_bytes for part in plan.parts)
    found = dict(done)
    with ProgressLine("extracting", total) as line:
        line.reach(sum(plan.parts[number].text_bytes for number in found))
        missing = [number for number in range(len(plan.parts)) if number not in found]
        for number, record in _work_off(plan, missing):
            if "error" in record and not record["left_out"]:
                what, where, remedy = record["error"]
                if not found:
                    raise UserError(what, where, remedy)
                raise WorkKeptError(what, where, f"{remedy}; the parts that are done are kept")
            found[number] = record
            line.advance(plan.parts[number].text_bytes)
    return [found[number] for number in range(len(plan.parts))]


def part_name(number: int) -> str:
    """The stem of a part's files."""
    return f"part-{number:05d}"


def part_path(folder: Path, name: str) -> Path:
    """Where a part lies in the folder of the work, or in the output."""
    return folder / FEATURES / f"{name}.parquet"


def _work_off(plan: Extraction, missing: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbers and records of these parts, in the order in which they are done."""
    if not missing:
        return
    from ray.data import DataContext, TaskPoolStrategy, from_items

    resources = ray.cluster_resources()
    use_gpu = resources.get("GPU", 0) >= 1 if plan.use_gpu is None else plan.use_gpu
    most = int(resources.get("GPU", 0) if use_gpu else resources["CPU"] / plan.threads_per_worker)
    if most < 1:  # Ray would wait for ever
        what = "no GPU" if use_gpu else f"{resources['CPU']:g} CPUs"
        option = "use_gpu" if use_gpu else f"threads_per_worker {plan.threads_per_worker}"
        raise UserError(f"{what} in the cluster", f"--{option}", "leave it out")
    num_workers = min(plan.num_workers or most, len(missing))
    DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    rows = from_items([{"number": number} for number in missing], override_num_blocks=len(missing))
    done = rows.map(
        functools.partial(_work, plan=plan),
        compute=TaskPoolStrategy(size=num_workers),
        num_cpus=1 if use_gpu else plan.threads_per_worker,
        num_gpus=1 if use_gpu else None,
    )
    for row in done.iter_rows():
        yield int(row["number"]), json.loads(row["record"])


def _work(row: dict[str, Any], plan: Extraction) -> dict[str, Any]:
    """Writes the part of a number, in a process that keeps its encoder from part to part."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its CPUs are its own, the others' are not
    torch.set_num_threads(plan.threads_per_worker)
    torch.set_flush_denormal(True)
    number = int(row["number"])
    extractor = _extractor(plan.model, plan.choice, plan.max_tokens, plan.bfloat16)
    record = json.dumps(write_part(plan, number, extractor))
    give_back_memory()
    return {"number": number, "record": record}


def give_back_memory() -> None:
    """Returns freed memory to the machine, where the C library knows how.

    Micro-batches differ in size, so what is freed lies scattered: left alone, a worker grows by a
    megabyte with each part, to twice what it needs.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@functools.lru_cache(maxsize=1)
def _extractor(model: Path, choice: FeatureChoice, max_tokens: int, bfloat16: bool) -> Extractor:
    on_gpu = bool(ray.get_gpu_ids()) and torch.cuda.is_available()
    return load_extractor(
        model,
        choice,
        device=torch.device("cuda" if on_gpu else "cpu"),
        max_tokens=max_tokens,
        autocast_dtype=torch.bfloat16 if bfloat16 else None,
    )


def write_part(plan: Extraction, number: int, extractor: Extractor) -> dict[str, Any]:
    """Writes one part, then its record, which it gives."""
    path = part_path(plan.work, part_name(number))
    part = plan.parts[number]
    dropped: Counter[str] = Counter()
    columns = {"text_column": plan.text_column, "id_column": plan.id_column}
    try:
        counts = write_features(
            extractor,
            read_texts(part, dropped, **columns),
            path,
            output_format=plan.output_format,
            dtype=plan.dtype,
        )
    except UserError as error:
        can_be_left_out = isinstance(error, UnreadableFileError)
        left_out = plan.skip_bad and can_be_left_out
        remedy = f"{error.remedy}, {OR_SKIP}" if can_be_left_out and not left_out else error.remedy
        said = [error.what, f"{error.where}{part.stretch}", remedy]
        record: dict[str, Any] = {"error": said, "left_out": left_out}
        if not left_out:  # the next start looks again
            return record
    else:
        weights = extractor.layer_weights
        record = {"name": part_name(number), "counts": dict(counts), "dropped": dict(+dropped)}
        record["layer_weights"] = None if weights is None else list(weights)
    write_bytes(_record_path(plan, number), json.dumps(record).encode())
    return record


def _record_path(plan: Extraction, number: int) -> Path:
    return plan.work / f"{part_name(number)}.json"
