"""Record the outcome of each GPU job in one file, all that a later call needs to continue.

`all.json` has the results and the end of the log of every job; `summary.md` is the same as a table.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.jobs import OUT_OF_TIME, Job
from benchmarks.results import write_results
from bert_core.errors import UserError

ALL, SUMMARY = "all.json", "summary.md"
TAIL_LINES, TAIL_CHARACTERS = 40, 400

Status = Literal["finished", "unfinished", "cut off", "timed out", "failed", "no results"]
"""`unfinished` and `cut off` (by the end of the call) continue in the next call."""


class Ledger:
    """The record of a folder's jobs, written to disk after every change."""

    def __init__(self, out: Path, copy: Path | None = None) -> None:
        """Reads existing records and restores result files that are missing.

        Every written file is also copied to the folder `copy`. Raises `UserError` for an invalid
        `all.json`.
        """
        self.out, self._copy = out, copy
        self.machines: list[Mapping[str, Any]] = []
        self.jobs: dict[str, dict[str, Any]] = {}
        path = out / ALL
        if path.exists():
            try:
                found = json.loads(path.read_text(encoding="utf-8"))
                self.machines, self.jobs = found["machines"], found["jobs"]
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(
                    "no results of benchmarks.gpu", str(path), "remove it, or give another --out"
                ) from error
        for name, record in self.jobs.items():
            if record["results"] is not None and not self._results_path(name).exists():
                write_results(record["results"], self._results_path(name))

    def log_path(self, name: str) -> Path:
        """The file of a job's output."""
        return self.out / f"{name}.log"

    def _results_path(self, name: str) -> Path:
        return self.out / f"{name}.json"

    def status(self, name: str) -> Status | None:
        """The status of a job; None if it was not started."""
        return self.jobs[name]["status"] if name in self.jobs else None

    def attempts(self, name: str) -> int:
        """How often a job was started."""
        return self.jobs[name]["attempts"] if name in self.jobs else 0

    def needed_seconds(self, job: Job) -> float:
        """The time that must be left to start a job: its expected time.

        A job that was cut off took longer than expected and gets its whole time limit.
        """
        minutes = job.expected_minutes
        return 60 * (job.limit_minutes if self.status(job.name) == "cut off" else minutes)

    def add_machine(self, machine: Mapping[str, Any]) -> None:
        """Records the machine of this call."""
        self.machines.append(machine)
        self._write()

    def add(self, job: Job, code: int | None, seconds: float, *, is_limit: bool) -> Status:
        """Records a job's outcome and returns its status; `code` is None for a stopped job.

        `is_limit` is whether its own time limit stopped it.
        """
        results = self._results_of(job.name)
        status = status_of(code, results, is_limit=is_limit)
        self.jobs[job.name] = {
            "status": status,
            "attempts": self.attempts(job.name) + 1,
            "exit_code": code,
            "seconds": seconds,
            "device": self.machines[-1].get("device") if self.machines else None,
            "results": results,
            "log_tail": tail(self.log_path(job.name)),
        }
        self._write()
        return status

    def _results_of(self, name: str) -> dict[str, Any] | None:
        try:
            found = json.loads(self._results_path(name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _write(self) -> None:
        content = {"benchmark": "gpu", "machines": self.machines, "jobs": self.jobs}
        write_results(content, self.out / ALL)
        self._hand_out(ALL)

    def write_summary(self, jobs: Sequence[Job], missing: Mapping[str, str]) -> str:
        """Writes and returns the table of these jobs."""
        text = "\n".join(self._summary(jobs, missing)) + "\n"
        (self.out / SUMMARY).write_text(text, encoding="utf-8")
        self._hand_out(SUMMARY)
        return text

    def _hand_out(self, name: str) -> None:
        if self._copy is not None:
            self._copy.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.out / name, self._copy / name)

    def _summary(self, jobs: Sequence[Job], missing: Mapping[str, str]) -> Iterable[str]:
        for number, facts in enumerate(self.machines, 1):
            yield (
                f"Call {number}: "
                + ", ".join(f"{name} {value}" for name, value in facts.items() if value)
                + "\n"
            )
        yield "| job | state | minutes | |"
        yield "| --- | --- | ---: | --- |"
        for job in jobs:
            if job.name not in self.jobs:
                yield f"| {job.name} | not started | | |"
                continue
            record = self.jobs[job.name]
            told = _told(record)
            yield f"| {job.name} | {record['status']} | {record['seconds'] / 60:.1f} | {told} |"
        for name, why in missing.items():
            yield f"| {name} | left out | | {why} |"


def _told(record: Mapping[str, Any]) -> str:
    """The main results, and the end of the log for an unfinished job."""
    cells = [] if record["results"] is None else [headline(record["results"])]
    if record["status"] != "finished" and record["log_tail"]:
        cells.append(f"`{record['log_tail'][-1].replace('|', '/').replace('`', '')}`")
    return "; ".join(cell for cell in cells if cell)


def status_of(code: int | None, results: Mapping[str, Any] | None, *, is_limit: bool) -> Status:
    """The status of a job, by its exit code and results."""
    if code is None:
        return "timed out" if is_limit else "cut off"
    if code == OUT_OF_TIME:
        return "unfinished"
    if code != 0:
        return "failed"
    if results is None:
        return "no results"
    is_whole = results.get("finished", True) and not results.get("unfinished", False)
    return "finished" if is_whole else "unfinished"


def tail(path: Path) -> list[str]:
    """The last lines of a log that say anything; of a line that was written over, its last form."""
    if not path.exists():
        return []
    text = path.read_bytes().decode("utf-8", errors="replace")
    lines = [line.rstrip().rpartition("\r")[2] for line in text.split("\n")]
    return [line[:TAIL_CHARACTERS] for line in lines if line.strip()][-TAIL_LINES:]


Results = Mapping[str, Any]

MOST_FIGURES = 6


def headline(results: Results) -> str:
    """One line of results, or a note that they are incomplete."""
    tell = _BY_BENCHMARK.get(str(results.get("benchmark")), _any_figures)
    try:
        return tell(results)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return "incomplete results"


def _pretraining(results: Results) -> str:
    if "ablation" in results:
        return _ablation(results)
    arms = results["arms"]
    own = {name: arm for name, arm in arms.items() if "ratio" not in arm}
    name, best = max(own.items(), key=lambda item: item[1]["tokens_per_second"])
    parts = [f"{best['tokens_per_second']:,.0f} tokens/s ({name})", f"MFU {best['mfu']:.1%}"]
    ratios = {name: arm["ratio"] for name, arm in arms.items() if "ratio" in arm}
    if ratios:
        peer, ratio = min(ratios.items(), key=lambda item: item[1])
        parts.append(f"{ratio:.2f} times as fast as {peer}")
    return ", ".join(parts)


def _ablation(results: Results) -> str:
    rows = {**results.get("arms", {}), **results["ablation"]}
    return ", ".join(f"{name} {row['tokens_per_second']:,.0f}" for name, row in rows.items())


def _finetuning(results: Results) -> str:
    ours, peer = results["arms"].items()
    return (
        f"{ours[1]['examples_per_second']:,.0f} examples/s, MFU {ours[1]['mfu']:.1%}, "
        f"{results['ratio']:.2f} times as fast as {peer[0]}"
    )


def _features(results: Results) -> str:
    share = results["flops_per_second"] / results["peak_flops_per_second"]
    parts = [
        f"{results['arms']['ours']['tokens_per_second']:,.0f} tokens/s",
        f"{share:.1%} of the peak",
    ]
    parts += [f"{each:.2f} times as fast as {name}" for name, each in results["ratios"].items()]
    return ", ".join(parts)


def _encoder_run(results: Results) -> str:
    record = results["pretraining"]
    end = record["heldout"][-1]
    parts = [
        f"{record['step']:,} steps, {record['tokens']:,} tokens",
        f"held-out masked-token loss {end['masked_token_loss']:.3f}",
    ]
    for task, stage in results["finetuning"].items():
        compared = stage["compared"]
        pair = f"{compared['pre-trained']:.3f} (untrained {compared['untrained']:.3f})"
        parts.append(f"{task} {pair}")
    return ", ".join(parts)


def _any_figures(results: Results) -> str:
    """The first numbers at the top level or one level below."""
    figures = []
    for name, value in results.items():
        below = value.items() if isinstance(value, Mapping) else ()
        for each, number in [(name, value), *((f"{name}.{key}", it) for key, it in below)]:
            if isinstance(number, int | float) and not isinstance(number, bool):
                figures.append(f"{each} {number:,.4g}")
    return ", ".join(figures[:MOST_FIGURES])


_BY_BENCHMARK: Mapping[str, Callable[[Results], str]] = {
    "pretraining": _pretraining,
    "finetuning": _finetuning,
    "features": _features,
    "encoder_run": _encoder_run,
}
