"""Latency and memory of a model on this machine, measured in a new process.

A module of its own: the measuring process imports it, and nothing else of a promotion.
"""

import multiprocessing
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bert_core.errors import UserError
from bert_core.machine import processor_name
from bert_core.tasks.task import Task
from workflows.promotion.gate import MEGABYTE, MeasuredWith

WARM_UP = 5
"""Requests before the measured ones."""


@dataclass(frozen=True)
class Footprint:
    """Latency of a request, and peak resident memory of the process, libraries included.

    A request is a call of `Predictor.predict_examples`: from texts to predictions.
    """

    p50_ms: float
    p95_ms: float
    memory_mb: float


def measure_footprint(
    folder: Path, task_name: str, task: Task, examples: Sequence[Any], how: MeasuredWith
) -> Footprint:
    """Loads the model in a new process and sends it requests, one after the other.

    The examples are evenly spread over the data, and repeated if there are too few. Raises
    `UserError` if the process dies.
    """
    wanted = how.requests * how.batch_size
    spread = [examples[index * len(examples) // wanted] for index in range(wanted)]
    requests = [spread[at : at + how.batch_size] for at in range(0, wanted, how.batch_size)]
    # Spawned, not forked: the memory of this process must not count.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    arguments = (sender, folder, task_name, task, requests, how.threads)
    process = context.Process(target=_measure, args=arguments, daemon=True)
    process.start()
    sender.close()
    try:
        return Footprint(*receiver.recv())
    except EOFError as error:
        process.join()
        what = f"the measuring process exited with {process.exitcode}"
        raise UserError(what, folder.name, "check that there is memory for the model") from error
    finally:
        process.kill()
        process.join()


def machine() -> str:
    """Returns the processor and the number of cores."""
    import torch

    return f"{processor_name(torch.device('cpu'))}, {multiprocessing.cpu_count()} cores"


def _measure(
    sender: Connection,
    folder: Path,
    task_name: str,
    task: Task,
    requests: Sequence[Sequence[Any]],
    threads: int,
) -> None:
    """Runs in the new process: sends the numbers of a `Footprint`."""
    from dataclasses import replace

    import numpy as np
    import torch

    from bert_core.predictor import load_predictor

    torch.set_num_threads(threads)
    predictor = replace(load_predictor(folder, task_name=task_name), fine_tuned_for=task)
    seconds = []
    for request in (*requests[:WARM_UP], *requests):
        began = time.perf_counter()
        predictor.predict_examples(request)
        seconds.append(time.perf_counter() - began)
    p50, p95 = np.percentile(seconds[-len(requests) :], [50, 95]) * 1000
    sender.send((float(p50), float(p95), peak_memory_bytes() / MEGABYTE))


def peak_memory_bytes() -> int:
    """Returns the peak resident memory of this process."""
    path = Path("/proc/self/status")
    if path.is_file():  # getrusage on Linux includes the process that started this one
        lines = path.read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
