"""Time and memory of one long text through an encoder: `python -m benchmarks.long_texts`.

The modern block here and in transformers, and the paper's block, of one size and random weights;
the states of all tokens, without gradients. Each figure is of a process of its own, which reads
one text after another that warms it up; rounds go through the arms in turns, and medians count.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.measurement import surroundings
from benchmarks.results import run_program, write_results
from bert_core.config import MODERN_SIZES, SIZES, ModelConfig
from bert_core.hugging_face.families import MODERN_BERT
from bert_core.model.encoder import Encoder
from bert_core.model.layout import Packed

ARMS = ("ours, modern", "transformers, sdpa", "ours, the paper's block")
_WARM_TOKENS = 64


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_texts", description=__doc__)
    parser.add_argument("--preset", choices=tuple(SIZES), default="base", help="size of the model")
    parser.add_argument("--vocab", type=int, default=50_368, help="entries of the vocabulary")
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--rounds", type=int, default=3, help="turns of each arm")
    parser.add_argument("--json", type=Path, default=None, help="where the results go as JSON")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)  # a process that measures
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures all arms at all lengths, prints a table and writes the JSON."""
    options = parse_arguments(arguments)
    if options.arm:
        print(json.dumps(measure(options.arm, options.preset, options.vocab, options.tokens[0])))
        return 0
    found: dict[str, dict[str, list[dict[str, float]]]] = {name: {} for name in ARMS}
    for number in range(options.rounds):
        for tokens in options.tokens:
            for name in (*ARMS[number % 3 :], *ARMS[: number % 3]):
                measured = _in_a_process(name, options, tokens)
                found[name].setdefault(str(tokens), []).append(measured)
                seconds = measured["seconds"]
                print(f"{name}, {tokens:,} tokens: {seconds:.2f} s", flush=True)
        write_results(_results(options, found), options.json)
    print(f"{'arm':26}{'tokens':>8}{'seconds':>10}{'peak MB':>10}{'above weights':>15}")
    for name, lengths in _results(options, found)["arms"].items():
        for tokens, figures in lengths.items():
            cells = f"{figures['seconds']:10.2f}{figures['peak_bytes'] / 1e6:10,.0f}"
            print(f"{name:26}{tokens:>8}{cells}{figures['bytes_above_weights'] / 1e6:15,.0f}")
    return 0


def _results(
    options: argparse.Namespace, found: dict[str, dict[str, list[dict[str, float]]]]
) -> dict[str, Any]:
    arms = {
        name: {
            tokens: {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
            for tokens, rounds in lengths.items()
        }
        for name, lengths in found.items()
    }
    return {
        "benchmark": "long_texts",
        "settings": {key: value for key, value in vars(options).items() if key != "json"},
        "surroundings": surroundings(torch.device("cpu")),
        "rounds": len(next(iter(found[ARMS[0]].values()))),
        "arms": arms,
    }


def _in_a_process(name: str, options: argparse.Namespace, tokens: int) -> dict[str, float]:
    shape = ["--preset", options.preset, "--vocab", str(options.vocab), "--tokens", str(tokens)]
    command = [sys.executable, "-m", "benchmarks.long_texts", "--arm", name, *shape]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def measure(name: str, preset: str, vocab: int, tokens: int) -> dict[str, float]:
    """Seconds of one text, the peak of this process's memory, and what of it is above weights."""
    torch.manual_seed(0)
    changes = {"vocab_size": vocab, "pad_token_id": 0, "max_position_embeddings": max(tokens, 64)}
    with torch.inference_mode():
        encode = _arm(name, preset, changes)
        encode(torch.randint(5, vocab, (_WARM_TOKENS,)))
        before = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
        ids = torch.randint(5, vocab, (tokens,))
        begin = time.perf_counter()
        encode(ids)
        seconds = time.perf_counter() - begin
    peak = _memory("VmHWM")
    return {"seconds": seconds, "peak_bytes": peak, "bytes_above_weights": max(0, peak - before)}


def _arm(name: str, preset: str, changes: dict[str, int]) -> Callable[[torch.Tensor], object]:
    """An encoder in evaluation mode, called with the ids of a text, [T]."""
    config: ModelConfig = (MODERN_SIZES if "paper" not in name else SIZES)[preset]
    config = config.model_copy(update=changes)
    if name.startswith("transformers"):
        from transformers import ModernBertConfig, ModernBertModel

        theirs = ModernBertConfig(**MODERN_BERT.write_config(config))
        model = ModernBertModel._from_config(theirs, attn_implementation="sdpa").eval()
        return lambda ids: model(ids.unsqueeze(0))
    encoder = Encoder(config).eval()

    def encode(ids: torch.Tensor) -> object:
        positions = torch.arange(len(ids))
        return encoder(ids, torch.zeros_like(ids), positions, Packed.from_lengths([len(ids)]))

    return encode


def _memory(name: str) -> int:
    """Bytes of this process, now (VmRSS) or at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    line = next(each for each in lines if each.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    run_program(main)
