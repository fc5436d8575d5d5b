"""Measure how many label errors `audit` finds, of labels flipped on purpose.

`python -m benchmarks.label_errors --data MRPC --model DIR --output FOLDER [--json FILE]` flips 5 %
of MRPC's training labels, audits the flipped data by the command and counts the flips in its
ranking. Then it trains without those flips that somebody would find who reads the first tenth of
the ranking and knows better. The same command resumes after a kill.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.measurement import surroundings
from benchmarks.recipes import swept
from benchmarks.results import write_results
from bert_core.errors import UserError
from bert_core.evaluation.intervals import mean_difference
from bert_core.text.rng import CounterHash, permutation

ROOT = Path(__file__).parent.parent
OTHER = {"0": "1", "1": "0"}
DEPTHS = (0.05, 0.1, 0.2)
"""Shares of the ranking in which flips are counted."""
READ = 0.1
"""The share of the ranking that somebody reads."""


def write_flipped(data: Path, folder: Path, share: float, seed: int) -> list[int]:
    """Writes MRPC with a share of its training labels flipped; returns their lines, from 1."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dev.tsv").write_bytes((data / "dev.tsv").read_bytes())
    head, *lines = (data / "train.tsv").read_text(encoding="utf-8-sig").splitlines(keepends=True)
    drawn = permutation(CounterHash("label errors", seed), len(lines))
    flipped = sorted(drawn[: round(share * len(lines))].tolist())
    for number in flipped:
        label, tab, rest = lines[number].partition("\t")
        lines[number] = OTHER[label] + tab + rest
    (folder / "train.tsv").write_text(head + "".join(lines), encoding="utf-8")
    return [number + 2 for number in flipped]


def audit(data: Path, options: argparse.Namespace) -> Path:
    """Audits the data by the command; returns its artifacts. Raises `UserError` on failure."""
    command = [sys.executable, str(ROOT / "workflows" / "audit.py"), "--task", "mrpc"]
    command += [*_settings(data, options), "--name", "label-errors"]
    if subprocess.run(command).returncode:
        raise UserError("the audit failed", " ".join(command), "see its messages above")
    return options.output.absolute() / "storage" / "audits" / "label-errors" / "artifacts"


def write_read(artifacts: Path, flipped: Sequence[int], file: Path) -> int:
    """Writes the flips among the first `READ` of the ranking, as --exclude takes it; how many."""
    wrong = _places(flipped)
    lines = (artifacts / "ranking.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    read = lines[: round(READ * len(lines))]
    found = [line for line in read if json.loads(line)["where"] in wrong]
    file.write_text("".join(found), encoding="utf-8")
    return len(found)


def trained_without(file: Path, data: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What models reach that learn from all examples, and those without the ones of a file.

    The runs on all examples are those of the audit. Raises `UserError` on failure.
    """
    given = ["--task", "mrpc", *_settings(data, options), "--axis", "none"]
    storage = options.output.absolute() / "storage"
    found: dict[str, Any] = {}
    for name, more in {"all": [], "without": ["--exclude", str(file.absolute())]}.items():
        report = swept(f"label-errors-{name}", [*given, *more], storage)
        trials = sorted(report["trials"], key=lambda trial: trial["seed"])
        found |= {"criterion": report["criterion"], name: [trial["score"] for trial in trials]}
    if options.seeds > 1:
        found["difference"] = asdict(mean_difference(found["all"], found["without"]))
    return found


def _places(lines: Sequence[int]) -> set[str]:
    return {f"train.tsv:{line}" for line in lines}


def _settings(data: Path, options: argparse.Namespace) -> list[str]:
    settings = {
        "data": data.absolute(),
        "model": options.model.absolute(),
        "storage": options.output.absolute() / "storage",
        "epochs": options.epochs,
        "seeds": options.seeds,
        "optimizer.peak_learning_rate": options.learning_rate,
        "options.max_length": 128,
    }
    return [text for name, value in settings.items() for text in (f"--{name}", str(value))]


def measured(artifacts: Path, flipped: Sequence[int]) -> dict[str, Any]:
    """How many flips stand where in the ranking, and what the suspects and the retraining are."""
    wrong = _places(flipped)
    ranking = [json.loads(line) for line in (artifacts / "ranking.jsonl").open(encoding="utf-8")]
    is_flip = [row["where"] in wrong for row in ranking]
    suspects = [row["where"] in wrong for row in ranking if row["suspect"]]
    report = json.loads((artifacts / "report.json").read_text())
    found = {
        f"{depth:.0%}": sum(is_flip[: round(depth * len(ranking))]) / len(wrong) for depth in DEPTHS
    }
    return {
        "examples": len(ranking),
        "flipped": len(wrong),
        "found_in_the_first": found,
        "suspects": len(suspects),
        "flips_among_suspects": sum(suspects),
        "precision": sum(suspects) / max(len(suspects), 1),
        "recall": sum(suspects) / len(wrong),
        "estimated_noise": report["estimated_noise"],
        "out_of_fold": report["out_of_fold"],
        "retrained": report["retrained"],
    }


def main(arguments: Sequence[str]) -> int:
    """Flips, audits, counts and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.label_errors", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of MRPC's TSV files")
    parser.add_argument("--model", type=Path, required=True, help="BERT folder")
    parser.add_argument("--output", type=Path, required=True, help="folder for data and runs")
    parser.add_argument("--share", type=float, default=0.05, help="share of labels to flip")
    parser.add_argument("--seed", type=int, default=0, help="which labels are flipped")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3, help="models of each fold")
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args(arguments)
    try:
        flipped = write_flipped(options.data, options.output / "data", options.share, options.seed)
        artifacts = audit(options.output / "data", options)
        results = measured(artifacts, flipped)
        file = options.output / "read.jsonl"
        count = write_read(artifacts, flipped, file)
        read = trained_without(file, options.output / "data", options)
        results["read_from_the_top"] = {"share": READ, "left_out": count, **read}
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for depth, share in results["found_in_the_first"].items():
        print(f"the first {depth} of the ranking have {share:.1%} of the flips")
    print(
        f"{results['suspects']:,} suspects: {results['precision']:.1%} of them are flips,"
        f" {results['recall']:.1%} of all {len(flipped):,}"
    )
    means = [100 * fmean(read[name]) for name in ("all", "without")]
    print(
        f"without the {count} flips in the first {READ:.0%}: {read['criterion']} {means[1]:.2f},"
        f" with all {means[0]:.2f}; means of {options.seeds} seeds"
    )
    names = ("share", "seed", "epochs", "learning_rate", "seeds")
    settings = {name: getattr(options, name) for name in names}
    results |= {"settings": settings, "surroundings": surroundings(torch.device("cpu"))}
    write_results(results, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
