"""Pre-training throughput, ours beside transformers' BertForPreTraining: a table and JSON.

`python -m benchmarks.pretraining --preset tiny`; same weights, same rows, losses asserted equal
without dropout and then timed with it, turns of the arms interleaved.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import torch

from benchmarks.measurement import (
    CLOCKS,
    Arm,
    matmul_peak,
    median_ratio,
    run_interleaved,
    surroundings,
    write_results,
)
from benchmarks.pretraining_arms import (
    Rows,
    loss_and_gradient_norm,
    make_rows,
    our_arm,
    our_batch,
    our_model,
    their_arm,
    their_model,
)
from bert_core.config import SIZES, ModelConfig
from bert_core.flops import training_flops

H200_BF16_PEAK = 989.4e12
"""FLOP/s of the device's specification, dense."""


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretraining", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--preset", choices=tuple(SIZES), default="tiny", help="size of the model")
    parser.add_argument("--vocab", type=int, default=30_522, help="entries of the vocabulary")
    parser.add_argument("--batch", type=int, default=16, help="rows of a step")
    parser.add_argument("--sequence_length", type=int, default=128, help="tokens of a row")
    parser.add_argument("--lengths", choices=("full", "natural"), default="full")
    parser.add_argument("--dropout", type=float, default=0.1, help="on hidden states")
    parser.add_argument("--attention_dropout", type=float, default=0.1, help="on attention")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each arm")
    parser.add_argument("--steps", type=int, default=2, help="timed steps of a turn")
    parser.add_argument("--warmup", type=int, default=3, help="steps of each arm before timing")
    parser.add_argument(
        "--clock", choices=tuple(CLOCKS), default="wall", help="cpu is for one thread, when busy"
    )
    parser.add_argument("--json", type=Path, default=None, help="where the results go as JSON")
    options = parser.parse_args(arguments)
    if options.clock == "cpu" and (options.device != "cpu" or torch.get_num_threads() != 1):
        parser.error("--clock cpu needs --device cpu and OMP_NUM_THREADS=1")
    return options


def main() -> None:
    """Runs the benchmark, prints the table and writes the JSON."""
    options = parse_arguments()
    device, clock = torch.device(options.device), CLOCKS[options.clock]
    torch.set_flush_denormal(True)
    config = SIZES[options.preset].model_copy(
        update={
            "vocab_size": options.vocab,
            "hidden_dropout_prob": options.dropout,
            "attention_probs_dropout_prob": options.attention_dropout,
            "max_position_embeddings": max(512, options.sequence_length),
        }
    )
    rows = make_rows(
        options.vocab, options.batch, options.sequence_length, natural=options.lengths == "natural"
    )
    results: dict[str, Any] = {
        "benchmark": "pretraining",
        "settings": {key: value for key, value in vars(options).items() if key != "json"},
        "surroundings": surroundings(device),
        "matmul_flops_per_second": matmul_peak(device, clock),
        "real_tokens_per_step": sum(rows.lengths),
        "model_flops_per_step": step_flops(config, rows),
    }
    arms = prepare_arms(config, rows, device)
    for arm in arms:
        for _ in range(options.warmup):
            arm.step()
    run_interleaved(arms, device, rounds=options.rounds, steps=options.steps, clock=clock)
    results["arms"] = summarize(arms, results)
    print_results(results)
    write_results(results, options.json)


def prepare_arms(config: ModelConfig, rows: Rows, device: torch.device) -> list[Arm]:
    """Builds the arms and asserts that they compute the same loss and gradient.

    Attention dropout on CUDA needs the padded layout. On CUDA both sides run eagerly and
    compiled; on the CPU, where compilation takes minutes, transformers runs with either of its
    attentions.
    """
    on_cuda = device.type == "cuda"
    packed = not (on_cuda and config.attention_probs_dropout_prob > 0)
    batch = our_batch(rows, packed=packed)
    built = []
    for compiled in (False, True) if on_cuda else (False,):
        model = our_model(config, device)
        name = "ours, compiled" if compiled else "ours"
        built.append((model, *our_arm(name, model, batch, device, compiled=compiled)))
    for attention, compiled in (("sdpa", False), ("sdpa" if on_cuda else "eager", on_cuda)):
        model = their_model(config, attention, device)
        name = f"transformers, {attention}{', compiled' if compiled else ''}"
        built.append((model, *their_arm(name, model, rows, device, compiled=compiled)))
    expected: tuple[float, float] | None = None
    for model, arm, loss in built:
        found = loss_and_gradient_norm(model, loss)
        expected = expected or found
        assert_equal(arm.name, found, expected, tolerance=2e-2 if on_cuda else 1e-4)
    return [arm for _, arm, _ in built]


def assert_equal(
    name: str, found: tuple[float, float], expected: tuple[float, float], tolerance: float
) -> None:
    """Raises `AssertionError` where an arm's loss or gradient norm is not that of the first."""
    for kind, left, right in zip(("loss", "gradient norm"), found, expected, strict=True):
        if not math.isclose(left, right, rel_tol=tolerance):
            raise AssertionError(f"{name}: {kind} {left}, but {right} for ours")


def step_flops(config: ModelConfig, rows: Rows) -> float:
    """Model FLOPs of a step over the real tokens, the same for every arm."""
    return training_flops(
        config,
        num_tokens=sum(rows.lengths),
        sum_of_squared_lengths=sum(length**2 for length in rows.lengths),
        num_predictions=rows.num_predictions,
        num_rows=len(rows.lengths),
        num_read=rows.num_predictions + len(rows.lengths),
    )


def summarize(arms: list[Arm], results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The figures of each arm; a peer's `ratio` is how many times as fast our best arm is."""
    best = min((arm for arm in arms if not arm.is_peer), key=lambda arm: arm.median_seconds)
    summary = {}
    for arm in arms:
        flops = results["model_flops_per_step"] / arm.median_seconds
        figures = {
            "tokens_per_second": results["real_tokens_per_step"] / arm.median_seconds,
            "step_seconds": arm.median_seconds,
            "step_seconds_of_rounds": arm.seconds,
            "mfu": flops / results["matmul_flops_per_second"],
        }
        if results["settings"]["device"] == "cuda":
            figures["mfu_of_h200_specification"] = flops / H200_BF16_PEAK
        if arm.is_peer:
            figures["ratio"] = median_ratio(arm, best)
        summary[arm.name] = figures
    return summary


def print_results(results: dict[str, Any]) -> None:
    """Prints what was measured, where, and one row for each arm."""
    print(", ".join(f"{key} {value}" for key, value in results["surroundings"].items()))
    print(", ".join(f"{key} {value}" for key, value in results["settings"].items()))
    print(f"matrix product {results['matmul_flops_per_second'] / 1e9:,.0f} GFLOP/s, ", end="")
    print(f"step {results['model_flops_per_step'] / 1e9:,.1f} model GFLOP")
    print(f"{'arm':32}{'real tokens/s':>15}{'step ms':>10}{'MFU':>8}{'ours is':>12}")
    for name, arm in results["arms"].items():
        ratio = f"{arm['ratio']:.2f} times" if "ratio" in arm else ""
        tokens, step = arm["tokens_per_second"], 1e3 * arm["step_seconds"]
        print(f"{name:32}{tokens:15,.0f}{step:10.1f}{arm['mfu']:8.1%}{ratio:>12}")


if __name__ == "__main__":
    main()
