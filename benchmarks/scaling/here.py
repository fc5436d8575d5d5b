"""The step model against two processes of this machine: gloo instead of NVLink, a core each.

What the model is told is measured in the same run: the all-reduce alone at two sizes, and a
forward and backward pass without data parallelism, on both processes at once. What it predicts is
the same pass under `data_parallel`.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from benchmarks.measurement import write_results
from benchmarks.scaling.hardware import Fabric
from benchmarks.scaling.model import (
    BACKWARD_SHARE,
    all_reduce_seconds,
    exposed_seconds,
    gradient_buckets,
)
from bert_core.config import SIZES
from bert_core.machine import processor_name
from bert_core.model.bert import Bert
from bert_core.model.layout import Padded
from bert_core.pretraining import PretrainingBatch, compute_loss
from bert_core.training.ranks import data_parallel

SIZE, ROWS, LENGTH = "mini", 2, 64
SMALL_BYTES, LARGE_BYTES = 2**20, 24 * 2**20
ROUNDS, PASSES = 15, 2


def measure_here(path: Path) -> dict[str, Any]:
    """Runs the two processes, writes what they measured and what was predicted as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_measure, args=(folder, path), nprocs=2)
    return json.loads(path.read_text(encoding="utf-8"))


def predict(small_seconds: float, large_seconds: float, computing_seconds: float) -> dict[str, Any]:
    """What the model makes of the two all-reduces and of the pass without them.

    `hidden` is its prediction, with the all-reduce behind the backward pass; `one_by_one` is with
    nothing hidden.
    """
    per_second = (LARGE_BYTES - SMALL_BYTES) / (large_seconds - small_seconds)
    start = max(0.0, small_seconds - SMALL_BYTES / per_second)
    fabric = Fabric(2, per_second, per_second, start, 0.0)
    buckets = gradient_buckets(SIZES[SIZE])
    costs = [all_reduce_seconds(bucket.num_bytes, fabric, 2) for bucket in buckets]
    exposed = exposed_seconds(buckets, fabric, 2, BACKWARD_SHARE * computing_seconds)
    return {
        "all_reduce_bytes_per_second": per_second,
        "all_reduce_start_seconds": start,
        "gradient_bytes": sum(bucket.num_bytes for bucket in buckets),
        "predicted_seconds": {
            "hidden": computing_seconds + exposed,
            "one_by_one": computing_seconds + sum(costs),
        },
    }


def _measure(rank: int, folder: str, path: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = Bert.for_pretraining(SIZES[SIZE])
    batch, counts = _batch(), {"num_predictions": 1, "num_rows": 1}
    tensors = [torch.ones(size // 4) for size in (SMALL_BYTES, LARGE_BYTES)]
    alone = Bert.for_pretraining(SIZES[SIZE])
    parallel = data_parallel(model, compute_loss)
    timed: dict[str, Callable[[], object]] = {
        "small": lambda: dist.all_reduce(tensors[0]),
        "large": lambda: dist.all_reduce(tensors[1]),
        "computing": lambda: _backward(alone, compute_loss(alone, batch, **counts)[0]),
        "parallel": lambda: _backward(model, parallel(batch, **counts)[0]),
    }
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for turn in range(ROUNDS + 1):
        for name, run in timed.items():
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(PASSES):
                run()
            dist.barrier()
            if turn:
                seconds[name].append((time.perf_counter() - begin) / PASSES)
    if rank == 0:
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        found = predict(medians["small"], medians["large"], medians["computing"])
        about = {
            "benchmark": "scaling-here",
            "date": date.today().isoformat(),
            "device": processor_name(torch.device("cpu")),
            "torch": torch.__version__,
            "model": SIZE,
            "rows_of_a_process": ROWS,
            "sequence_length": LENGTH,
            "cores": os.cpu_count(),
            "load_average": os.getloadavg()[0],
        }
        write_results(about | {"measured_seconds": medians} | found, path)
    dist.destroy_process_group()


def _backward(model: nn.Module, loss: Tensor) -> None:
    loss.backward()
    model.zero_grad(set_to_none=False)


def _batch() -> PretrainingBatch:
    tokens, vocab = ROWS * LENGTH, SIZES[SIZE].vocab_size
    masked = torch.randperm(tokens)[: round(0.15 * tokens)].sort().values
    return PretrainingBatch(
        input_ids=torch.randint(5, vocab, (tokens,)),
        token_type_ids=torch.zeros(tokens, dtype=torch.long),
        position_ids=torch.arange(LENGTH).repeat(ROWS),
        layout=Padded(torch.ones(ROWS, LENGTH, dtype=torch.bool), True),
        masked_positions=masked,
        masked_ids=torch.randint(5, vocab, (len(masked),)),
        next_sentence=torch.zeros(ROWS, dtype=torch.long),
        num_real_tokens=tokens,
        num_slots=tokens,
    )
