"""Whole pre-training runs: a model, a recipe, devices and a rate in; hours, dollars, bytes out."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from benchmarks.readme.parts import RESULTS
from benchmarks.scaling.hardware import H200, Device
from benchmarks.scaling.memory import device_bytes, most_rows
from benchmarks.scaling.mlperf import fixed_seconds_of_a_layer
from benchmarks.scaling.model import (
    OPTIMIZER_BYTES,
    StepSeconds,
    gradient_buckets,
    num_parameters,
    row_flops,
    speed_from,
    step_seconds,
)
from bert_core.config import SIZES, ModelConfig
from bert_core.errors import UserError

MODELS = ("base", "large")
DEVICES = (1, 8, 64, 1_024)

MICRO_BATCH_TOKENS = 65_536
"""What a device computes at once at most, and what its rate is measured with."""

LOADER_SHARE = 0.97
"""Of the rate of batches that are ready: what a loader must reach end to end, assumed here."""

ASSUMED_SHARES = (0.45, 0.55, 0.65)
"""Of the measured peak of an H200: floor, aim and moonshot of this project. Not measured."""

TPU_SHARE = 0.45
"""Of a TPU's data sheet. Assumed, lower than the 55 to 60 % that MaxText tells of larger models."""


@dataclass(frozen=True)
class Recipe:
    """A schedule: `phases` are (sequence length, steps); all steps have as many rows."""

    name: str
    rows: int
    phases: tuple[tuple[int, int], ...]
    optimizer: str

    @property
    def slots(self) -> int:
        """Places for tokens in the whole run."""
        return sum(self.rows * length * steps for length, steps in self.phases)


PAPER = Recipe("the paper's", 256, ((128, 900_000), (512, 100_000)), "adamw")
FAST = Recipe("base-fast's", 4_096, ((128, 56_250), (512, 6_250)), "lamb")


@dataclass(frozen=True)
class Rate:
    """FLOP/s of one device in training on a full micro-batch, by (model, sequence length).

    `layer_seconds` is the part of a micro-batch's time that does not grow with tokens, of a layer.
    """

    label: str
    flops_per_second: dict[tuple[str, int], float]
    layer_seconds: float

    def of(self, model: str, sequence_length: int) -> float:
        """That of the model at this length; at the other where only that was measured."""
        own = {key[1]: rate for key, rate in self.flops_per_second.items() if key[0] == model}
        return own.get(sequence_length) or next(iter(own.values()))


@dataclass(frozen=True)
class Phase:
    """A phase on some devices: what one of them does in a step."""

    sequence_length: int
    steps: int
    used: int  # devices that have a row at all
    rows: int  # a device and step
    micro_rows: int
    seconds: StepSeconds
    memory_bytes: float


@dataclass(frozen=True)
class Run:
    """A whole run."""

    phases: tuple[Phase, ...]
    devices: int
    dollars_per_hour: float

    @property
    def hours(self) -> float:
        """Wall clock, evaluation and checkpoints left out."""
        seconds = sum(phase.steps * phase.seconds.total for phase in self.phases)
        return seconds / LOADER_SHARE / 3600

    @property
    def dollars(self) -> float:
        """Only for devices that have work."""
        return self.hours * max(phase.used for phase in self.phases) * self.dollars_per_hour


def percent(share: float) -> str:
    """A share in words."""
    return f"{100 * share:.0f} %"


def same_share(label: str, flops_per_second: float) -> Rate:
    """One rate for all models and lengths."""
    rates = {(model, 128): flops_per_second for model in MODELS}
    return Rate(label, rates, fixed_seconds_of_a_layer())


def assumed_rates() -> list[Rate]:
    """The three shares of an H200's peak."""
    peak = H200.peak_flops_per_second
    return [same_share(percent(share), share * peak) for share in ASSUMED_SHARES]


def measured_rate(root: Path) -> Rate | None:
    """What `benchmarks.pretraining` measured on an H200; None unless for both models.

    Of several results for a model and length the fastest counts, whatever its rows' lengths: model
    FLOPs leave padding out.
    """
    found: dict[tuple[str, int], float] = {}
    for path in sorted((root / RESULTS).glob("pretraining-cuda-*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        settings, around = result.get("settings", {}), result.get("surroundings", {})
        own = [arm for name, arm in result.get("arms", {}).items() if name == "ours, fast"]
        if not own or "H200" not in str(around.get("device")):
            continue
        rate = own[0]["tokens_per_second"] * result["model_flops_per_step"]
        rate /= result["real_tokens_per_step"]
        key = settings["preset"], settings["sequence_length"]
        found[key] = max(rate, found.get(key, 0.0))
    if {model for model, _ in found} < set(MODELS):
        return None
    return Rate("measured", found, fixed_seconds_of_a_layer())


def _micro_rows(config: ModelConfig, rows: int, length: int, memory_bytes: float) -> int:
    """Rows of a micro-batch, as equal as can be; raises `UserError` where not one fits."""
    most = min(MICRO_BATCH_TOKENS // length, most_rows(config, length, memory_bytes))
    if most == 0:
        raise UserError("no row fits the device's memory", f"{config!r}", "a smaller model")
    return math.ceil(rows / math.ceil(rows / most))


def plan_phase(
    model: str, recipe: Recipe, device: Device, devices: int, rate: Rate, *, phase: int
) -> Phase:
    """One phase; a device has whole rows, and with more devices than rows some have none."""
    config = SIZES[model]
    length, steps = recipe.phases[phase]
    used = min(devices, recipe.rows)
    rows = math.ceil(recipe.rows / used)
    micro_rows = _micro_rows(config, rows, length, device.memory_bytes)
    speed = speed_from(
        rate.of(model, length),
        row_flops(config, MICRO_BATCH_TOKENS // length, length),
        rate.layer_seconds * config.num_hidden_layers,
    )
    seconds = step_seconds(
        gradient_buckets(config),
        device,
        used,
        speed.seconds(row_flops(config, micro_rows, length)),
        micro_batches=math.ceil(rows / micro_rows),
        optimizer_bytes=OPTIMIZER_BYTES[recipe.optimizer] * num_parameters(config),
    )
    memory_bytes = device_bytes(config, micro_rows, length)
    return Phase(length, steps, used, rows, micro_rows, seconds, memory_bytes)


def plan(model: str, recipe: Recipe, device: Device, devices: int, rate: Rate) -> Run:
    """A whole run of a recipe."""
    phases = tuple(
        plan_phase(model, recipe, device, devices, rate, phase=index)
        for index in range(len(recipe.phases))
    )
    return Run(phases, devices, device.dollars_per_hour)


def efficiency(model: str, recipe: Recipe, device: Device, devices: int, rate: Rate) -> float:
    """The time of one device over the devices' number and time: 1 is ideal."""
    alone = plan(model, recipe, device, 1, rate).hours
    return alone / (devices * plan(model, recipe, device, devices, rate).hours)


def most_devices(model: str, recipe: Recipe, device: Device, rate: Rate, least: float) -> int:
    """The largest power of two up to 1,024 that keeps so much of ideal."""
    counts = [2**power for power in range(11)]
    return max(n for n in counts if efficiency(model, recipe, device, n, rate) >= least)
