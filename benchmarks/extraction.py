"""Measure a long extraction: flat memory, constant rate, nothing lost by a kill.

`python -m benchmarks.extraction --sentences DIR --model FOLDER`. Sentences of SST-2, repeated until
there are enough, go through `workflows/extract.py` twice: once to the end, watched; once killed
(SIGKILL) in the middle and started again, which must give the same features of every text.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import ray
from pyarrow import parquet

from benchmarks.cluster_memory import Memory, watched_memory
from benchmarks.inputs import fresh_encoder
from benchmarks.results import write_results
from bert_core.config import SIZES
from bert_core.tasks.catalog import GLUE
from workflows.extract import extract
from workflows.inference.extraction import FEATURES, ExtractSettings

STRETCHES = 10
_COMMAND = Path(__file__).parent.parent / "workflows" / "extract.py"
_POLL_SECONDS = 0.05


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.extraction", description=__doc__)
    parser.add_argument("--sentences", type=Path, required=True, help="the folder of GLUE's SST-2")
    parser.add_argument("--model", type=Path, required=True, help="provides the vocabulary")
    parser.add_argument("--size", choices=tuple(SIZES), default="tiny", help="of a fresh encoder")
    parser.add_argument("--texts", type=int, default=1_000_000, help="number of texts")
    parser.add_argument("--part_bytes", type=int, default=1 << 19, help="text bytes per part")
    parser.add_argument("--json", type=Path, default=None, help="where the results go as JSON")
    return parser.parse_args(arguments)


def main() -> None:
    """Runs both extractions, prints the results and writes the JSON."""
    options = parse_arguments()
    num_cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = folder / "texts.txt"
        write_texts(options.sentences, options.texts, text)
        settings = {
            "model": str(fresh_encoder(options.model, options.size, folder)),
            "input": [str(text)],
            "part_bytes": options.part_bytes,
            "storage": str(folder / "storage"),
        }
        ray.init("local", num_cpus=num_cores, log_to_driver=False, include_dashboard=False)
        begin = time.time()
        with watched_memory(every_seconds=1.0) as memory:
            extract(ExtractSettings(**settings, output=folder / "whole"))
        seconds = time.time() - begin
        address = ray.get_runtime_context().gcs_address
        killed_at = extract_killed(settings, folder / "killed", address)
        results = summarize(folder / "whole" / FEATURES, begin, seconds, memory)
        results["killed_after_parts"] = killed_at
        results["same_after_kill"] = same_features(
            folder / "whole" / FEATURES, folder / "killed" / FEATURES
        )
        ray.shutdown()
    results |= {"benchmark": "extraction", "size": options.size, "cores": num_cores}
    print_results(results)
    write_results(results, options.json)


def write_texts(folder: Path, count: int, path: Path) -> None:
    """Writes `count` real sentences, one per line, repeating them as needed."""
    sentences = [example.first.strip() for example in GLUE["sst2"].examples(folder, "train")]
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{each}\n" for each in islice(cycle(filter(None, sentences)), count))


def extract_killed(settings: dict[str, Any], output: Path, address: str) -> int:
    """Extracts in a process that is killed after half of the parts, and in another one.

    Returns the number of parts at the kill.
    """
    command = [sys.executable, str(_COMMAND), "--output", str(output)]
    for name, value in settings.items():
        command += [f"--{name}", *(value if isinstance(value, list) else [str(value)])]
    environment = os.environ | {"RAY_ADDRESS": address}
    wanted = len(list((output.parent / "whole" / FEATURES).glob("part-*.parquet"))) // 2
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    while (found := len(list(output.glob("*/part-*.json")))) < wanted and process.poll() is None:
        time.sleep(_POLL_SECONDS)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it finished before it was killed"
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return found


def same_features(left: Path, right: Path) -> bool:
    """Whether both folders have the same parts, with the same ids and features."""
    names = [
        sorted(path.name for path in folder.glob("part-*.parquet")) for folder in (left, right)
    ]
    return names[0] == names[1] and all(
        parquet.read_table(left / name).equals(parquet.read_table(right / name))
        for name in names[0]
    )


def summarize(output: Path, begin: float, seconds: float, memory: Memory) -> dict[str, Any]:
    """Rates and memory over the run, in stretches with equal numbers of parts."""
    paths = sorted(output.glob("part-*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    ends = [path.stat().st_mtime_ns / 1e9 - begin for path in paths]
    rows = [parquet.read_metadata(path).num_rows for path in paths]
    bounds = [round(number * len(paths) / STRETCHES) for number in range(STRETCHES + 1)]
    rates, held = [], []

    def rate(first: int, last: int) -> float:
        """Texts per second from one bound to another."""
        begun, ended = bounds[first], bounds[last]
        return sum(rows[begun:ended]) / (ends[ended - 1] - ends[begun - 1])

    for number in range(1, STRETCHES):  # the first includes the start
        rates.append(rate(number, number + 1))
        since, until = ends[bounds[number] - 1], ends[bounds[number + 1] - 1]
        held.append(_median_between(memory, since, until))
    ids = set()
    for path in paths:
        ids.update(parquet.read_table(path, columns=["id"])["id"].to_pylist())
    return {
        "texts": sum(rows),
        "distinct_ids": len(ids),
        "parts": len(paths),
        "seconds": seconds,
        "texts_per_second": rates,
        # Over three stretches each: one part more or less is a tenth of a stretch.
        "last_rate_over_first": rate(STRETCHES - 3, STRETCHES) / rate(1, 4),
        "idle_bytes": memory.idle,
        "peak_bytes_above_idle": memory.peak_above_idle,
        "bytes_above_idle": [each - memory.idle for each in held],
    }


def _median_between(memory: Memory, since: float, until: float) -> int:
    """The median memory between two times, or the nearest value."""
    within = [each for at, each in memory.series if since <= at <= until]
    nearest = min(memory.series, key=lambda point: abs(point[0] - until))[1]
    return int(statistics.median(within or [nearest]))


def print_results(results: dict[str, Any]) -> None:
    """Prints the results of both extractions."""
    print(
        f"{results['texts']:,} texts, {results['distinct_ids']:,} ids, {results['parts']} parts,"
        f" {results['seconds']:.0f} s on {results['cores']} cores"
    )
    print(f"texts/s, stretch by stretch:   {_row(results['texts_per_second'], 1)}")
    print(f"MB above the idle cluster:     {_row(results['bytes_above_idle'], 1e6)}")
    print(f"the last three are {results['last_rate_over_first']:.3f} of the first three in rate")
    same = "the same features" if results["same_after_kill"] else "OTHER features"
    print(f"killed after {results['killed_after_parts']} parts and started again: {same}")


def _row(values: Sequence[float], unit: float) -> str:
    return "  ".join(f"{value / unit:9,.0f}" for value in values)


if __name__ == "__main__":
    main()
