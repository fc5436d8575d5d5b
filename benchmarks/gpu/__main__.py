"""Run all GPU measurements; repeat the command until nothing is left.

`python -m benchmarks.gpu --out DIR [--data DIR --encoder DIR --shards DIR] [--minutes 9]`. Each job
is a process with a time limit and writes DIR/NAME.json and DIR/NAME.log. A finished job is not
repeated, and a failed one stops no other. A job that does not fit into the remaining minutes is not
started. DIR/all.json holds everything: copied into an empty DIR, it is enough to continue on
another machine. With --copy it and DIR/summary.md are copied there after each job. The exit code is
0 when all jobs are finished, 130 when the same command continues, 1 when jobs failed and nothing
else is left.

`--rehearse` runs the same commands with the smallest of everything, on the CPU if there is no GPU:
errors show in minutes instead of an hour.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.jobs import OUT_OF_TIME, Job, Places, all_jobs
from benchmarks.gpu.ledger import Ledger
from benchmarks.measurement import device_named, device_state, surroundings
from bert_core.errors import UserError, nearest

MARGIN_SECONDS = 5.0
"""Of a call, reserved for what follows its last job."""
STOPPING_SECONDS = 10.0
"""Between asking a job to stop and killing it."""
PLANNED_SHARE = 0.9
"""Of its time limit: what a job may plan with."""


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of results and logs")
    parser.add_argument("--data", type=Path, help="folder with glue, squad and text")
    parser.add_argument(
        "--encoder", type=Path, help="folder with a tokenizer; by default that of the shards"
    )
    parser.add_argument("--shards", type=Path, help="folder of token shards")
    parser.add_argument("--minutes", type=float, default=9.0, help="that this call may take")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these jobs, in this order")
    parser.add_argument("--list", action="store_true", help="list the jobs without starting any")
    parser.add_argument("--copy", type=Path, help="copy all.json and summary.md here as well")
    parser.add_argument(
        "--rehearse", action="store_true", help="the smallest of everything, on any device"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the missing jobs that fit; exit codes are in the module docstring, 2 is a wrong call."""
    options = parse_arguments(arguments)
    begin = time.monotonic()
    try:
        jobs, missing = chosen_jobs(options)
        ledger = Ledger(options.out, options.copy)
        if options.list:
            list_jobs(jobs, missing, ledger)
            return 0
        device = device_named(device_of(options))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _leave)
    options.out.mkdir(parents=True, exist_ok=True)
    ledger.add_machine(machine_facts(device))
    print(", ".join(f"{name} {value}" for name, value in ledger.machines[-1].items()), flush=True)
    end = begin + 60 * options.minutes - MARGIN_SECONDS
    run_jobs(jobs, ledger, seconds_left=lambda: end - time.monotonic())
    print(ledger.write_summary(jobs, missing))
    return exit_code(jobs, ledger)


def device_of(options: argparse.Namespace) -> str:
    """Choose the device; a rehearsal uses the CPU if there is no GPU."""
    return "cpu" if options.rehearse and not torch.cuda.is_available() else "cuda"


def _leave(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)  # the running job is stopped on exit


def chosen_jobs(options: argparse.Namespace) -> tuple[list[Job], dict[str, str]]:
    """Select the jobs that are wanted and possible; explain why others are not.

    Raises `UserError` for a missing folder and for an unknown job.
    """
    for name in ("data", "encoder", "shards"):
        folder = getattr(options, name)
        if folder is not None and not folder.is_dir():
            raise UserError("no such folder", f"--{name} {folder}", "give another, or leave it out")
    places = Places(
        options.data, options.encoder, options.shards, options.rehearse, device_of(options)
    )
    jobs, missing = all_jobs(places)
    if options.only is None:
        return jobs, missing
    by_name = {job.name: job for job in jobs}
    for name in options.only:
        if name not in by_name:
            known = f"no such job{nearest(name, by_name)}"
            raise UserError(missing.get(name, known), f"--only {name}", "--list names them")
    return [by_name[name] for name in dict.fromkeys(options.only)], {}


def list_jobs(jobs: Sequence[Job], missing: dict[str, str], ledger: Ledger) -> None:
    """Print every job, its expected minutes and its state."""
    for job in jobs:
        state = ledger.status(job.name) or "not started"
        print(f"{job.name:32}{job.expected_minutes:5.1f} min  {state}")
    for name, why in missing.items():
        print(f"{name:32}           left out: {why}")


def machine_facts(device: torch.device) -> dict[str, Any]:
    """The device, the versions, and what nvidia-smi says."""
    facts: dict[str, Any] = dict(surroundings(device))
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        facts |= {"cuda": torch.version.cuda, "memory_gib": round(memory / 2**30, 1)}
    return facts | (device_state(device) or {})


def run_jobs(jobs: Sequence[Job], ledger: Ledger, *, seconds_left: Callable[[], float]) -> None:
    """Runs the unfinished jobs, those with the fewest attempts first.

    A job that does not fit into the remaining time is skipped: a later, shorter one may fit.
    """
    for job in sorted(jobs, key=lambda job: ledger.attempts(job.name)):
        if ledger.status(job.name) == "finished":
            continue
        needed, left = ledger.needed_seconds(job), seconds_left()
        if left < needed:
            print(f"{job.name}: needs {needed / 60:.1f} min, {left / 60:.1f} left", flush=True)
            continue
        print(f"{job.name}: started, {needed / 60:.1f} min expected", flush=True)
        limit = 60 * job.limit_minutes
        begin = time.monotonic()
        code = run_job(job, ledger, min(limit, left))
        seconds = time.monotonic() - begin
        status = ledger.add(job, code, seconds, is_limit=limit <= left)
        print(f"{job.name}: {status} after {seconds / 60:.1f} min", flush=True)


def run_job(job: Job, ledger: Ledger, seconds: float) -> int | None:
    """Runs a job's process, appending to its log; returns the exit code, None if it was stopped.

    Stops its whole process group.
    """
    command = job.command(ledger.out, PLANNED_SHARE * seconds)
    with ledger.log_path(job.name).open("ab") as log:
        log.write(f"attempt {ledger.attempts(job.name) + 1}, at most {seconds:.0f} s\n".encode())
        log.flush()
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                # Unbuffered, so that a stopped job's output is not lost; offline, because the
                # machine may not reach the hub.
                env=os.environ | {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"},
            )
        except OSError as error:
            log.write(f"cannot be started: {error}\n".encode())
            return 127
        try:
            return process.wait(max(seconds - STOPPING_SECONDS, seconds / 2))
        except subprocess.TimeoutExpired:
            _signal_group(process, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(min(STOPPING_SECONDS, seconds / 2))
            return None
        finally:
            _signal_group(process, signal.SIGKILL)
            process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def exit_code(jobs: Sequence[Job], ledger: Ledger) -> int:
    """Return 0 when all is finished, 130 when another call continues, 1 when jobs failed."""
    left = {ledger.status(job.name) for job in jobs} - {"finished"}
    if left & {None, "unfinished", "cut off"}:
        return OUT_OF_TIME
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
