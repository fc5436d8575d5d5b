"""Compare the training rate of an adapted run with that of a run from scratch, of one shape.

`python -m benchmarks.adaptation --start_from MODEL_FOLDER --shards DIR`: the same rows and settings
of the preset adapt, in interleaved turns in one process. The shards are of the model's tokenizer.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.measurement import surroundings
from benchmarks.results import write_results
from bert_core.errors import UserError
from bert_core.training.loop import train
from workflows.clusters.channel import Channel
from workflows.clusters.workers import Worker
from workflows.pretraining.job import continue_from, find_start
from workflows.pretraining.settings import AdaptSettings, PretrainSettings
from workflows.pretraining.worker import pretraining_parts
from workflows.runs.storage import open_storage
from workflows.settings import parse_command_line

ADAPTED, SCRATCH = "adapted", "from scratch"


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adaptation", description=__doc__)
    parser.add_argument("--start_from", required=True, help="model folder to adapt")
    parser.add_argument("--shards", required=True, help="folder of token shards")
    parser.add_argument("--turns", type=int, default=7, help="of each arm, after one of warm-up")
    parser.add_argument("--steps", type=int, default=2, help="steps of a turn")
    parser.add_argument("--json", type=Path, help="file for the figures")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Measures, prints the ratio and writes JSON where asked; returns 2 for wrong input."""
    options = parse_arguments(arguments)
    try:
        with tempfile.TemporaryDirectory() as name:
            results = measure(options, Path(name))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    for arm, seconds in results["seconds_of_a_step"].items():
        print(f"{arm:14}{seconds:8.3f} s a step")
    print(f"adapted at {results['ratio']:.3f} of the rate from scratch")
    write_results(results, options.json)
    return 0


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Times both arms in turns; the ratio is the median over turns."""
    torch.set_flush_denormal(True)
    given = ["--start_from", options.start_from, "--shards", options.shards]
    settings = parse_command_line(AdaptSettings, [*given, "--storage", str(folder)])
    start = find_start(settings, open_storage(settings.storage))
    assert start is not None
    settings = continue_from(settings, start)
    fresh = settings.model_dump(mode="json") | {"start_from": None}
    arms = {
        ADAPTED: steps_of(settings, folder / "adapted", start.encoder.path),
        SCRATCH: steps_of(PretrainSettings.model_validate(fresh), folder / "scratch", None),
    }
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(options.turns + 1):
        for name in sorted(arms, reverse=turn % 2 == 0):
            begin = time.perf_counter()
            for _ in islice(arms[name], options.steps):
                pass
            if turn:
                seconds[name].append(time.perf_counter() - begin)
    ratios = [two / one for one, two in zip(seconds[ADAPTED], seconds[SCRATCH], strict=True)]
    return {
        "surroundings": surroundings(torch.device("cpu")),
        "seconds_of_a_step": {
            name: statistics.median(each) / options.steps for name, each in seconds.items()
        },
        "ratio": statistics.median(ratios),
        "ratio_of_turns": ratios,
    }


def steps_of(settings: PretrainSettings, folder: Path, start: Path | None) -> Iterator[object]:
    """The steps of a run as its worker makes them, from the first on."""
    device = torch.device("cpu")
    assert settings.shards is not None
    worker = Worker(0, 1, device, Channel())
    parts = pretraining_parts(settings, settings.shards, worker, folder, start)
    return train(
        parts.state,
        parts.batches(0),
        parts.compute_loss,
        total_steps=parts.total_steps,
        schedule=parts.learning_rate,
        max_gradient_norm=settings.optimizer.max_gradient_norm,
        device=device,
        autocast_dtype=None,
        seed=settings.seed,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
