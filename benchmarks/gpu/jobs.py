"""Define what is measured on a GPU: the command line of each job, and its time limit.

`expected_minutes` is for an H200, from the start of the process; it decides whether a job is
started or left to the next call. A job is stopped after `limit_minutes`.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from bert_core.special_tokens import TokenizerError
from bert_core.tokenizer import load_tokenizer

MOST_MINUTES = 7.8
"""Of a job, on a machine with ten minutes per call including start and stop."""
REHEARSAL_MINUTES = 0.5
FIRST = (
    "pretraining-base-128-full",
    "pretraining-base-512-natural",
    "pretraining-large-512-natural",
    "encoder",
)
"""The jobs that run first: all together take an hour, longer than some machines are available."""
ABLATED = (
    "packing masked_rows compile fused_projections",
    "last_layer padded_vocabulary fused_adamw large_step",
)
"""The ablations of the fast step, in groups that fit into a job."""
OUT_OF_TIME = 130
"""Exit code of a job that made progress and resumes when it is called again."""


@dataclass(frozen=True)
class Job:
    """One measurement: a process that writes its results as JSON.

    Placeholders in its arguments: `{json}` is the file for its results, `{folder}` a folder that it
    may use, `{minutes}` and `{seconds}` its time.
    """

    name: str
    arguments: tuple[str, ...]
    expected_minutes: float
    limit_minutes: float = MOST_MINUTES

    def command(self, out: Path, seconds: float) -> list[str]:
        """The command line, for results in `out` and a time of `seconds`."""
        values = {
            "{json}": str(out / f"{self.name}.json"),
            "{folder}": str(out / self.name),
            "{minutes}": f"{seconds / 60:.2f}",
            "{seconds}": f"{seconds:.0f}",
        }
        words = [sys.executable, *self.arguments]
        for placeholder, value in values.items():
            words = [word.replace(placeholder, value) for word in words]
        return words


def module_job(
    module: str, name: str, options: str, expected_minutes: float, *more: str | Path
) -> Job:
    """A benchmark of ours; `options` are split at spaces, `more` are not."""
    words = ("-m", f"benchmarks.{module}", *options.split(), *map(str, more), "--json", "{json}")
    return Job(name, words, expected_minutes)


@dataclass(frozen=True)
class Places:
    """The available data, and the device.

    `data` has glue/, squad/ and text/, `encoder` is a model folder or has a tokenizer alone,
    `shards` are token shards. `rehearsal` runs the same commands with the smallest settings.
    """

    data: Path | None = None
    encoder: Path | None = None
    shards: Path | None = None
    rehearsal: bool = False
    device: str = "cuda"

    @property
    def tokenizer(self) -> Path | None:
        """The folder with a tokenizer: the encoder's or the shards'; None without either."""
        for folder in (self.encoder, self.shards):
            try:
                if folder is not None and load_tokenizer(folder):
                    return folder
            except TokenizerError:
                continue
        return None

    def size(self, wanted: str) -> str:
        """The size of a model; the smallest in a rehearsal."""
        return "tiny" if self.rehearsal else wanted


def all_jobs(places: Places) -> tuple[list[Job], dict[str, str]]:
    """The jobs that the data allows, in order, and the reasons why others are missing."""
    jobs, missing = _pretraining_jobs(places), dict[str, str]()
    for found, lacking in (_task_jobs(places), _feature_jobs(places), _shard_jobs(places)):
        jobs += found
        missing |= lacking
    if places.rehearsal:
        jobs = [replace(job, expected_minutes=REHEARSAL_MINUTES) for job in jobs]
    return sorted(jobs, key=lambda job: job.name not in FIRST), missing


def _pretraining_jobs(places: Places) -> list[Job]:
    jobs = []
    for size, length, lengths, minutes in (
        ("base", 128, "full", 4.0),
        ("base", 128, "natural", 4.0),
        ("base", 512, "full", 4.5),
        ("base", 512, "natural", 4.5),
        ("large", 512, "natural", 6.5),
        ("large", 512, "full", 6.5),
    ):
        name, shape = f"pretraining-{size}-{length}-{lengths}", _shape(places, size, length)
        options = f"{shape} --lengths {lengths}"
        jobs.append(module_job("pretraining", name, options, minutes))
    if places.device == "cuda":  # compiled
        shape = _shape(places, "base", 512)
        for number, names in enumerate(ABLATED, 1):
            # The names follow the flag, so another flag must come after them.
            options = f"{shape} --lengths natural --ablation {names}"
            name = f"ablation-{number}-base-512-natural"
            jobs.append(module_job("pretraining", name, options, MOST_MINUTES))
    return jobs


def _shape(places: Places, size: str, length: int) -> str:
    shape = f"--device {places.device} --preset {places.size(size)} --sequence_length {length}"
    small = "--batch 2 --tokens 8192 --rounds 1 --steps 1 --warmup 1"
    few = f" {small}" if places.rehearsal else ""
    return f"{shape} --budget_seconds {{seconds}}{few}"


def _task_jobs(places: Places) -> tuple[list[Job], dict[str, str]]:
    tokenizer, jobs, missing = places.tokenizer, list[Job](), dict[str, str]()
    few = "--examples 40 --batch 4 --passes 1" if places.rehearsal else "--passes 10"
    for task, folder, minutes, options in (
        ("mrpc", "glue/MRPC", 1.5, ""),
        ("squad", "squad", 3.0, "" if places.rehearsal else "--examples 20000"),
    ):
        for peer in ("trainer", "loop"):
            if peer == "loop" and find_spec("accelerate") is None:
                continue  # without the Trainer, the first of the two already uses the loop
            name = f"finetuning-{task}" if peer == "trainer" else f"finetuning-{task}-loop"
            data = places.data / folder if places.data else None
            if tokenizer is None or data is None or not data.is_dir():
                missing[name] = f"needs --data with {folder}, and --encoder or --shards"
                continue
            words = f"--task {task} --device {places.device} {few} {options}"
            words += f" --size {places.size('base')}"
            words += " --peer loop" if peer == "loop" else ""
            jobs.append(
                module_job("finetuning", name, words, minutes, "--data", data, "--model", tokenizer)
            )
    return jobs, missing


def _feature_jobs(places: Places) -> tuple[list[Job], dict[str, str]]:
    tokenizer = places.tokenizer
    sentences = places.data / "glue" / "SST-2" if places.data else None
    texts = _text_files(places.data)
    if tokenizer is None or sentences is None or not sentences.is_dir() or not texts:
        why = "needs --data with glue/SST-2 and a file in text, and --encoder or --shards"
        return [], {"features": why}
    words = f"--device {places.device} --size {places.size('base')}"
    words += " --texts 16 --rounds 1" if places.rehearsal else ""
    more = ("--sentences", sentences, "--paragraphs", texts[0], "--model", tokenizer)
    return [module_job("features", "features", words, 2.5, *more)], {}


def _text_files(data: Path | None) -> Sequence[Path]:
    """The text files, smallest first; reading is not measured."""
    found = list((data / "text").glob("*.txt*")) if data else []
    return sorted(found, key=lambda path: (path.stat().st_size, path.name))


def _shard_jobs(places: Places) -> tuple[list[Job], dict[str, str]]:
    if places.shards is None:
        return [], {"loading": "needs --shards", "encoder": "needs --shards and --data with glue"}
    shards = ("--shards", places.shards)
    few = " --rounds 1 --steps 2 --tokens 2048" if places.rehearsal else " --rounds 5"
    words = f"--device {places.device} --preset {places.size('base')} --sequence_length 512{few}"
    jobs = [module_job("data", "loading", words, 4.0, *shards)]
    if places.data is None or not (places.data / "glue").is_dir():
        return jobs, {"encoder": "needs --data with glue"}
    few = " --steps 4 --examples 16 --epochs 1 --heldout_rows 8" if places.rehearsal else ""
    words = f"--device {places.device} --preset {places.size('small')} --minutes {{minutes}}{few}"
    more = (*shards, "--glue", places.data / "glue", "--out", "{folder}")
    more += ("--pieces", "{folder}-pieces")
    return [*jobs, module_job("encoder_run", "encoder", words, MOST_MINUTES, *more)], {}
