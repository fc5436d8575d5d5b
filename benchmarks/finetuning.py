"""Compare fine-tuning throughput with transformers' Trainer: a table and JSON.

`python -m benchmarks.finetuning --task mrpc --data DIR --model FOLDER`. Same weights, same token
ids, batches of the same size; every step counts whole, from fetching its examples to the optimizer.
The Trainer sorts a stretch of batches by length, so a pass has as many steps as a stretch; within a
pass the arms alternate every few steps. Without accelerate, which the Trainer needs, the peer is a
plain loop over transformers' model. The JSON is updated after each pass.
"""

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.finetuning_arms import (
    PlainLoop,
    Recipe,
    our_training,
    their_outputs,
    their_trainer,
    train_in_turns,
    write_start,
)
from benchmarks.inputs import fresh_encoder
from benchmarks.measurement import (
    MemoryWatch,
    device_named,
    matmul_peak,
    surroundings,
    synchronize,
    weight_bytes,
)
from benchmarks.results import ResultsSoFar
from bert_core.config import SIZES, training_flops
from bert_core.errors import UserError
from bert_core.model.bert import Bert
from bert_core.settings import FinetuningOptimizerSettings
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.task import Task
from bert_core.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import Trainer


DEFAULTS: dict[str, dict[str, Any]] = {
    "cpu": {"max_tokens": 4096, "attention_dropout": None},
    "cuda": {"max_tokens": 65_536, "attention_dropout": 0.0},
}
TRAINER, LOOP = "transformers", "transformers, plain loop"
TOLERANCE = {None: 1e-3, torch.bfloat16: 5e-2}
"""Allowed difference of outputs, relative to the largest: all in float32, ours in bfloat16."""
WARMUP_STEPS, TURN_STEPS = 5, 5


@dataclass
class Arm:
    """One side of the comparison; `seconds` has one entry per pass. `step` is None for the Trainer.

    `peak_bytes` is its peak memory on the device, including weights and optimizer.
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


def time_passes(
    arms: list[Arm],
    passes: int,
    steps: int,
    device: torch.device,
    peaks: list[float],
    *,
    after_pass: Callable[[], object],
) -> Iterator[None]:
    """Warms up and times all passes; yields whenever the arm without `step` should make a step.

    Measures the matmul peak before each pass into `peaks`, since the speed of machines varies.
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
    """One pass of every arm, in turns of TURN_STEPS; the first arm alternates."""
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


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.finetuning", description=__doc__)
    parser.add_argument("--task", choices=("mrpc", "conll2003", "squad"), required=True)
    parser.add_argument("--data", type=Path, required=True, help="the task's folder, for lengths")
    parser.add_argument("--model", type=Path, required=True, help="an encoder's model folder")
    parser.add_argument(
        "--size",
        choices=tuple(SIZES),
        default=None,
        help="a fresh encoder of this size instead; of --model only the tokenizer is needed then",
    )
    parser.add_argument("--device", choices=tuple(DEFAULTS), default="cpu")
    parser.add_argument(
        "--peer", choices=("trainer", "loop"), help="by default the Trainer, if accelerate is there"
    )
    parser.add_argument(
        "--examples", type=int, default=None, help="of the training data, drawn; default all"
    )
    parser.add_argument("--batch", type=int, default=32, help="examples of a step")
    parser.add_argument("--max_tokens", type=int, help="of a forward pass of ours")
    parser.add_argument(
        "--attention_dropout",
        type=float,
        help="of both; by default the encoder's, and 0 on CUDA, where packed rows have none",
    )
    parser.add_argument("--passes", type=int, default=5, help="turns of each arm through a stretch")
    parser.add_argument("--json", type=Path, default=None, help="where the results go as JSON")
    options = parser.parse_args(arguments)
    for name, value in DEFAULTS[options.device].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.peer is None:
        options.peer = "trainer" if find_spec("accelerate") else "loop"
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark, prints the table and writes the JSON; 2 where it cannot begin."""
    options = parse_arguments(arguments)
    try:
        measure(options)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def measure(options: argparse.Namespace) -> None:
    """Measure everything, writing results after each pass."""
    device = device_named(options.device)
    so_far = ResultsSoFar(options.json, math.inf)
    torch.set_flush_denormal(True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoder = options.model
        if options.size is not None:
            encoder = fresh_encoder(options.model, options.size, folder)
        task, rows, some = draw_rows(options)
        dropout = options.attention_dropout
        write_start(
            options.task, task, encoder, folder / "start", seed=0, attention_dropout=dropout
        )
        steps_of_pass = stretch(rows.num_items, options.batch)
        recipe = Recipe(
            FinetuningOptimizerSettings(),
            batch_size=options.batch,
            total_steps=WARMUP_STEPS + steps_of_pass * options.passes,
            seed=0,
            device=device,
            max_tokens=options.max_tokens,
        )
        model, _, steps = our_training(task, rows, folder / "start", recipe)
        peer, their_arm = build_peer(options, task, rows, folder / "start", recipe)
        arms = [Arm("ours", lambda: next(steps), weight_bytes(model)), their_arm]
        so_far.keep(difference=largest_difference(task, some, model, peer, recipe))
        peaks: list[float] = []

        def keep_summary() -> None:
            peak = statistics.median(peaks)
            so_far.keep(**summarize(options, rows, model, arms, device, peak))
            print(described_pass(arms), flush=True)

        turns = time_passes(
            arms, options.passes, steps_of_pass, device, peaks, after_pass=keep_summary
        )
        if isinstance(peer, PlainLoop):
            assert not list(turns)  # it makes its steps itself
        else:
            train_in_turns(peer, turns)
    so_far.finish()
    print_results(so_far.values)


def build_peer(
    options: argparse.Namespace, task: Task, rows: EncodedRows, folder: Path, recipe: Recipe
) -> tuple["Trainer | PlainLoop", Arm]:
    """The selected peer and its arm."""
    if options.peer == "loop":
        loop = PlainLoop(task, rows, folder, recipe)
        return loop, Arm(LOOP, loop.step, weight_bytes(loop.model))
    trainer = their_trainer(task, rows, folder, recipe, fastest=True)
    assert trainer.model is not None
    return trainer, Arm(TRAINER, None, weight_bytes(trainer.model))


def draw_rows(options: argparse.Namespace) -> tuple[Task, EncodedRows, EncodedRows]:
    """Training examples, drawn with a seed, as rows with real lengths; and 40 of them."""
    task = TASKS[options.task]
    examples = task.examples(options.data, "train")
    task = task.with_labels(examples)
    order = np.random.default_rng(0).permutation(len(examples))[: options.examples]
    chosen = [examples[index] for index in order]
    tokenizer = load_tokenizer(options.model)
    return task, task.encode(chosen, tokenizer), task.encode(chosen[:40], tokenizer)


def largest_difference(
    task: Task, rows: EncodedRows, model: Bert, peer: "Trainer | PlainLoop", recipe: Recipe
) -> float:
    """Between the arms' outputs before the first step; raises `AssertionError` if it is large.

    Without dropout, in float32; ours also in the type and with the kernel that are timed.
    """
    theirs = their_outputs(task, rows, peer)
    differences = []
    for dtype in dict.fromkeys((None, recipe.dtype)):
        ours, _ = compute_all_outputs(task, model, rows, device=recipe.device, autocast_dtype=dtype)
        differences.append(float(np.abs(ours - theirs).max()))
        if differences[-1] > TOLERANCE[dtype] * float(np.abs(ours).max()):
            raise AssertionError(f"the arms' answers differ by {differences[-1]}, {dtype}")
    return differences[-1]


def summarize(
    options: argparse.Namespace,
    rows: EncodedRows,
    model: Bert,
    arms: list[Arm],
    device: torch.device,
    peak: float,
) -> dict[str, Any]:
    """The results of both arms; the ratio is the median over passes."""
    ours, theirs = arms
    flops = training_flops(
        model.config,
        num_tokens=int(rows.lengths.sum()),
        sum_of_squared_lengths=int((rows.lengths**2).sum()),
        num_predictions=0,
        num_rows=0,
        num_read=len(rows.places),
    )
    steps = stretch(rows.num_items, options.batch)
    items = [
        items_of_pass(number, steps, rows.num_items, options.batch)
        for number in range(len(ours.seconds))
    ]
    rates = {
        arm.name: statistics.median(
            n / seconds for n, seconds in zip(items, arm.seconds, strict=True)
        )
        for arm in arms
    }
    ratios = [slow / fast for slow, fast in zip(theirs.seconds, ours.seconds, strict=True)]
    left_out = ("json", "data", "model")
    return {
        "benchmark": "finetuning",
        "settings": {key: value for key, value in vars(options).items() if key not in left_out},
        "encoder": {
            name: getattr(model.config, name)
            for name in (
                "num_hidden_layers",
                "hidden_size",
                "vocab_size",
                "hidden_dropout_prob",
                "attention_probs_dropout_prob",
            )
        },
        "surroundings": surroundings(device),
        "matmul_flops_per_second": peak,
        "items": rows.num_items,
        "steps_of_a_pass": steps,
        "mean_length": float(rows.lengths.mean()),
        "longest": int(rows.lengths.max()),
        "arms": {
            arm.name: {
                "examples_per_second": rates[arm.name],
                "seconds_of_passes": arm.seconds,
                "mfu": rates[arm.name] * flops / rows.num_items / peak,
                "peak_bytes": arm.peak_bytes,
            }
            for arm in arms
        },
        "ratio": statistics.median(ratios),
        "ratios_of_passes": ratios,
    }


def print_results(results: dict[str, Any]) -> None:
    """Prints the surroundings, settings and one row for each arm."""
    print(", ".join(f"{key} {value}" for key, value in results["surroundings"].items()))
    print(", ".join(f"{key} {value}" for key, value in results["settings"].items()))
    print(f"rows of {results['mean_length']:.0f} tokens on average, {results['longest']} at most")
    print(f"{'arm':26}{'examples/s':>12}{'MFU':>8}{'memory GB':>11}")
    for name, arm in results["arms"].items():
        memory = "" if arm["peak_bytes"] is None else f"{arm['peak_bytes'] / 1e9:11.1f}"
        print(f"{name:26}{arm['examples_per_second']:12.1f}{arm['mfu']:8.1%}{memory}")
    print(f"ours is {results['ratio']:.2f} times as fast")


if __name__ == "__main__":
    sys.exit(main())
