"""Measure the overhead of a sweep over the training of its trials.

`python -m benchmarks.tuning --data MRPC --model DIR [--json FILE]` runs `workflows/tune.py` twice
on a running Ray cluster: four tiny trials, whose seconds it reports, and trials of half a minute
and more, whose training time it compares with that of the whole command.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import ray
import torch

from benchmarks.measurement import surroundings
from benchmarks.results import write_results
from bert_core.errors import UserError
from workflows.clusters.tasks import connect
from workflows.sweeps.outcome import TrialOutcome

ROOT = Path(__file__).parent.parent
TRIALS = ("optimizer.peak_learning_rate=5e-5,3e-5", "batch_size=16,32")
TINY_EXAMPLES = 64


@dataclass(frozen=True)
class Figures:
    """One sweep: training seconds of each trial, seconds of the command, and their ratios.

    `command_ratio` is the command's time over the trials' divided by those that ran at once;
    `sweep_ratio` the same of the time from the first trial's start to the last one's end.
    """

    trial_seconds: list[float]
    at_once: int
    command_seconds: float
    sweep_seconds: float
    command_ratio: float
    sweep_ratio: float


def run_sweep(arguments: Sequence[str], storage: Path, address: str) -> Figures:
    """Runs a sweep by its command on this cluster; raises `UserError` on failure."""
    command = [sys.executable, str(ROOT / "workflows" / "tune.py"), *arguments]
    begin = time.monotonic()
    outcome = subprocess.run(
        [*command, "--storage", str(storage)],
        env=os.environ | {"RAY_ADDRESS": address},
        stdout=subprocess.PIPE,
        text=True,
    )
    seconds = time.monotonic() - begin
    if outcome.returncode:
        raise UserError("the sweep failed", " ".join(command), "see its messages above")
    report = json.loads(next(storage.glob("sweeps/*/artifacts/report.json")).read_text())
    at_once = int(report["at_once"])
    trials = [TrialOutcome.read(path) for path in sorted(storage.glob("runs/*/trial.json"))]
    trained = [trial.seconds for trial in trials]
    least = sum(trained) / at_once
    sweep_seconds = float(report["wall_seconds"])
    return Figures(
        trial_seconds=trained,
        at_once=at_once,
        command_seconds=seconds,
        sweep_seconds=sweep_seconds,
        command_ratio=seconds / least,
        sweep_ratio=sweep_seconds / least,
    )


def write_head(data: Path, folder: Path, count: int) -> Path:
    """Writes a folder with the first examples of train and dev."""
    folder.mkdir()
    for name in ("train.tsv", "dev.tsv"):
        lines = (data / name).read_text(encoding="utf-8-sig").splitlines(keepends=True)
        (folder / name).write_text("".join(lines[: count + 1]), encoding="utf-8")
    return folder


def main(arguments: Sequence[str]) -> int:
    """Runs both sweeps and prints their times."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of MRPC's TSV files")
    parser.add_argument("--model", type=Path, required=True, help="BERT folder")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args(arguments)
    try:
        connect()
        address = ray.get_runtime_context().gcs_address
        common = ["--task", "mrpc", "--model", str(options.model.absolute())]
        axes = ["--axis", *TRIALS]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            head = write_head(options.data, folder / "head", TINY_EXAMPLES)
            tiny = [*common, "--data", str(head), *axes, "--epochs", "1"]
            small = run_sweep(tiny, folder / "tiny", address)
            print(f"4 tiny trials: {small.command_seconds:.1f} s with Ray running", flush=True)
            whole = [*common, "--data", str(options.data.absolute()), *axes]
            large = run_sweep([*whole, "--epochs", "1", "--seeds", "2"], folder / "large", address)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    shortest = min(large.trial_seconds)
    print(
        f"{len(large.trial_seconds)} trials of {shortest:.0f} s and more, {large.at_once} at once: "
        f"{large.command_seconds:.0f} s, {large.command_ratio:.3f} times their training; "
        f"from the first trial's start to the last one's end {large.sweep_ratio:.3f} times"
    )
    found = {"surroundings": surroundings(torch.device("cpu"))}
    write_results(found | {"tiny": asdict(small), "trials": asdict(large)}, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
