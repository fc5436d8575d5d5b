"""A program: one of two ranks that train a run, without Ray.

`python two_ranks.py RANK MEETING ARGUMENTS…`: the ranks meet by a file that is not there yet; the
arguments are those of workflows/pretrain.py. `train_by_two_ranks` starts both.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from pretraining_runs import Channel, Run

from workflows.clusters.workers import Worker
from workflows.pretraining.settings import PretrainSettings
from workflows.pretraining.worker import pretraining_parts
from workflows.settings import parse_command_line
from workflows.training.run import TrainingRun


def train_by_two_ranks(run: Run) -> None:
    """Trains a run to its end, by two processes."""
    run.folder.mkdir(parents=True)
    search_path = os.pathsep.join(filter(None, sys.path))
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(run.folder / "meeting"), *run.arguments()],
            env=os.environ | {"PYTHONPATH": search_path, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in ranks:
            printed, _ = process.communicate(timeout=300)
            assert process.returncode == 0, printed
    finally:
        for process in ranks:
            process.kill()


def main(rank: int, meeting: str, arguments: list[str]) -> None:
    """Trains as a worker of Ray's does."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    settings = parse_command_line(PretrainSettings, arguments)
    worker = Worker(rank, 2, torch.device("cpu"), Channel())
    folder = Path(settings.storage) / "runs" / str(settings.name)
    parts = pretraining_parts(settings, Path(str(settings.shards)), worker, folder)
    TrainingRun(parts, worker, folder).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
