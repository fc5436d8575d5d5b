"""The arithmetic of a data-parallel step: computing, all-reduce behind it, optimizer, waiting.

A device's time for a micro-batch is `fixed + FLOPs / full rate`: a rate that rises with the tokens
and saturates. Gradients leave in DDP's buckets, in the order in which the backward pass makes them.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

from benchmarks.scaling.hardware import Device, Fabric
from bert_core.config import ModelConfig
from bert_core.flops import training_flops

BACKWARD_SHARE = 2 / 3
"""Of forward and backward pass together; the formula of the FLOPs says the same."""

FIRST_BUCKET_BYTES, BUCKET_BYTES = 2**20, 25 * 2**20
"""torch's DistributedDataParallel: a bucket is closed by the tensor that fills it."""

OPTIMIZER_BYTES = {"adamw": 40, "lamb": 120}
"""Bytes moved for each weight, all in float32, with clipping (12): the fused AdamW reads weight,
gradient and two moments and writes three; LAMB is a kernel for each of its operations."""

MASKED_SHARE = 0.15

STRAGGLER_SHARE = 0.01
"""Standard deviation of a device's computing time, as a share of it. Assumed."""


@dataclass(frozen=True)
class Speed:
    """What one device computes: FLOP/s when full, and the seconds that any micro-batch takes."""

    flops_per_second: float
    fixed_seconds: float

    def seconds(self, flops: float) -> float:
        """Forward and backward pass of a micro-batch of so many FLOPs."""
        return self.fixed_seconds + flops / self.flops_per_second


def speed_from(flops_per_second: float, flops: float, fixed_seconds: float) -> Speed:
    """The speed of a device that was measured on a micro-batch of so many FLOPs.

    Raises `ValueError` where the fixed part alone takes longer than was measured.
    """
    growing_seconds = flops / flops_per_second - fixed_seconds
    if growing_seconds <= 0:
        raise ValueError(f"{fixed_seconds} s fixed, but {flops / flops_per_second} s measured")
    return Speed(flops / growing_seconds, fixed_seconds)


def row_flops(config: ModelConfig, rows: int, sequence_length: int) -> float:
    """Model FLOPs of forward and backward pass of full rows, as `benchmarks.pretraining` counts."""
    predictions = round(MASKED_SHARE * rows * sequence_length)
    return training_flops(
        config,
        num_tokens=rows * sequence_length,
        sum_of_squared_lengths=rows * sequence_length**2,
        num_predictions=predictions,
        num_rows=rows,
        num_read=predictions + rows,
    )


@dataclass(frozen=True)
class Bucket:
    """Gradients that are sent together, `ready` when that share of the backward pass is done."""

    num_bytes: float
    ready: float


def gradient_tensors(config: ModelConfig) -> list[list[int]]:
    """The sizes of the model's tensors in the order in which their gradients are ready.

    The heads, then layer by layer from the last, then the embeddings. The table of words is last:
    the masked-token head and the input both write its gradient.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    pair = [2, 2 * hidden]
    heads = [*pair, hidden, hidden**2, config.vocab_size, hidden, hidden, hidden, hidden**2]
    layer = [
        hidden, hidden, hidden, hidden * inner, inner, hidden * inner,
        hidden, hidden, hidden, hidden**2, 3 * hidden, 3 * hidden**2,
    ]  # fmt: skip
    positions = config.max_position_embeddings * hidden
    embeddings = [hidden, hidden, positions, config.type_vocab_size * hidden]
    return [
        heads,
        *[layer] * config.num_hidden_layers,
        [*embeddings, config.vocab_size * hidden],
    ]


def num_parameters(config: ModelConfig) -> int:
    """Weights of the model with both heads of pre-training, the tied ones once."""
    return sum(sum(sizes) for sizes in gradient_tensors(config))


def gradient_buckets(
    config: ModelConfig, gradient_bytes: int = 4, *, limit_bytes: float = BUCKET_BYTES
) -> tuple[Bucket, ...]:
    """The buckets in which DDP sends the gradients, in their order.

    A layer's gradients are spread evenly over its backward pass; all layers take as long. The
    head's share is that of its FLOPs at 128 tokens a row.
    """
    groups = gradient_tensors(config)
    predictions = round(MASKED_SHARE * 128)
    head_weights = config.hidden_size * (config.hidden_size + config.vocab_size)
    head = 6 * predictions * head_weights / row_flops(config, 1, 128)
    layers = config.num_hidden_layers
    shares = [head, *[(1 - head) / layers] * layers, 0.0]
    buckets, filled, ready, limit = [], 0.0, 0.0, FIRST_BUCKET_BYTES
    for sizes, share in zip(groups, shares, strict=True):
        for size in sizes:
            ready += share * size / sum(sizes)
            filled += gradient_bytes * size
            if filled >= limit:
                buckets.append(Bucket(filled, min(ready, 1.0)))
                filled, limit = 0.0, limit_bytes
    if filled:
        buckets.append(Bucket(filled, 1.0))
    return tuple(buckets)


def all_reduce_seconds(num_bytes: float, fabric: Fabric, devices: int) -> float:
    """Rings within domains and between them at once: the slower is what it takes, and latency.

    Each device sends `2 (g - 1) / g` of the bytes in its domain of g, and of its g-th part as much
    between n domains. A latency of `2 log2(n)` hops is a tree's.
    """
    if devices == 1:
        return 0.0
    inside = min(devices, fabric.devices_per_domain)
    domains = math.ceil(devices / inside)
    link = 2 * num_bytes * (inside - 1) / inside / fabric.link_bytes_per_second
    part = num_bytes / inside
    network = 2 * part * (domains - 1) / domains / fabric.network_bytes_per_second
    hops = 2 * math.ceil(math.log2(domains))
    return max(link, network) + fabric.start_seconds + hops * fabric.hop_seconds


def exposed_seconds(
    buckets: tuple[Bucket, ...], fabric: Fabric, devices: int, backward_seconds: float
) -> float:
    """How long the all-reduce goes on when the last backward pass is over: the closed formula.

    The last bucket cannot be hidden, and all of them take at least their sum from the first on.
    """
    costs = [all_reduce_seconds(bucket.num_bytes, fabric, devices) for bucket in buckets]
    return max(costs[-1], sum(costs) - backward_seconds * (1 - buckets[0].ready))


def slowest_of(devices: int) -> float:
    """How many standard deviations the slowest of so many is above the mean, on average.

    Blom's approximation (1958) for normal deviates.
    """
    if devices == 1:
        return 0.0
    return NormalDist().inv_cdf((devices - 0.375) / (devices + 0.25))


@dataclass(frozen=True)
class StepSeconds:
    """Where the time of a step goes."""

    computing: float
    waiting: float
    exposed: float
    optimizer: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.computing + self.waiting + self.exposed + self.optimizer


def step_seconds(
    buckets: tuple[Bucket, ...],
    device: Device,
    devices: int,
    micro_batch_seconds: float,
    *,
    micro_batches: int = 1,
    optimizer_bytes: float,
    overlaps: bool = True,
) -> StepSeconds:
    """A step of equal micro-batches on each device; gradients travel behind the last one's.

    `optimizer_bytes` are all that it moves on a device. Without `overlaps` the all-reduce waits
    for the backward pass.
    """
    computing = micro_batches * micro_batch_seconds
    backward = BACKWARD_SHARE * micro_batch_seconds if overlaps else 0.0
    return StepSeconds(
        computing,
        STRAGGLER_SHARE * slowest_of(devices) * computing,
        exposed_seconds(buckets, device.fabric, devices, backward),
        optimizer_bytes / device.memory_bytes_per_second,
    )
