"""One data-parallel step as discrete events, beside the closed formula of `scaling_model`.

Buckets become ready in backward order, on the slowest device last; each is cut into chunks, and a
chunk goes through three queues: reduce-scatter over the links of a domain, all-reduce between
domains, all-gather over the links again. Links carry one chunk at a time.
"""

import heapq
import math
from dataclasses import dataclass, field

import numpy as np

from benchmarks.scaling.hardware import Fabric
from benchmarks.scaling.model import BACKWARD_SHARE, Bucket

CHUNK_BYTES = 2**20
LINK, NETWORK = 0, 1


@dataclass
class _Queues:
    """When links and network are free again, and the events to come."""

    free: list[float] = field(default_factory=lambda: [0.0, 0.0])
    events: list[tuple[float, int, int]] = field(default_factory=list)  # time, chunk, stage


def simulate_step(
    buckets: tuple[Bucket, ...],
    fabric: Fabric,
    devices: int,
    computing_seconds: np.ndarray,
) -> float:
    """Seconds from the start of the forward pass until the last device has all gradients.

    `computing_seconds` [devices] are forward and backward pass of each device.
    """
    inside = min(devices, fabric.devices_per_domain)
    domains = math.ceil(devices / inside)
    latency = fabric.start_seconds + 2 * math.ceil(math.log2(domains)) * fabric.hop_seconds
    queues, costs, last = _Queues(), [], computing_seconds.max()
    for bucket in buckets:
        share = 1 - BACKWARD_SHARE * (1 - bucket.ready)
        ready = float((computing_seconds * share).max())
        count = max(1, math.ceil(bucket.num_bytes / CHUNK_BYTES))
        size = bucket.num_bytes / count
        link = size * (inside - 1) / inside / fabric.link_bytes_per_second
        part = size / inside
        network = 2 * part * (domains - 1) / domains / fabric.network_bytes_per_second
        for chunk in range(count):
            start = latency if chunk == 0 else 0.0  # the channel is busy while it is set up
            costs.append((link, network + start, link))
            heapq.heappush(queues.events, (ready, len(costs) - 1, 0))
    if devices == 1:
        return float(last)
    while queues.events:
        time, chunk, stage = heapq.heappop(queues.events)
        resource = NETWORK if stage == 1 else LINK
        begin = max(time, queues.free[resource])
        end = begin + costs[chunk][stage]
        queues.free[resource] = end
        if stage < 2:
            heapq.heappush(queues.events, (end, chunk, stage + 1))
        else:
            last = max(last, end)
    return float(last)


def simulated_seconds(
    buckets: tuple[Bucket, ...],
    fabric: Fabric,
    devices: int,
    computing_seconds: float,
    *,
    straggler_share: float,
    steps: int = 20,
) -> float:
    """The mean of some steps whose devices' computing times spread normally; seeded."""
    random = np.random.default_rng(0)
    times = [
        simulate_step(
            buckets,
            fabric,
            devices,
            computing_seconds * (1 + straggler_share * random.standard_normal(devices)),
        )
        for _ in range(steps if straggler_share and devices > 1 else 1)
    ]
    return float(np.mean(times))
