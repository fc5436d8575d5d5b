"""Prepare the arms so that they fit the memory and compute the same, and time them in rounds."""

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from benchmarks.measurement import Arm, median_ratio, synchronize, timed_calls
from benchmarks.pretraining.arms import Contestant, Trial
from benchmarks.results import ResultsSoFar
from bert_core.errors import UserError

TOLERANCE = {"cpu": 1e-4, "cuda": 2e-2}
"""Relative, of losses and gradient norms: float32, and bfloat16 autocast."""

STEADY = 0.03
"""By how much the rounds of an arm may differ before it is marked."""

_UNTIMED = {"cpu": 0, "cuda": 2}
"""Untimed steps at the start of a turn, since the card's memory was just released."""

_MOST_PARTS = 32

_WEIGHTS_KEPT = 3
"""Copies of the weights that an arm keeps between turns: weights and AdamW's two moments."""


@dataclass
class TrainingArm(Arm):
    """An arm whose model is built; `rounds` has the seconds of each step, a list for each turn.

    `resting_bytes` of it lie on the device between turns.
    `peak_bytes` is what a step takes above what lay on the device before the arm was built, and
    `compile_seconds` what the first step of training took longer than a later one.
    """

    micro_batches: int = 1
    resting_bytes: int = 0
    loss: float = math.nan
    gradient_norm: float = math.nan
    compile_seconds: float | None = None
    peak_bytes: int | None = None
    rounds: list[list[float]] = field(default_factory=list)

    def forget(self) -> None:
        """Discards the timings."""
        self.rounds, self.seconds = [], []


def prepare(
    contestant: Contestant,
    device: torch.device,
    *,
    warmup: int,
    clock: Callable[[], float] = time.perf_counter,
    kept_free: int = 0,
    parts: int = 1,
) -> TrainingArm:
    """Builds an arm with the largest micro-batch that fits, computes its loss, and warms it up.

    The step is split into `parts` micro-batches, twice as many after each out-of-memory error;
    `kept_free` bytes are reserved for later arms. Raises `UserError` if nothing fits.
    """
    while True:
        try:
            return _prepared(contestant, parts, device, warmup, clock, kept_free)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        # After the handler: within it the error holds the tensors.
        release(device)
        parts *= 2
        if parts > _MOST_PARTS:
            remedy = "fewer --tokens, or a smaller --preset"
            raise UserError("does not fit in the memory of the device", contestant.name, remedy)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a card is out of memory; the compiler wraps this in its own errors."""
    said = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(
        sign in said for sign in ("out of memory", "alloc_failed")
    )


def _prepared(
    contestant: Contestant,
    parts: int,
    device: torch.device,
    warmup: int,
    clock: Callable[[], float],
    kept_free: int,
) -> TrainingArm:
    before = memory_in_use(device)
    ballast = torch.empty(kept_free, dtype=torch.uint8, device=device)
    trial = contestant.build(parts)
    loss, gradient_norm = trial.loss_and_gradient_norm()
    first = _seconds(trial, device, clock)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    later = [_seconds(trial, device, clock) for _ in range(warmup)]
    arm = TrainingArm(contestant.name, contestant.is_peer, trial.step, micro_batches=parts)
    arm.resting_bytes = _WEIGHTS_KEPT * sum(
        weight.numel() * weight.element_size() for weight in trial.model.parameters()
    )
    arm.loss, arm.gradient_norm = loss, gradient_norm
    if contestant.compiled and later:
        arm.compile_seconds = max(0.0, first - statistics.median(later))
    if device.type == "cuda":
        arm.peak_bytes = torch.cuda.max_memory_allocated(device) - before - ballast.numel()
    return arm


def _seconds(trial: Trial, device: torch.device, clock: Callable[[], float]) -> float:
    begin = clock()
    trial.step()
    synchronize(device)
    return clock() - begin


def memory_in_use(device: torch.device) -> int:
    """Bytes of tensors on a card; 0 on the CPU, which is not asked."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def release(device: torch.device) -> None:
    """Gives back the memory of tensors that are gone."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def assert_equal(found: TrainingArm, expected: TrainingArm, tolerance: float) -> None:
    """Raises `AssertionError` where an arm's loss or gradient norm is not that of another."""
    for kind in ("loss", "gradient_norm"):
        left, right = getattr(found, kind), getattr(expected, kind)
        if not math.isclose(left, right, rel_tol=tolerance):
            raise AssertionError(f"{found.name}: {kind} {left}, but {right} for {expected.name}")


def prepared_or_failed(
    contestant: Contestant,
    device: torch.device,
    so_far: ResultsSoFar,
    *,
    like: TrainingArm | None,
    **values: Any,  # noqa: ANN401 - those of `prepare`
) -> TrainingArm | None:
    """An arm that computes the same as another; None, and the reason kept, where it does not.

    One arm's failure must not cost the others' figures: they may be an hour of a lent card.
    """
    arm = None
    try:
        found = prepare(contestant, device, **values)
        if like is not None:
            assert_equal(found, like, TOLERANCE[device.type])
        arm = found
    except Exception as error:
        so_far.fail(contestant.name, error)
    if arm is None:
        release(device)
    return arm


def run_rounds(
    arms: Sequence[TrainingArm],
    device: torch.device,
    *,
    rounds: int,
    steps: int,
    seconds_left: Callable[[], float],
    after_round: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Times `steps` steps of each arm in every round, forwards and backwards through them.

    A round is not begun when the longest so far would not fit in `seconds_left()`, but the first
    always is. Gives the number of rounds there were.
    """
    longest = 0.0
    for done in range(rounds):
        before = seconds_left()
        if done and before < longest:
            return done
        for arm in arms if done % 2 == 0 else reversed(arms):
            if device.type == "cuda":
                torch.cuda.empty_cache()  # what another arm left would make this one's fragmented
            untimed = _UNTIMED[device.type]
            seconds = timed_calls(arm.step, device, untimed + steps, clock)[untimed:]
            arm.rounds.append(seconds)
            arm.seconds.append(statistics.median(seconds))
        longest = max(longest, before - seconds_left())
        after_round()
    return rounds


def as_prepared(arm: TrainingArm) -> dict[str, Any]:
    """What is known of an arm before it is timed."""
    return {
        "micro_batches": arm.micro_batches,
        "peak_bytes": arm.peak_bytes,
        "compile_seconds": arm.compile_seconds,
        "loss": arm.loss,
        "gradient_norm": arm.gradient_norm,
    }


def figures(
    arm: TrainingArm, *, tokens: int, model_flops: float, peaks: dict[str, float | None]
) -> dict[str, Any]:
    """What an arm did; `tokens` are the real ones of a step, and `model_flops` those of them."""
    steps = [seconds for each in arm.rounds for seconds in each]
    median = statistics.median(steps)
    low, high = np.percentile(steps, [10, 90]).tolist()
    spread = (max(arm.seconds) - min(arm.seconds)) / median
    reached = model_flops / median
    return {
        "tokens_per_second": tokens / median,
        "step_seconds": median,
        "step_seconds_percentiles_10_90": [low, high],
        "step_seconds_of_rounds": arm.seconds,
        "spread_of_rounds": spread,
        "steady": spread <= STEADY,
        "mfu": _share(reached, peaks["matmul_flops_per_second"]),
        "mfu_of_data_sheet": _share(reached, peaks["data_sheet_flops_per_second"]),
        **as_prepared(arm),
    }


def summary(
    arms: Sequence[TrainingArm],
    *,
    tokens: int,
    model_flops: float,
    peaks: dict[str, float | None],
) -> dict[str, dict[str, Any]]:
    """The figures of each arm; a peer's `ratio` is how many times as fast our best arm is."""
    own = [arm for arm in arms if not arm.is_peer]
    best = min(own, key=lambda arm: arm.median_seconds, default=None)
    found = {}
    for arm in arms:
        found[arm.name] = figures(arm, tokens=tokens, model_flops=model_flops, peaks=peaks)
        if arm.is_peer and best is not None:
            found[arm.name]["ratio"] = median_ratio(arm, best)
    return found


def _share(part: float, whole: float | None) -> float | None:
    return None if whole is None else part / whole
