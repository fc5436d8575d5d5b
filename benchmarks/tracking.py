"""Measure the cost of tracking per step while MLflow is healthy, down, slow or full.

`python -m benchmarks.tracking [--json FILE]` prints median step times, with and without tracking in
turn, and whether MLflow recorded every step exactly once.
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.mlflow_server import MlflowServer, TroubledProxy
from benchmarks.results import write_results
from workflows.runs.journal import Journal
from workflows.runs.sender import verify_exactly_once
from workflows.runs.tracker import JOURNAL_NAME, STATE_NAME, TrackedRun, Tracker, read_json

MODES = {"well": "pass", "down": "refuse", "slow (10 s per call)": "delay 10", "full": "full"}
START_SECONDS = 600.0  # on a busy machine the sender starts slowly, with low priority


@dataclass(frozen=True)
class Figures:
    """Step times of one case in milliseconds, and the median ratio of neighbouring blocks."""

    case: str
    num_steps: int
    alone_ms: float
    tracked_ms: float
    ratio: float
    unsent_at_end: int
    exactly_once: bool


class Loop:
    """A small training step of two torch threads that records what a real one does."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.step = 0
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.inputs = torch.randn(128, 512)

    def run(self, num_steps: int, metrics: Callable[[Tensor], dict[str, float]]) -> list[float]:
        """Seconds of each step, including the journal if `metrics` returns any."""
        seconds = []
        for _ in range(num_steps):
            started = time.perf_counter()
            loss = F.mse_loss(self.model(self.inputs), self.inputs)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            values = metrics(loss)
            if values:
                self.step += 1
                self.journal.append(self.step, values)
            seconds.append(time.perf_counter() - started)
        return seconds


def written(loss: Tensor) -> dict[str, float]:
    """Eight metrics, as in a pre-training step."""
    return {f"train/metric_{index}": float(loss.detach()) + index for index in range(8)}


def nothing(loss: Tensor) -> dict[str, float]:
    """No metrics; the untracked step also reads its loss."""
    float(loss.detach())
    return {}


def measure(case: str, proxy: TroubledProxy, folder: Path, pairs: int, block: int) -> Figures:
    """Runs alternating blocks of steps without and with a tracker.

    The sender is stopped (SIGSTOP) in the former, so each pair runs under equal conditions.
    """
    journal = Journal(folder / JOURNAL_NAME)
    loop = Loop(journal)
    proxy.set_mode("pass")
    run = TrackedRun(proxy.uri, "benchmark", folder.name, folder.name)
    tracker = Tracker(folder, run)
    assert tracker.process_id is not None
    loop.run(20, written)
    end = time.monotonic() + START_SECONDS
    while not read_json(folder / STATE_NAME).get("confirmed") and time.monotonic() < end:
        time.sleep(0.2)
    proxy.set_mode(MODES[case])
    alone: list[float] = []
    tracked: list[float] = []
    ratios = []
    for pair in range(pairs):
        for is_tracked in (pair % 2 == 0, pair % 2 == 1):
            os.kill(tracker.process_id, signal.SIGCONT if is_tracked else signal.SIGSTOP)
            seconds = loop.run(block, written if is_tracked else nothing)
            (tracked if is_tracked else alone).extend(seconds)
        ratios.append(statistics.median(tracked[-block:]) / statistics.median(alone[-block:]))
    os.kill(tracker.process_id, signal.SIGCONT)
    proxy.set_mode("pass")
    summary = tracker.finish(timeout_seconds=180.0)
    return Figures(
        case=case,
        num_steps=len(tracked),
        alone_ms=1e3 * statistics.median(alone),
        tracked_ms=1e3 * statistics.median(tracked),
        ratio=statistics.median(ratios),
        unsent_at_end=summary.unsent_records,
        exactly_once=verify_exactly_once(folder).correct,
    )


def measure_start(folder: Path, block: int) -> tuple[float, float]:
    """The ratio of the median step while the sender starts, and the seconds that takes."""
    loop = Loop(Journal(folder / JOURNAL_NAME))
    loop.run(20, written)
    alone = loop.run(block, nothing)
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    started = time.monotonic()
    tracker = Tracker(folder, TrackedRun(uri, "benchmark", "start", "start"))
    starting: list[float] = []
    while not read_json(folder / STATE_NAME).get("confirmed"):
        starting += loop.run(5, written)
        if time.monotonic() - started > START_SECONDS:
            break
    seconds = time.monotonic() - started
    tracker.finish()
    return statistics.median(starting) / statistics.median(alone), seconds


def main() -> int:
    """Prints the table; 1 when a step took over 5 % longer or something was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tracking", description=__doc__)
    parser.add_argument("--pairs", type=int, default=60, help="pairs of blocks in each case")
    parser.add_argument("--block", type=int, default=20, help="steps in a block")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="torch threads")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is not left behind
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        server = MlflowServer(folder)
        server.start()
        proxy = TroubledProxy(server.port)
        try:
            rows = [
                measure(case, proxy, folder / mode.split()[0], arguments.pairs, arguments.block)
                for case, mode in MODES.items()
            ]
        finally:
            proxy.close()
            server.kill()
        start_ratio, start_seconds = measure_start(folder / "start", arguments.block)
    print(f"{'MLflow':24}{'alone ms':>10}{'tracked ms':>12}{'ratio':>8}{'unsent':>8}  once")
    for row in rows:
        print(
            f"{row.case:24}{row.alone_ms:>10.2f}{row.tracked_ms:>12.2f}{row.ratio:>8.3f}"
            f"{row.unsent_at_end:>8}  {'yes' if row.exactly_once else 'NO'}"
        )
    print(f"while the sender starts ({start_seconds:.0f} s): ratio {start_ratio:.3f}")
    figures = {"threads": arguments.threads, "cases": [asdict(row) for row in rows]}
    figures |= {"start_ratio": start_ratio, "start_seconds": start_seconds}
    write_results(figures, arguments.json)
    return 0 if all(row.ratio < 1.05 and row.exactly_once for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
