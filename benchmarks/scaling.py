"""Estimate time, cost and memory of pre-training on 1 to 1,024 devices.

`python -m benchmarks.scaling` prints docs/scaling.md; `--write` writes it with its picture, and
`--check` exits with 1 if either is out of date. A step of data-parallel training takes the time to
compute, plus the all-reduce that the backward pass does not hide, the optimizer, and the wait for
the slowest device. docs/scaling.md lists the assumptions and their sources.
"""

import argparse
import hashlib
import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

from benchmarks.readme import RESULTS, ROOT, render_page
from bert_core.config import SIZES, ModelConfig, training_flops
from bert_core.errors import UserError

DOCUMENT, PICTURE = "docs/scaling.md", "docs/scaling.svg"
MODELS = ("base", "large")
DEVICES = (1, 8, 64, 1_024)
POWERS = tuple(2**power for power in range(11))

MICRO_BATCH_TOKENS = 65_536
"""The most that a device computes at once, and what its rate is measured with."""
PRESET_ROWS = 256
"""The micro-batch of the preset base-fast."""
LOADER_SHARE = 0.97
"""The part of the rate of batches already in memory that a loader must reach. Assumed."""
ASSUMED_SHARES = (0.45, 0.55, 0.65)
"""Of an H200's measured peak, as long as no rate of training is measured."""
TPU_SHARE = 0.45
"""Of a TPU's data sheet. Assumed, below the 55 to 60 % that MaxText reports for larger models."""
LAYER_SECONDS = 592.8e-6
"""The part of a layer's forward and backward pass that does not depend on the number of tokens.

Fitted so that the formula gives MLPerf v3.0's 272 sequences a second and GPU on 512 H100.
"""
TENSORRT_LAYER_SECONDS = 137e-6
"""The same by the latency of one row in TensorRT: three times the forward pass of BERT base on an
A100, 0.67 ms for one row of 128 and 16.14 ms for 128 rows (its repository's demo/BERT)."""
MASKED_SHARE = 0.15
BACKWARD_SHARE = 2 / 3
"""Of the forward and the backward pass together, as in the formula of the FLOPs."""
FIRST_BUCKET_BYTES, BUCKET_BYTES = 2**20, 25 * 2**20
"""torch's DistributedDataParallel: the tensor that fills a bucket closes it."""
OPTIMIZER_BYTES = {"adamw": 40, "lamb": 120}
"""Bytes moved per weight, all float32, with clipping (12): the fused AdamW reads weight, gradient
and two moments and writes three; LAMB runs a kernel for each of its operations."""
STRAGGLER_SHARE = 0.01
"""Standard deviation of a device's computing time, as a share of it. Assumed."""

WEIGHT_BYTES, CAST_BYTES = 16, 2
"""Float32 weight, gradient and two moments; and the bfloat16 copy that autocast keeps."""
FRAMEWORK_BYTES = 2e9
"""CUDA context, cuBLAS workspaces, NCCL buffers. Assumed."""
KEPT_LOGIT_BYTES, LOGIT_BYTES = 4, 12
"""A kept logit is its float32 log-probability; at the peak it has two float32 gradients more."""


@dataclass(frozen=True)
class Fabric:
    """How devices reach each other: domains of fast links, and a network between domains.

    Bandwidths are per device and direction. An all-reduce costs `start_seconds` besides its bytes,
    and `hop_seconds` for each hop between domains.
    """

    devices_per_domain: int
    link_bytes_per_second: float
    network_bytes_per_second: float
    start_seconds: float
    hop_seconds: float


@dataclass(frozen=True)
class Device:
    """One accelerator."""

    name: str
    peak_flops_per_second: float
    memory_bytes: float
    memory_bytes_per_second: float
    fabric: Fabric
    dollars_per_hour: float


NVLINK = Fabric(8, 370e9, 45e9, 20e-6, 5e-6)
ICI_V5E = Fabric(256, 0.9 * 200e9, 0.9 * 3.125e9, 20e-6, 50e-6)
H200 = Device("H200", 788e12, 141e9, 4.3e12, NVLINK, 3.50)
V5E = Device("TPU v5e", 197e12, 16e9, 0.9 * 819e9, ICI_V5E, 1.20)
V6E = Device(
    "TPU v6e", 918e12, 32e9, 0.9 * 1638e9, replace(ICI_V5E, link_bytes_per_second=0.9 * 400e9), 2.70
)


@dataclass(frozen=True)
class Recipe:
    """A schedule: `phases` are (sequence length, steps); all steps have `rows` rows."""

    name: str
    rows: int
    phases: tuple[tuple[int, int], ...]
    optimizer: str

    @property
    def slots(self) -> int:
        """Count the places for tokens in the whole run."""
        return sum(self.rows * length * steps for length, steps in self.phases)


PAPER = Recipe("the paper's", 256, ((128, 900_000), (512, 100_000)), "adamw")
FAST = Recipe("base-fast's", 4_096, ((128, 56_250), (512, 6_250)), "lamb")


@dataclass(frozen=True)
class Rate:
    """FLOP/s of one device training on a full micro-batch, by (model, sequence length)."""

    label: str
    flops_per_second: dict[tuple[str, int], float]
    layer_seconds: float = LAYER_SECONDS

    def of(self, model: str, sequence_length: int) -> float:
        """Return the rate at this length, or at the other if only that is known."""
        own = {key[1]: rate for key, rate in self.flops_per_second.items() if key[0] == model}
        return own.get(sequence_length) or next(iter(own.values()))


# --- a step -----------------------------------------------------------------------------------


def row_flops(config: ModelConfig, rows: int, sequence_length: int) -> float:
    """Count model FLOPs of forward and backward pass of full rows."""
    predictions = round(MASKED_SHARE * rows * sequence_length)
    return training_flops(
        config,
        num_tokens=rows * sequence_length,
        sum_of_squared_lengths=rows * sequence_length**2,
        num_predictions=predictions,
        num_rows=rows,
        num_read=predictions + rows,
    )


def gradient_tensors(config: ModelConfig) -> list[list[int]]:
    """List the sizes of the model's tensors in the order in which their gradients are ready.

    The heads, then layer by layer from the last, then the embeddings. The word embeddings come
    last: the masked-token head and the input both write their gradient.
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
    words = config.vocab_size * hidden
    return [heads, *[layer] * config.num_hidden_layers, [*embeddings, words]]


def num_parameters(config: ModelConfig) -> int:
    """Count the weights with both heads of pre-training, the tied ones once."""
    return sum(sum(sizes) for sizes in gradient_tensors(config))


@dataclass(frozen=True)
class Bucket:
    """Gradients that are sent together, `ready` when that share of the backward pass is done."""

    num_bytes: float
    ready: float


def gradient_buckets(
    config: ModelConfig, gradient_bytes: int = 4, limit_bytes: float = BUCKET_BYTES
) -> tuple[Bucket, ...]:
    """Build the buckets in which DDP sends the gradients, in their order.

    A layer's gradients are spread evenly over its backward pass; all layers take equally long. The
    head's share is that of its FLOPs at 128 tokens a row.
    """
    predictions = round(MASKED_SHARE * 128)
    head_weights = config.hidden_size * (config.hidden_size + config.vocab_size)
    head = 6 * predictions * head_weights / row_flops(config, 1, 128)
    layers = config.num_hidden_layers
    shares = [head, *[(1 - head) / layers] * layers, 0.0]
    buckets, filled, ready, limit = [], 0.0, 0.0, FIRST_BUCKET_BYTES
    for sizes, share in zip(gradient_tensors(config), shares, strict=True):
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
    """Estimate an all-reduce as rings within and between domains at once: the slower one counts.

    Each device sends `2 (g - 1) / g` of the bytes in its domain of g, and of its g-th part as much
    between n domains. The latency of `2 log2(n)` hops is that of a tree.
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
    """Estimate how long the all-reduce lasts after the backward pass has ended.

    The last bucket cannot be hidden, and all of them take at least their sum from the first on.
    """
    costs = [all_reduce_seconds(bucket.num_bytes, fabric, devices) for bucket in buckets]
    return max(costs[-1], sum(costs) - backward_seconds * (1 - buckets[0].ready))


def slowest_of(devices: int) -> float:
    """Return how many standard deviations the slowest is above the mean (Blom, 1958)."""
    if devices == 1:
        return 0.0
    return NormalDist().inv_cdf((devices - 0.375) / (devices + 0.25))


def micro_batch_seconds(
    flops: float, flops_per_second: float, full_flops: float, fixed_seconds: float
) -> float:
    """Estimate the passes of a micro-batch: a fixed part, and one that grows with the FLOPs.

    `flops_per_second` was measured on a micro-batch of `full_flops`. Raises `ValueError` if the
    fixed part alone takes longer than that.
    """
    growing_seconds = full_flops / flops_per_second - fixed_seconds
    if growing_seconds <= 0:
        raise ValueError(f"{fixed_seconds} s fixed, but {full_flops / flops_per_second} s measured")
    return fixed_seconds + growing_seconds * flops / full_flops


@dataclass(frozen=True)
class StepSeconds:
    """Where the time of a step goes."""

    computing: float
    waiting: float
    exposed: float
    optimizer: float

    @property
    def total(self) -> float:
        """Add all parts up."""
        return self.computing + self.waiting + self.exposed + self.optimizer


def step_seconds(
    buckets: tuple[Bucket, ...],
    device: Device,
    devices: int,
    micro_batch: float,
    micro_batches: int,
    optimizer_bytes: float,
) -> StepSeconds:
    """Estimate a step of equal micro-batches of `micro_batch` seconds on each device.

    Gradients travel behind the last backward pass; the optimizer moves `optimizer_bytes`.
    """
    computing = micro_batches * micro_batch
    return StepSeconds(
        computing,
        STRAGGLER_SHARE * slowest_of(devices) * computing,
        exposed_seconds(buckets, device.fabric, devices, BACKWARD_SHARE * micro_batch),
        optimizer_bytes / device.memory_bytes_per_second,
    )


# --- memory -----------------------------------------------------------------------------------


def activation_bytes(
    config: ModelConfig,
    tokens: int,
    predictions: int,
    rows: int,
    *,
    embedding_mask: int = 1,
    layer_mask: int = 1,
    head: int = 10,
) -> float:
    """Count what the forward pass keeps for the backward pass, without logits and weight casts.

    Uncompiled, in bfloat16 autocast; `torch.compile` keeps less. A layer's attention keeps 10H + 4A
    per token: the input as bfloat16, the fused projections, the mixed values and the softmax's
    sums. The rest of the layer keeps 26H + 16 and two dropout masks; in the last layer only at the
    places that a head reads, with a copy of their mixed values. Attention has no dropout. The
    keywords are bytes that depend on the device (CUDA's by default): of a dropout mask's place, and
    per predicted position and unit of H in the head.
    """
    hidden, layers = config.hidden_size, config.num_hidden_layers
    attention = 10 * hidden + 4 * config.num_attention_heads
    behind = 26 * hidden + 16 + 2 * layer_mask * hidden
    embeddings = 4 * hidden + 8 + embedding_mask * hidden + 3 * 8
    return (
        tokens * (embeddings + layers * attention + (layers - 1) * behind)
        + (predictions + rows) * (behind + 2 * hidden + 8)
        + predictions * (head * hidden + 16)
    )


def device_bytes(config: ModelConfig, rows: int, sequence_length: int) -> float:
    """Estimate the peak memory of a device for a micro-batch of full rows."""
    tokens = rows * sequence_length
    predictions = round(MASKED_SHARE * tokens)
    return (
        (WEIGHT_BYTES + CAST_BYTES) * num_parameters(config)
        + activation_bytes(config, tokens, predictions, rows)
        + predictions * config.vocab_size * LOGIT_BYTES
        + FRAMEWORK_BYTES
    )


def most_rows(config: ModelConfig, sequence_length: int, memory_bytes: float) -> int:
    """Return the largest micro-batch that fits, in rows; 0 if not even one row does."""
    fixed = device_bytes(config, 0, sequence_length)
    per_row = (device_bytes(config, 1_000, sequence_length) - fixed) / 1_000
    return max(0, int((memory_bytes - fixed) / per_row))


# --- whole runs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Phase:
    """A phase of a run: what one of the `used` devices, those that have a row, does in a step."""

    steps: int
    used: int
    rows: int
    micro_rows: int
    seconds: StepSeconds
    memory_bytes: float


@dataclass(frozen=True)
class Run:
    """A whole run."""

    phases: tuple[Phase, ...]
    dollars_per_hour: float

    @property
    def hours(self) -> float:
        """Return the wall-clock time without evaluation and checkpoints."""
        seconds = sum(phase.steps * phase.seconds.total for phase in self.phases)
        return seconds / LOADER_SHARE / 3600

    @property
    def dollars(self) -> float:
        """Return the price of the devices that have work."""
        return self.hours * max(phase.used for phase in self.phases) * self.dollars_per_hour

    @property
    def gigabytes(self) -> float:
        """Return the peak memory of a device."""
        return max(phase.memory_bytes for phase in self.phases) / 1e9


def plan(model: str, recipe: Recipe, device: Device, devices: int, rate: Rate) -> Run:
    """Estimate a run of a recipe; raises `UserError` if a device does not hold a row."""
    phases = tuple(
        _plan_phase(model, recipe, device, devices, rate, *phase) for phase in recipe.phases
    )
    return Run(phases, device.dollars_per_hour)


def _plan_phase(
    model: str, recipe: Recipe, device: Device, devices: int, rate: Rate, length: int, steps: int
) -> Phase:
    """A device has whole rows; with more devices than rows some have none."""
    config = SIZES[model]
    used = min(devices, recipe.rows)
    rows = math.ceil(recipe.rows / used)
    most = min(MICRO_BATCH_TOKENS // length, most_rows(config, length, device.memory_bytes))
    if most == 0:
        raise UserError("no row fits into the device's memory", device.name, "take a smaller model")
    micro_rows = math.ceil(rows / math.ceil(rows / most))  # as equal as can be
    seconds = step_seconds(
        gradient_buckets(config),
        device,
        used,
        micro_batch_seconds(
            row_flops(config, micro_rows, length),
            rate.of(model, length),
            row_flops(config, MICRO_BATCH_TOKENS // length, length),
            rate.layer_seconds * config.num_hidden_layers,
        ),
        math.ceil(rows / micro_rows),
        OPTIMIZER_BYTES[recipe.optimizer] * num_parameters(config),
    )
    return Phase(steps, used, rows, micro_rows, seconds, device_bytes(config, micro_rows, length))


def efficiency(model: str, recipe: Recipe, device: Device, devices: int, rate: Rate) -> float:
    """Return the time of one device over the devices' number times their time: 1 is ideal."""
    alone = plan(model, recipe, device, 1, rate).hours
    return alone / (devices * plan(model, recipe, device, devices, rate).hours)


# --- rates, page and picture ------------------------------------------------------------------


def assumed_rate(label: str, flops_per_second: float) -> Rate:
    """Give all models and lengths the same rate."""
    return Rate(label, {(model, 128): flops_per_second for model in MODELS})


def known_rates(root: Path) -> list[Rate]:
    """Return the rate that `benchmarks.pretraining` measured on an H200, or the assumed ones.

    The measured rate counts once both models have one; the fastest result for a model and length
    is taken, whatever its rows' lengths: model FLOPs leave padding out.
    """
    found: dict[tuple[str, int], float] = {}
    for path in sorted((root / RESULTS).glob("pretraining-cuda-*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        settings, device = result.get("settings", {}), result.get("surroundings", {}).get("device")
        arm = result.get("arms", {}).get("ours, fast")
        if arm is None or "H200" not in str(device):
            continue
        rate = arm["tokens_per_second"] * result["model_flops_per_step"]
        key = settings["preset"], settings["sequence_length"]
        found[key] = max(rate / result["real_tokens_per_step"], found.get(key, 0.0))
    if {model for model, _ in found} >= set(MODELS):
        return [Rate("measured", found)]
    peak = H200.peak_flops_per_second
    return [assumed_rate(f"{share:.0%}", share * peak) for share in ASSUMED_SHARES]


def page(root: Path) -> str:
    """Render docs/scaling.md."""
    rates = known_rates(root)
    middle = rates[len(rates) // 2]
    values: dict[str, Any] = globals() | {
        "rates": rates,
        "rate": middle,
        "quick": replace(middle, layer_seconds=TENSORRT_LAYER_SECONDS),
        "most": {
            model: max(n for n in POWERS if efficiency(model, FAST, H200, n, middle) >= 0.8)
            for model in MODELS
        },
        "tpu": {
            device.name: assumed_rate(device.name, TPU_SHARE * device.peak_flops_per_second)
            for device in (V5E, V6E)
        },
    }
    return render_page("scaling.md.j2", values)


def curves(rate: Rate) -> dict[str, list[float]]:
    """Compute the efficiency at each of `POWERS` devices, by model and recipe."""
    return {
        f"BERT {model}, {recipe.rows:,} rows a step ({recipe.name} recipe)": [
            round(efficiency(model, recipe, H200, count, rate), 6) for count in POWERS
        ]
        for model in MODELS
        for recipe in (FAST, PAPER)
    }


def fingerprint(rate: Rate) -> str:
    """Hash what is drawn. The picture contains it, so that a check needs no matplotlib."""
    drawn = json.dumps({"rate": rate.label, "curves": curves(rate)}, sort_keys=True)
    return "curves " + hashlib.sha256(drawn.encode()).hexdigest()[:16]


def draw(rate: Rate, path: Path) -> None:
    """Write the picture as SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    styles = [("-", "#2563eb"), ("--", "#2563eb"), ("-", "#ea580c"), ("--", "#ea580c")]
    with matplotlib.rc_context({"svg.hashsalt": "scaling", "font.size": 11}):
        figure, axes = pyplot.subplots(figsize=(8, 4.8))
        for (label, shares), (line, colour) in zip(curves(rate).items(), styles, strict=True):
            values = [100 * share for share in shares]
            axes.plot(POWERS, values, line, color=colour, marker="o", markersize=3.5, label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks(POWERS, [f"{count:,}" for count in POWERS])
        axes.set_ylim(0, 103)
        axes.set_xlabel("H200, 8 in a node")
        axes.set_ylabel("efficiency: % of ideal scaling")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        above = (0.5, 1.0)
        axes.legend(frameon=False, loc="lower center", bbox_to_anchor=above, ncols=2, fontsize=9.5)
        figure.tight_layout()
        about = {"Date": None, "Description": fingerprint(rate)}
        figure.savefig(path, format="svg", metadata=about)
        pyplot.close(figure)


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Print, write or check the page: 1 if something is out of date."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--write", action="store_true", help="write the page and its picture")
    either.add_argument("--check", action="store_true", help="change nothing, name what differs")
    options = parser.parse_args(arguments)
    text, rates = page(root), known_rates(root)
    rate, path, picture = rates[len(rates) // 2], root / DOCUMENT, root / PICTURE
    if options.write:
        path.write_text(text, encoding="utf-8")
        draw(rate, picture)
        print(f"{path}: written, with {PICTURE}")
        return 0
    if not options.check:
        print(text)
        return 0
    stale = [path] if not path.exists() or path.read_text(encoding="utf-8") != text else []
    if not picture.exists() or fingerprint(rate) not in picture.read_text(encoding="utf-8"):
        stale.append(picture)
    for each in stale:
        print(f"{each}: out of date; run python -m benchmarks.scaling --write")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
