"""Compare pre-training throughput with transformers' own model: a table and JSON.

`python -m benchmarks.pretraining --device cuda --preset base --sequence_length 512 --lengths
natural`; same weights, same rows, losses and gradient norms asserted equal without dropout and
then timed with it, in interleaved turns. Only real tokens count, never padding. Needs torch, numpy,
pydantic and, for the peers, transformers. The JSON is updated as soon as a figure is known.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.measurement import CLOCKS, device_named, device_state, measured_peaks, surroundings
from benchmarks.pretraining.ablation import ablate, chosen_rows
from benchmarks.pretraining.arms import (
    Contestant,
    Rows,
    Task,
    contestants,
    has_pairs,
    make_rows,
    rows_for,
)
from benchmarks.pretraining.rounds import (
    TrainingArm,
    as_prepared,
    prepared_or_failed,
    run_rounds,
    summary,
)
from benchmarks.results import ResultsSoFar
from bert_core.config import MODERN_SIZES, SIZES, ModelConfig, training_flops
from bert_core.errors import UserError

DEFAULTS: dict[str, dict[str, Any]] = {
    "cpu": {"rounds": 15, "steps": 2, "warmup": 3, "attention_dropout": 0.1},
    "cuda": {"rounds": 3, "steps": 20, "warmup": 10, "attention_dropout": 0.0},
}

_RECOMPILE_LIMIT = 64


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretraining", description=__doc__)
    parser.add_argument("--device", choices=tuple(DEFAULTS), default="cpu")
    parser.add_argument("--preset", choices=tuple(SIZES), default="tiny", help="size of the model")
    parser.add_argument(
        "--block", choices=("bert", "modern"), default="bert", help="modern: that of ModernBERT"
    )
    parser.add_argument("--vocab", type=int, default=30_522, help="entries of the vocabulary")
    parser.add_argument("--batch", type=int, default=16, help="rows of a step on the CPU")
    parser.add_argument(
        "--tokens", type=int, default=65_536, help="of a step on CUDA, approximately"
    )
    parser.add_argument("--sequence_length", type=int, default=128, help="tokens of a row")
    parser.add_argument("--lengths", choices=("full", "natural"), default="full")
    parser.add_argument(
        "--dropout", type=float, help="on hidden states: 0.1, in the modern block none"
    )
    parser.add_argument(
        "--attention_dropout", type=float, help="0.1 on the CPU; packed rows on CUDA have none"
    )
    parser.add_argument("--paper_recipe", action="store_true", help="also with attention dropout")
    parser.add_argument("--max_autotune", action="store_true", help="also compiled that way")
    parser.add_argument(
        "--ablation",
        nargs="*",
        metavar="NAME",
        help="measure only the fast arm without each of these; CUDA",
    )
    parser.add_argument("--rounds", type=int, help="turns of each arm")
    parser.add_argument("--steps", type=int, help="timed steps of a turn")
    parser.add_argument("--warmup", type=int, help="steps of each arm before timing")
    parser.add_argument(
        "--budget_seconds", type=float, default=450, help="for the whole run, approximately"
    )
    parser.add_argument(
        "--clock",
        choices=tuple(CLOCKS),
        default="wall",
        help="cpu: CPU time of one thread, for a busy machine",
    )
    parser.add_argument("--json", type=Path, default=None, help="where the results go as JSON")
    options = parser.parse_args(arguments)
    if options.block == "modern":  # trained without
        options.dropout, options.attention_dropout = options.dropout or 0.0, 0.0
    elif options.dropout is None:
        options.dropout = 0.1
    for name, value in DEFAULTS[options.device].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    _check(parser, options)
    return options


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    on_cuda = options.device == "cuda"
    if options.clock == "cpu" and (on_cuda or torch.get_num_threads() != 1):
        parser.error("--clock cpu needs --device cpu and OMP_NUM_THREADS=1")
    if on_cuda and options.attention_dropout:
        parser.error("packed rows have no attention dropout on CUDA; use --paper_recipe")
    if options.ablation is not None and not on_cuda:
        parser.error("--ablation measures the compiled path and needs --device cuda")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark, prints the table and writes the JSON.

    Returns 2 if it cannot start and 1 if an arm failed.
    """
    options = parse_arguments(arguments)
    try:
        results = measure(options)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print_results(results)
    return 1 if "failed" in results else 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything, writing results as soon as they are known."""
    so_far = ResultsSoFar(options.json, options.budget_seconds)
    device = device_named(options.device)
    torch.set_flush_denormal(True)
    task = make_task(options, device)
    rows = chosen_rows(task, options.ablation) if options.ablation is not None else {}
    so_far.keep(
        benchmark="pretraining",
        settings={key: value for key, value in vars(options).items() if key != "json"},
        surroundings=surroundings(device),
        device_state_before=device_state(device),
        rows_per_step=len(task.rows.lengths),
        real_tokens_per_step=task.rows.num_tokens,
        model_flops_per_step=step_flops(task.config, task.rows),
    )
    so_far.keep(peaks=measured_peaks(device, CLOCKS[options.clock]))
    if device.type == "cuda":
        allow_recompilation()
    timing = {
        "rounds": options.rounds,
        "steps": options.steps,
        "clock": CLOCKS[options.clock],
    }
    if rows:
        flops_of = partial(step_flops, task.config)
        ablate(task, rows, so_far, flops_of=flops_of, timing=timing, warmup=options.warmup)
    else:
        chosen = contestants(
            task, max_autotune=options.max_autotune, paper_recipe=options.paper_recipe
        )
        compare(task, chosen, so_far, timing=timing, warmup=options.warmup)
    so_far.keep(device_state_after=device_state(device))
    so_far.finish()
    return so_far.values


def make_task(options: argparse.Namespace, device: torch.device) -> Task:
    """The computation to time: on the CPU in float32, on CUDA under bfloat16 autocast."""
    sizes: Mapping[str, ModelConfig] = SIZES if options.block == "bert" else MODERN_SIZES
    config = sizes[options.preset].model_copy(
        update={
            "vocab_size": options.vocab,
            "hidden_dropout_prob": options.dropout,
            "attention_probs_dropout_prob": options.attention_dropout,
            "max_position_embeddings": max(512, options.sequence_length),
            "pad_token_id": 0,
        }
    )
    natural, length = options.lengths == "natural", options.sequence_length
    on_cuda = device.type == "cuda"
    count = rows_for(options.tokens, length, natural=natural) if on_cuda else options.batch
    rows = make_rows(options.vocab, count, length, natural=natural)
    return Task(config, rows, device, torch.bfloat16 if on_cuda else None)


def allow_recompilation() -> None:
    """Lets one function be compiled for every arm and row; torch gives up after eight."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = _RECOMPILE_LIMIT


def compare(
    task: Task,
    chosen: Sequence[Contestant],
    so_far: ResultsSoFar,
    *,
    timing: dict[str, Any],
    warmup: int,
) -> None:
    """Prepares all arms, asserts that they compute the same, and times them in turns.

    Leaves out an arm if less time is left than the longest preparation so far took, or if it fails
    or computes something else.
    """
    device, arms, longest = task.device, list[TrainingArm](), 0.0
    for later, contestant in reversed(list(enumerate(reversed(chosen)))):
        before = so_far.seconds_left
        if arms and before < longest:
            so_far.leave_out(contestant.name)
            continue
        # Do not compile what did not fit uncompiled.
        peers = [arm.micro_batches for arm in arms if arm.is_peer and contestant.is_peer]
        kept_free = later * arms[0].resting_bytes if arms else 0
        arm = prepared_or_failed(
            contestant,
            device,
            so_far,
            like=arms[0] if arms else None,
            warmup=warmup,
            clock=timing["clock"],
            kept_free=kept_free if device.type == "cuda" else 0,
            parts=max(peers, default=1),
        )
        if arm is not None:
            arms.append(arm)
            so_far.keep(arms={arm.name: as_prepared(arm) for arm in arms})
        longest = max(longest, before - so_far.seconds_left)

    if not arms:
        return

    def keep_summary() -> None:
        values = so_far.values
        tokens, flops = values["real_tokens_per_step"], values["model_flops_per_step"]
        found = summary(arms, tokens=tokens, model_flops=flops, peaks=values["peaks"])
        so_far.keep(arms=found, rounds_done=len(arms[0].rounds))

    run_rounds(
        arms,
        device,
        seconds_left=lambda: so_far.seconds_left,
        after_round=keep_summary,
        **timing,
    )


def step_flops(config: ModelConfig, rows: Rows) -> float:
    """Model FLOPs of a step over the real tokens, the same for every arm."""
    num_rows = len(rows.lengths) if has_pairs(config) else 0
    return training_flops(
        config,
        num_tokens=rows.num_tokens,
        sum_of_squared_lengths=sum(length**2 for length in rows.lengths),
        num_predictions=rows.num_predictions,
        num_rows=num_rows,
        num_read=rows.num_predictions + num_rows,
    )


def print_results(results: dict[str, Any]) -> None:
    """Prints what was measured, where, and one row for each arm."""
    print(", ".join(f"{key} {value}" for key, value in results["surroundings"].items()))
    print(", ".join(f"{key} {value}" for key, value in results["settings"].items()))
    peaks = results["peaks"]
    print(f"matrix product {peaks['matmul_flops_per_second'] / 1e9:,.0f} GFLOP/s, ", end="")
    print(f"copy {peaks['copy_bytes_per_second'] / 1e9:,.0f} GB/s, ", end="")
    print(f"step {results['model_flops_per_step'] / 1e9:,.1f} model GFLOP")
    head = f"{'real tokens/s':>15}{'step ms':>10}{'MFU':>8}{'of sheet':>10}{'memory GB':>11}"
    print(f"{'arm':40}{head}{'compiled in s':>15}{'ours is':>12}")
    for name, arm in (results.get("arms", {}) | results.get("ablation", {})).items():
        print(printed_arm(name, arm))
    if results.get("rounds_done", results["settings"]["rounds"]) < results["settings"]["rounds"]:
        print(f"ended after {results['rounds_done']} rounds: --budget_seconds is used up")
    if left_out := results.get("left_out"):
        print(f"left out for lack of time: {', '.join(left_out)}")
    for name, why in results.get("failed", {}).items():
        print(f"failed: {name}: {why}")
    if results["surroundings"]["transformers"] == "absent":
        print("left out: the arms of transformers, which is not installed")


def printed_arm(name: str, arm: dict[str, Any]) -> str:
    """A line of the table."""
    sheet, memory, compiling = arm["mfu_of_data_sheet"], arm["peak_bytes"], arm["compile_seconds"]
    cells = [
        f"{name:40}{arm['tokens_per_second']:15,.0f}{1e3 * arm['step_seconds']:10.1f}",
        f"{arm['mfu']:8.1%}",
        f"{sheet:10.1%}" if sheet is not None else " " * 10,
        f"{memory / 1e9:11.1f}" if memory is not None else " " * 11,
        f"{compiling:15.0f}" if compiling is not None else " " * 15,
        f"{arm['ratio']:.2f} times".rjust(12) if "ratio" in arm else "",
        "" if arm["steady"] else f"  rounds differ by {arm['spread_of_rounds']:.0%}",
    ]
    return "".join(cells)


if __name__ == "__main__":
    sys.exit(main())
