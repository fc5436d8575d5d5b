"""Data, from text to the training loop: how fast it is prepared, and whether loading holds up.

`python -m benchmarks.data` does both on a fresh corpus; with `--shards DIR` it only loads, for
which a GPU machine needs no Ray.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.data.loading import LoadingSettings, measure_loading, print_loading
from benchmarks.measurement import write_results
from bert_core.config import SIZES
from bert_core.errors import UserError


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data", description=__doc__)
    parser.add_argument("--text", default="../shared/data/text/wikipedia-aa.txt.xz")
    parser.add_argument("--megabytes", type=float, default=100, help="of text, from its start")
    parser.add_argument(
        "--repeats", type=int, default=3, help="of each arm of preparation, interleaved"
    )
    parser.add_argument("--shards", type=Path, help="load from this folder; prepare nothing")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--preset", choices=tuple(SIZES), default="tiny", help="size of the model")
    parser.add_argument("--sequence_length", type=int, default=128, help="tokens of a row at most")
    parser.add_argument(
        "--tokens", type=int, help="of a forward pass; default 2,048, on cuda 65,536"
    )
    parser.add_argument("--rounds", type=int, default=9, help="turns of training with each arm")
    parser.add_argument(
        "--steps", type=int, help="of a turn, some 4 forward passes each; default 8, on cuda 32"
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Measures, prints tables and writes JSON where asked, the first half before the second."""
    options = parse_arguments(arguments)
    on_cuda = options.device == "cuda"
    settings = LoadingSettings(
        device=options.device,
        preset=options.preset,
        sequence_length=options.sequence_length,
        tokens=options.tokens or (65_536 if on_cuda else 2_048),
        rounds=options.rounds,
        steps=options.steps or (32 if on_cuda else 8),
    )
    results: dict[str, Any] = {}
    try:
        with tempfile.TemporaryDirectory() as name:
            shards = options.shards
            if shards is None:
                # Only here, because it imports Ray.
                from benchmarks.data import preparation

                folder = Path(name)
                results |= preparation.measure_preparation(
                    options.text, options.megabytes, options.repeats, folder
                )
                preparation.print_preparation(results)
                write_results(results, options.json)
                shards = folder / preparation.TRAINED
            results["loading"] = measure_loading(shards, settings)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print_loading(results["loading"])
    write_results(results, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
