"""Embeddings of texts of mixed lengths, ours beside sentence-transformers and transformers.

`python -m benchmarks.features --sentences DIR --paragraphs FILE --model FOLDER`. Same weights; the
mean over a text's tokens, from strings to vectors in memory, so tokenizing is included. The peers
sort by length and pad each batch of 32. Peers that are not installed are left out.
"""

import argparse
import importlib.util
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.fresh_encoder import fresh_encoder
from benchmarks.measurement import (
    Arm,
    matmul_peak,
    median_ratio,
    run_interleaved,
    surroundings,
    write_results,
)
from bert_core.config import SIZES, ModelConfig
from bert_core.features.extractor import Extractor, FeatureChoice, load_extractor
from bert_core.flops import forward_flops
from bert_core.tasks.glue import GLUE
from bert_core.tasks.sequences import token_ids
from bert_core.tasks.task import FloatArray
from bert_core.text.reading.sources import find_parts
from bert_core.text.reading.texts import divide, read_texts

PEER_BATCH = 32
SHORTEST_PARAGRAPH = 20
"""Words; shorter lines are headings."""
TOLERANCE = {"cpu": 1e-5, "cuda": 3e-2}
"""How far vectors may lie apart: float32, and bfloat16."""

Embed = Callable[[Sequence[str]], FloatArray]


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.features", description=__doc__)
    parser.add_argument("--sentences", type=Path, required=True, help="the folder of GLUE's SST-2")
    parser.add_argument(
        "--paragraphs", type=Path, required=True, help="text file with a paragraph on each line"
    )
    parser.add_argument("--model", type=Path, required=True, help="an encoder's model folder")
    parser.add_argument(
        "--size", choices=tuple(SIZES), default=None, help="a fresh encoder of this size instead"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--texts", type=int, default=512, help="sentences, and as many paragraphs")
    parser.add_argument("--max_tokens", type=int, default=None, help="of a forward pass of ours")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each arm")
    parser.add_argument("--json", type=Path, default=None, help="where the results go as JSON")
    return parser.parse_args(arguments)


def main() -> None:
    """Runs the benchmark, prints the table and writes the JSON."""
    options = parse_arguments()
    device = torch.device(options.device)
    torch.set_flush_denormal(True)
    with ExitStack() as stack:
        folder = options.model
        if options.size is not None:
            temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder = fresh_encoder(options.model, options.size, temporary)
        extractor = open_extractor(folder, options.max_tokens, device)
        texts, lengths = draw_texts(options, extractor)
        embedders = {"ours": extractor.of_texts, **peers(folder, device)}
        vectors = {name: embed(texts) for name, embed in embedders.items()}
        differences = {
            name: float(np.abs(found - vectors["ours"]).max()) for name, found in vectors.items()
        }
        assert max(differences.values()) < TOLERANCE[device.type], differences
        arms = [
            Arm(name, name != "ours", lambda embed=embed: embed(texts))
            for name, embed in embedders.items()
        ]
        peaks = [matmul_peak(device)]
        for _ in range(options.rounds):
            run_interleaved(arms, device, rounds=1, steps=1)
            arms.append(arms.pop(0))  # another begins the next round
            peaks.append(matmul_peak(device))
    results = summarize(options, extractor, lengths, arms, device, float(np.median(peaks)))
    results["largest_difference"] = max(differences.values())
    print_results(results)
    write_results(results, options.json)


def open_extractor(folder: Path, max_tokens: int | None, device: torch.device) -> Extractor:
    """Ours: the mean over a text, in bfloat16 on CUDA."""
    dtype = torch.bfloat16 if device.type == "cuda" else None
    found = load_extractor(folder, FeatureChoice(), device=device, autocast_dtype=dtype)
    return found if max_tokens is None else replace(found, max_tokens=max_tokens)


def draw_texts(options: argparse.Namespace, extractor: Extractor) -> tuple[list[str], list[int]]:
    """Sentences and paragraphs, mixed, and their tokens with [CLS] and [SEP].

    Texts that the encoder would read in windows are left out, since the peers cut them.
    """
    draw = np.random.default_rng(0)
    sentences = [each.first for each in GLUE["sst2"].examples(options.sentences, "train")]
    longest = extractor.encoder.config.max_position_embeddings
    texts: list[str] = []
    lengths: list[int] = []
    for found in (sentences, paragraphs_of(options.paragraphs)):
        chosen = [found[index] for index in draw.permutation(len(found))[: 2 * options.texts]]
        sizes = [2 + len(ids) for ids in token_ids(extractor.tokenizer, chosen)]
        fitting = [index for index, size in enumerate(sizes) if size <= longest][: options.texts]
        texts += [chosen[index] for index in fitting]
        lengths += [sizes[index] for index in fitting]
    order = draw.permutation(len(texts))
    return [texts[index] for index in order], [lengths[index] for index in order]


def paragraphs_of(path: Path) -> list[str]:
    """The paragraphs of a text file."""
    parts = divide(list(find_parts([str(path)], "text", Counter())))
    texts = (str(each.text) for part in parts for each in read_texts(part, Counter()))
    return [text for text in texts if len(text.split()) >= SHORTEST_PARAGRAPH]


def peers(folder: Path, device: torch.device) -> dict[str, Embed]:
    """The peers that are installed, on the same weights, in bfloat16 on CUDA."""
    found: dict[str, Embed] = {}
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for name, package, make in (
        ("sentence-transformers", "sentence_transformers", sentence_transformers_arm),
        ("transformers", "transformers", transformers_arm),
    ):
        if importlib.util.find_spec(package) is None:
            print(f"{name} is not installed: left out")
        else:
            found[name] = make(folder, device, dtype)
    return found


def sentence_transformers_arm(folder: Path, device: torch.device, dtype: torch.dtype) -> Embed:
    """`SentenceTransformer.encode`, which sorts by length."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    body = Transformer(str(folder), model_kwargs={"dtype": dtype})
    config = body.model.config
    pooling = Pooling(config.hidden_size, pooling_mode="mean")
    model = SentenceTransformer(modules=[body, pooling], device=device.type)
    model.max_seq_length = config.max_position_embeddings

    def embed(texts: Sequence[str]) -> FloatArray:
        return np.asarray(model.encode(list(texts), batch_size=PEER_BATCH), np.float32)

    return embed


def transformers_arm(folder: Path, device: torch.device, dtype: torch.dtype) -> Embed:
    """`AutoModel` on batches of like lengths, padded to the longest; the mean over the mask."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=dtype, add_pooling_layer=False)
    model = model.to(device).eval()
    longest = model.config.max_position_embeddings

    def embed(texts: Sequence[str]) -> FloatArray:
        ids = tokenizer(list(texts), truncation=True, max_length=longest)["input_ids"]
        order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
        vectors = np.empty((len(ids), model.config.hidden_size), np.float32)
        with torch.inference_mode():
            for first in range(0, len(order), PEER_BATCH):
                some = order[first : first + PEER_BATCH]
                batch = tokenizer.pad({"input_ids": [ids[i] for i in some]}, return_tensors="pt")
                batch = batch.to(device)
                states = model(**batch).last_hidden_state.float()
                mask = batch["attention_mask"].unsqueeze(-1)
                vectors[some] = ((states * mask).sum(1) / mask.sum(1)).cpu().numpy()
        return vectors

    return embed


def summarize(
    options: argparse.Namespace,
    extractor: Extractor,
    lengths: Sequence[int],
    arms: Sequence[Arm],
    device: torch.device,
    peak: float,
) -> dict[str, Any]:
    """Tokens per second of each arm, and how many times as fast ours is as each peer."""
    config = extractor.encoder.config
    ours = next(arm for arm in arms if not arm.is_peer)
    num_tokens = sum(lengths)
    flops = embedding_flops(config, lengths)
    return {
        "benchmark": "features",
        "settings": {
            "device": options.device,
            "texts": options.texts,
            "rounds": options.rounds,
            "max_tokens": extractor.max_tokens,
            "precision": "float32" if extractor.autocast_dtype is None else "bfloat16",
        },
        "encoder": config.model_dump(include={"num_hidden_layers", "hidden_size"}),
        "num_texts": len(lengths),
        "num_tokens": num_tokens,
        "longest": max(lengths),
        "padding_of_peers": padding_share(lengths),
        "surroundings": surroundings(device),
        "arms": {
            arm.name: {
                "tokens_per_second": num_tokens / arm.median_seconds,
                "seconds_of_rounds": arm.seconds,
            }
            for arm in sorted(arms, key=lambda arm: arm.is_peer)
        },
        "ratios": {arm.name: median_ratio(arm, ours) for arm in arms if arm.is_peer},
        "flops_per_second": flops / ours.median_seconds,
        "peak_flops_per_second": peak,
    }


def embedding_flops(config: ModelConfig, lengths: Sequence[int]) -> float:
    """FLOPs of the last states of all tokens."""
    return forward_flops(
        config,
        num_tokens=sum(lengths),
        sum_of_squared_lengths=sum(length**2 for length in lengths),
        num_predictions=0,
        num_rows=0,
        num_read=sum(lengths),
    )


def padding_share(lengths: Sequence[int]) -> float:
    """The share of the peers' slots that is padding."""
    ordered = sorted(lengths, reverse=True)
    batches = [ordered[first : first + PEER_BATCH] for first in range(0, len(ordered), PEER_BATCH)]
    return 1 - sum(lengths) / sum(len(batch) * batch[0] for batch in batches)


def print_results(results: dict[str, Any]) -> None:
    """The table."""
    encoder, around = results["encoder"], results["surroundings"]
    print(
        f"{results['num_texts']:,} texts of {results['num_tokens']:,} tokens, {results['longest']}"
        f" at most; {encoder['num_hidden_layers']} layers, {encoder['hidden_size']} wide,"
        f" {results['settings']['precision']}; {around['device']}, {around['threads']} threads"
    )
    for name, arm in results["arms"].items():
        ratio = results["ratios"].get(name)
        beside = "" if ratio is None else f"   ours is {ratio:.2f} times as fast"
        print(f"{name:22} {arm['tokens_per_second']:12,.0f} tokens/s{beside}")
    share = results["flops_per_second"] / results["peak_flops_per_second"]
    print(
        f"ours: {results['flops_per_second'] / 1e9:,.1f} GFLOP/s, {share:.0%} of the measured peak"
    )
    print(f"the peers' batches are {results['padding_of_peers']:.1%} padding")
    print(f"vectors differ by {results['largest_difference']:.1e} at most")


if __name__ == "__main__":
    main()
