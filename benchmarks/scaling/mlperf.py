"""MLPerf's published strong scaling of BERT large, predicted by the model of `scaling_model`.

The full rate is calibrated on the row of 8 GPUs alone, the fixed part of a micro-batch on the row
of 512 alone; the rows of 64 and of 3,472 GPUs are predicted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from benchmarks.scaling.hardware import H100, H200, Device
from benchmarks.scaling.model import Bucket, Speed, gradient_buckets, num_parameters, step_seconds
from bert_core.config import SIZES
from bert_core.flops import training_flops

LARGE = SIZES["large"]
PARAMETERS = num_parameters(LARGE)

MEAN_LENGTH = 254.5
"""Real tokens of a sequence of MLPerf's set; a pack is of two sequences."""

MEAN_SQUARED_LENGTH = 1.2 * MEAN_LENGTH**2
"""Assumed, as for lengths that spread as beta(2, 2) does; attention is 8 % of the FLOPs."""

FP8_GAIN = 1.15
"""How much faster FP8 computes BERT large than 16 bits. Assumed: 1.05 to 1.15 are told of it."""

LAMB_BYTES = 46
"""For each weight, by NVIDIA's fused kernels: gradient, weight, moments, update, 16-bit weight."""

TENSORRT_FIXED_SECONDS = 3 * (0.67 - (16.14 - 0.67) / 127) * 1e-3 / 12
"""Of a layer, forward and backward as three times forward: TensorRT's BERT base on an A100 takes
0.67 ms for one row of 128 and 16.14 ms for 128 of them (its repository's demo/BERT)."""

CALIBRATED_ON, FIXED_FROM = "8 H100", "512 H100"
TOLERANCE = 0.15
"""How far a predicted rate may be from the published one, as a share of it; a test holds it."""


@dataclass(frozen=True)
class Published:
    """One row: its figure, and what the submission's configuration says.

    `num_blocks` is into how many parts the gradients are divided when they travel behind the
    backward pass; None where they do not. `optimizer_shards` is on how many GPUs one set of
    optimizer states lies. Not `dense` means that the head runs on all positions.
    """

    name: str
    device: Device
    devices: int
    sequences: int  # a GPU and step
    sequences_per_second: float  # a GPU
    round: str
    num_blocks: int | None = None
    optimizer_shards: int = 8
    fp8: bool = True
    dense: bool = True


ROWS = {
    row.name: row
    for row in (
        Published("8 H100", H100, 8, 96, 970, "v4.1", optimizer_shards=1),
        Published("8 H200", H200, 8, 96, 997, "v4.1", optimizer_shards=1),
        Published("64 H100", H100, 64, 72, 837, "v4.1"),
        Published("512 H100", H100, 512, 6, 272, "v3.0", 5, fp8=False, dense=False),
        Published("3,472 H100", H100, 3_472, 4, 220, "v4.1", 5, fp8=False, dense=False),
    )
}


def row_seconds(row: Published, flops_per_second: float, fixed_seconds: float) -> float:
    """A step of a row; `fixed_seconds` are those of one layer, the rate that of FP8."""
    tokens = row.sequences * MEAN_LENGTH
    flops = training_flops(
        LARGE,
        num_tokens=round(tokens),
        sum_of_squared_lengths=row.sequences * MEAN_SQUARED_LENGTH,
        num_predictions=round(0.15 * tokens) if row.dense else 256 * row.sequences,
        num_rows=row.sequences,
        num_read=round(tokens),
    )
    rate = flops_per_second / (1 if row.fp8 else FP8_GAIN)
    step = step_seconds(
        _buckets(row.num_blocks or 16),
        row.device,
        row.devices,
        Speed(rate, fixed_seconds * LARGE.num_hidden_layers).seconds(flops),
        optimizer_bytes=LAMB_BYTES * PARAMETERS / row.optimizer_shards,
        overlaps=row.num_blocks is not None,
    )
    return step.total


@cache
def _buckets(count: int) -> tuple[Bucket, ...]:
    """16-bit gradients in about so many parts."""
    return gradient_buckets(LARGE, 2, limit_bytes=2 * PARAMETERS / count)


def predicted(name: str, fixed_seconds: float) -> float:
    """Sequences a second and GPU of a row, with the rate of the row of 8."""
    row = ROWS[name]
    return row.sequences / row_seconds(row, full_rate(fixed_seconds), fixed_seconds)


@cache
def full_rate(fixed_seconds: float) -> float:
    """FLOP/s, FP8, with which the row of 8 H100 comes out as published."""
    row = ROWS[CALIBRATED_ON]
    wanted = row.sequences / row.sequences_per_second
    return _root(lambda rate: wanted - row_seconds(row, rate, fixed_seconds), 1e13, 1e16)


@cache
def fixed_seconds_of_a_layer() -> float:
    """Seconds that a layer's forward and backward pass take however few the tokens, on a GPU.

    With it the row of 512 comes out as published.
    """
    wanted = ROWS[FIXED_FROM].sequences_per_second
    return _root(lambda fixed: wanted - predicted(FIXED_FROM, fixed), 0.0, 2e-3)


def _root(rises: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that rises crosses 0, by halving."""
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if rises(middle) < 0 else (low, middle)
    return high
