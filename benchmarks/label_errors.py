"""Measure how many label errors `audit` finds, of labels flipped on purpose.

`python -m benchmarks.label_errors --data MRPC --model DIR --output FOLDER [--json FILE]` flips 5 %
of MRPC's training labels, audits the flipped data by the command and counts the flips in its
ranking. The same command resumes after a kill.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.measurement import surroundings
from benchmarks.results import write_results
from bert_core.errors import UserError
from bert_core.text.rng import CounterHash, permutation

ROOT = Path(__file__).parent.parent
OTHER = {"0": "1", "1": "0"}
DEPTHS = (0.05, 0.1, 0.2)
"""Shares of the ranking in which flips are counted."""


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
    storage = options.output.absolute() / "storage"
    settings = {
        "data": data.absolute(),
        "model": options.model.absolute(),
        "storage": storage,
        "name": "label-errors",
        "epochs": options.epochs,
        "seeds": options.seeds,
        "optimizer.peak_learning_rate": options.learning_rate,
        "options.max_length": 128,
    }
    command += [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    if subprocess.run(command).returncode:
        raise UserError("the audit failed", " ".join(command), "see its messages above")
    return storage / "audits" / "label-errors" / "artifacts"


def measured(artifacts: Path, flipped: Sequence[int]) -> dict[str, Any]:
    """How many flips stand where in the ranking, and what the suspects and the retraining are."""
    wrong = {f"train.tsv:{line}" for line in flipped}
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
        results = measured(audit(options.output / "data", options), flipped)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for depth, share in results["found_in_the_first"].items():
        print(f"the first {depth} of the ranking have {share:.1%} of the flips")
    print(
        f"{results['suspects']:,} suspects: {results['precision']:.1%} of them are flips,"
        f" {results['recall']:.1%} of all {len(flipped):,}"
    )
    names = ("share", "seed", "epochs", "learning_rate", "seeds")
    settings = {name: getattr(options, name) for name in names}
    results |= {"settings": settings, "surroundings": surroundings(torch.device("cpu"))}
    write_results(results, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
