"""Passes of two fine-tuning arms in turns of a few steps, and what each pass held.

The Trainer cannot be stepped from outside: where it is to make a step, the race yields.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from benchmarks.accelerator import MemoryWatch
from benchmarks.measurement import matmul_peak, synchronize

WARMUP_STEPS, TURN_STEPS = 5, 5


@dataclass
class Arm:
    """A contestant; `seconds` has one entry for each pass. `step` is None for the Trainer.

    `peak_bytes` is the most that it has on the device, weights and optimizer included.
    """

    name: str
    step: Callable[[], object] | None
    own_bytes: int = 0
    peak_bytes: int | None = None
    seconds: list[float] = field(default_factory=list)


def stretch(num_items: int, batch: int) -> int:
    """Batches that the Trainer sorts by length at a time (its `get_length_grouped_indices`)."""
    return max(1, min(num_items // (4 * batch), 50))


def items_of_pass(number: int, steps: int, num_items: int, batch: int) -> int:
    """Items of a pass of so many steps: the last step of an epoch has fewer, in both arms."""
    per_epoch = -(-num_items // batch)
    first = WARMUP_STEPS + number * steps
    within = [step % per_epoch for step in range(first, first + steps)]
    return sum(min(batch, num_items - step * batch) for step in within)


def race(
    arms: list[Arm],
    passes: int,
    steps: int,
    device: torch.device,
    peaks: list[float],
    *,
    after_pass: Callable[[], object],
) -> Iterator[None]:
    """Warms up and times all passes; yields where the arm that has no `step` is to make one.

    Before each pass the rate of bare products goes into `peaks`: machines change their speed.
    """
    for arm in arms:
        watch = MemoryWatch(device)
        yield from turn(arm, WARMUP_STEPS)
        above = watch.peak_bytes()
        arm.peak_bytes = None if above is None else arm.own_bytes + above
    for _ in range(passes):
        peaks.append(matmul_peak(device))
        yield from time_pass(arms, steps, device)
        after_pass()


def time_pass(arms: list[Arm], steps: int, device: torch.device) -> Iterator[None]:
    """One pass of every arm, in turns of TURN_STEPS; who begins changes with each turn."""
    seconds = dict.fromkeys((arm.name for arm in arms), 0.0)
    for number, first in enumerate(range(0, steps, TURN_STEPS)):
        for arm in arms if number % 2 else arms[::-1]:
            synchronize(device)
            begin = time.perf_counter()
            yield from turn(arm, min(TURN_STEPS, steps - first))
            synchronize(device)
            seconds[arm.name] += time.perf_counter() - begin
    for arm in arms:
        arm.seconds.append(seconds[arm.name])


def turn(arm: Arm, steps: int) -> Iterator[None]:
    """Some steps of an arm."""
    for _ in range(steps):
        if arm.step is None:
            yield
        else:
            arm.step()


def described_pass(arms: list[Arm]) -> str:
    """A line on the last pass."""
    ours, theirs = (arm.seconds[-1] for arm in arms)
    number = len(arms[0].seconds)
    return f"pass {number}: ours {ours:.1f} s, {arms[1].name} {theirs:.1f} s, {theirs / ours:.2f}"
