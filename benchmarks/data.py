"""Measure the data path from text to the training loop: preparation, and loading.

`python -m benchmarks.data` measures both on a fresh corpus; with `--shards DIR` it measures loading
alone, which needs only torch, tokenizers, numpy, pydantic and safetensors: batches by themselves,
and training with the loader compared with the same batches already in memory.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.measurement import surroundings, synchronize
from benchmarks.results import write_results
from bert_core.config import SIZES
from bert_core.errors import UserError
from bert_core.model.bert import Bert
from bert_core.pretraining import compute_loss
from bert_core.settings import BINS_PER_STEP, BatchSettings, OptimizerSettings, RowSettings
from bert_core.text.batches import BatchSource, StepBatches
from bert_core.text.masking import Vocabulary
from bert_core.text.shards import open_shards
from bert_core.tokenizer import load_tokenizer
from bert_core.training.loop import TrainingState, compiled, train
from bert_core.training.optimization import create_optimizer


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data", description=__doc__)
    parser.add_argument("--text", default="../shared/data/text/wikipedia-aa.txt.xz")
    parser.add_argument("--megabytes", type=float, default=100, help="of text, from its start")
    parser.add_argument(
        "--repeats", type=int, default=3, help="of each arm of preparation, interleaved"
    )
    parser.add_argument("--shards", type=Path, help="load from this folder; prepare nothing")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--preset", choices=tuple(SIZES), default="tiny", help="size of the model")
    parser.add_argument("--sequence_length", type=int, default=128, help="tokens of a row at most")
    parser.add_argument(
        "--tokens", type=int, help="of a forward pass; default 2,048, on cuda 65,536"
    )
    parser.add_argument("--rounds", type=int, default=9, help="turns of training with each arm")
    parser.add_argument(
        "--steps", type=int, help="of a turn, some 4 forward passes each; default 8, on cuda 32"
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Measures, prints tables and writes JSON where asked, the first half before the second."""
    options = parse_arguments(arguments)
    on_cuda = options.device == "cuda"
    settings = LoadingSettings(
        device=options.device,
        preset=options.preset,
        sequence_length=options.sequence_length,
        tokens=options.tokens or (65_536 if on_cuda else 2_048),
        rounds=options.rounds,
        steps=options.steps or (32 if on_cuda else 8),
    )
    results: dict[str, Any] = {}
    try:
        with tempfile.TemporaryDirectory() as name:
            shards = options.shards
            if shards is None:
                # Only here, because it imports Ray.
                from benchmarks import preparation

                folder = Path(name)
                results |= preparation.measure_preparation(
                    options.text, options.megabytes, options.repeats, folder
                )
                preparation.print_preparation(results)
                write_results(results, options.json)
                shards = folder / preparation.TRAINED
            results["loading"] = measure_loading(shards, settings)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print_loading(results["loading"])
    write_results(results, options.json)
    return 0


Loader = Generator[StepBatches, None, None]

FAR_STEP = 1_000_003
"""The step of a resumed run: many epochs later, within a window."""

ALONE_ROUNDS = 5
ALONE_SECONDS = 2.0
"""A round of making batches only: whole windows, at least one and at least this long."""


@dataclass(frozen=True)
class LoadingSettings:
    """What is measured: `tokens` of a forward pass; `rounds` turns of `steps` steps of each arm."""

    device: str = "cpu"
    preset: str = "tiny"
    sequence_length: int = 128
    tokens: int = 2048
    rounds: int = 9
    steps: int = 8
    warmup_steps: int = 4


class Feed:
    """The steps of a training loop, from an exchangeable `source`."""

    def __init__(self) -> None:
        self.source: Iterator[StepBatches] = iter(())

    def __iter__(self) -> Iterator[StepBatches]:
        """Itself."""
        return self

    def __next__(self) -> StepBatches:
        """The next step of the current source."""
        return next(self.source)


def measure_loading(shards: Path, settings: LoadingSettings) -> dict[str, Any]:
    """All results, by name; rates are in real tokens and medians over the rounds.

    Raises `UserError` if the folder has no shards or no tokenizer.
    """
    if settings.tokens < settings.sequence_length:
        raise UserError(
            f"{settings.tokens} tokens of a forward pass hold no row of {settings.sequence_length}",
            "--tokens",
            "raise it",
        )
    device = torch.device(settings.device)
    with tempfile.TemporaryDirectory() as name:
        first_batch = first_batch_seconds(shards, settings, Path(name))
    return {
        "settings": asdict(settings),
        "surroundings": surroundings(device),
        "shard_tokens": open_shards(shards).num_tokens,
        "first_batch": first_batch,
        "alone": batches_alone(batch_source(shards, settings)),
        **trained_with_either(shards, settings),
    }


def batch_source(
    shards: Path, settings: LoadingSettings, cache_folder: Path | None = None
) -> BatchSource:
    """Packed rows of natural lengths; on CUDA in the static shapes that compiled programs need."""
    micro_batch_size = settings.tokens // settings.sequence_length
    return BatchSource(
        open_shards(shards),
        load_vocabulary(shards),
        rows=RowSettings(),
        batch=BatchSettings(
            global_batch_size=BINS_PER_STEP * micro_batch_size,
            micro_batch_size=micro_batch_size,
            packed=True,
        ),
        sequence_length=settings.sequence_length,
        seed=0,
        phase=0,
        static_shapes=settings.device == "cuda",
        cache_folder=cache_folder,
    )


def load_vocabulary(shards: Path) -> Vocabulary:
    """The vocabulary of the shards' tokenizer."""
    return Vocabulary.from_tokenizer(load_tokenizer(shards))


def first_batch_seconds(
    shards: Path, settings: LoadingSettings, cache_folder: Path
) -> dict[str, float]:
    """From opening the shards to the first batch, of a new and of a resumed run."""
    seconds = []
    for step in (0, FAR_STEP):
        begin = time.perf_counter()
        batch_source(shards, settings, cache_folder).step(step)
        seconds.append(time.perf_counter() - begin)
    return {
        "new_seconds": seconds[0], "resumed_at_step": FAR_STEP, "resumed_seconds": seconds[1]
    }  # fmt: skip


def batches_alone(source: BatchSource) -> dict[str, Any]:
    """Measures making batches in this process, in whole windows.

    `window_seconds` is the extra time of the first step of a window, which plans and packs all its
    rows. `least_fill` is that of the emptiest window.
    """
    rates, fills, step = [], [], 0
    seconds: list[float] = []
    first_seconds: list[float] = []
    for _ in range(ALONE_ROUNDS):
        tokens, spent = 0, 0.0
        while not tokens or spent < ALONE_SECONDS:
            found = real = 0
            for place in range(source.steps_per_window):
                begin = time.perf_counter()
                batches = source.step(step)
                (seconds if place else first_seconds).append(time.perf_counter() - begin)
                spent += time.perf_counter() - begin
                step += 1
                real += real_tokens(batches)
                found += len(batches.micro_batches)
            tokens += real
            fills.append(real / (found * source.token_budget))
        rates.append(tokens / spent)
    return {
        "tokens_per_second": statistics.median(rates),
        "tokens_per_second_of_rounds": rates,
        "windows": len(fills),
        "fill": statistics.fmean(fills),
        "least_fill": min(fills),
        "window_seconds": statistics.median(first_seconds) - statistics.median(seconds or [0.0]),
    }


def real_tokens(batches: StepBatches) -> int:
    """Tokens of a step that are not padding."""
    return sum(batch.num_real_tokens for batch in batches.micro_batches)


def trained_with_either(shards: Path, settings: LoadingSettings) -> dict[str, Any]:
    """Measures one training run in turns, with steps from the loader or from device memory.

    Both arms compute the same steps in every round, in alternating order. The loader restarts in
    each of its turns, so its time includes waiting for a first batch and two unused ones: the ratio
    is a lower bound.
    """
    device = torch.device(settings.device)
    staging, source = batch_source(shards, settings), batch_source(shards, settings)
    feed = Feed()
    run = training_run(load_vocabulary(shards).size, feed, settings)
    seconds: dict[str, list[float]] = {"loaded": [], "staged": []}
    rates: dict[str, list[float]] = {"loaded": [], "staged": []}
    for number in range(settings.rounds + 1):  # the first is warm-up
        steps = settings.steps if number else settings.warmup_steps
        first = settings.warmup_steps + (number - 1) * settings.steps if number else 0
        staged = [on_device(staging.step(first + place), device) for place in range(steps)]
        tokens = sum(map(real_tokens, staged))
        for arm in sorted(seconds, reverse=number % 2 == 0):
            synchronize(device)
            begin = time.perf_counter()
            coming = cast(Loader, source.steps(first, pinned=device.type == "cuda"))
            feed.source = coming if arm == "loaded" else iter(staged)
            for _ in islice(run, steps):
                pass
            synchronize(device)
            spent = time.perf_counter() - begin
            coming.close()  # waits for the thread, which must not run in the other arm's turn
            if number:
                seconds[arm].append(spent)
                rates[arm].append(tokens / spent)
    ratios = [each / other for each, other in zip(rates["loaded"], rates["staged"], strict=True)]
    return {
        "arms": {
            arm: {"tokens_per_second": statistics.median(rates[arm]), "seconds": seconds[arm]}
            for arm in rates
        },
        "of_staged": statistics.median(ratios),
        "of_staged_of_rounds": ratios,
    }


def training_run(vocab_size: int, feed: Feed, settings: LoadingSettings) -> Iterator[object]:
    """The pre-training loop over a feed, compiled and in bfloat16 on CUDA."""
    device = torch.device(settings.device)
    on_cuda = device.type == "cuda"
    config = SIZES[settings.preset].model_copy(
        update={
            "vocab_size": vocab_size,
            "attention_probs_dropout_prob": 0.0,  # packed rows have none on CUDA
            "max_position_embeddings": max(512, settings.sequence_length),
        }
    )
    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    model = Bert.for_pretraining(config).to(device)
    return train(
        TrainingState(model, create_optimizer(model, OptimizerSettings())),
        feed,
        compiled(compute_loss) if on_cuda else compute_loss,
        total_steps=2**62,
        schedule=lambda _: 1e-4,
        max_gradient_norm=1.0,
        device=device,
        autocast_dtype=torch.bfloat16 if on_cuda else None,
        seed=0,
    )


def on_device(batches: StepBatches, device: torch.device) -> StepBatches:
    """The step with its tensors on the device."""
    return replace(batches, micro_batches=[batch.to(device) for batch in batches.micro_batches])


def print_loading(result: dict[str, Any]) -> None:
    """Prints the results, one per line."""
    settings, alone, first = result["settings"], result["alone"], result["first_batch"]
    print(
        f"loading on {result['surroundings']['device']}: {settings['preset']}, rows of up to "
        f"{settings['sequence_length']}, {settings['tokens']:,} tokens a forward pass"
    )
    print(
        f"{'batches alone, one process':36}{alone['tokens_per_second']:14,.0f} tokens/s   bins "
        f"{alone['fill']:.2%} full, {alone['least_fill']:.2%} in the emptiest window; "
        f"{alone['window_seconds']:.2f} s to pack a window"
    )
    for name, arm in result["arms"].items():
        print(f"{f'training, batches {name}':36}{arm['tokens_per_second']:14,.0f} tokens/s")
    print(f"with the loader {result['of_staged']:.3f} of the rate of batches staged before")
    print(
        f"first batch after {first['new_seconds']:.2f} s, resumed at step "
        f"{first['resumed_at_step']:,} after {first['resumed_seconds']:.2f} s"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
