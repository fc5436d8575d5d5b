"""Compare embeddings of mixed-length texts with those of other libraries and engines.

`python -m benchmarks.features --sentences DIR --paragraphs FILE --model FOLDER`. All use the same
weights and the mean over a text's tokens, from strings to vectors in memory, so tokenizing is
included. The peers sort by length and pad each batch; peers that are not installed are left out.
On a CPU also graphs of workflows/export.py are peers, in float32 and in int8. The JSON is updated
after each round.
"""

import argparse
import importlib.util
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.inputs import fresh_encoder, paragraphs_of, sentences_of
from benchmarks.measurement import (
    Arm,
    MemoryWatch,
    device_named,
    matmul_peak,
    median_ratio,
    run_interleaved,
    surroundings,
    weight_bytes,
)
from benchmarks.results import ResultsSoFar
from bert_core.config import SIZES, ModelConfig, forward_flops
from bert_core.errors import UserError
from bert_core.features.extractor import Extractor, FeatureChoice, load_extractor
from bert_core.features.units import cut_texts
from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.portable import INPUTS
from bert_core.tasks.sequences import token_ids
from bert_core.tasks.task import FloatArray

if TYPE_CHECKING:
    from workflows.portable.settings import Format

DEFAULTS: dict[str, dict[str, int | None]] = {
    "cpu": {"texts": 512, "max_tokens": None, "peer_batch": 32},
    "cuda": {"texts": 8192, "max_tokens": 32_768, "peer_batch": 128},
}


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.features", description=__doc__)
    parser.add_argument(
        "--sentences",
        type=Path,
        required=True,
        help="the folder of GLUE's SST-2, or a text file with a sentence on each line",
    )
    parser.add_argument(
        "--paragraphs", type=Path, required=True, help="text file with a paragraph on each line"
    )
    parser.add_argument("--model", type=Path, required=True, help="an encoder's model folder")
    parser.add_argument(
        "--size",
        choices=tuple(SIZES),
        default=None,
        help="a fresh encoder of this size instead; of --model only the tokenizer is needed then",
    )
    parser.add_argument("--device", choices=tuple(DEFAULTS), default="cpu")
    parser.add_argument("--peers", nargs="*", choices=(*LIBRARIES, *ENGINES), help="by default all")
    parser.add_argument("--texts", type=int, help="sentences, and as many paragraphs")
    parser.add_argument("--max_tokens", type=int, help="tokens of our forward pass")
    parser.add_argument("--peer_batch", type=int, help="batch size of the peers")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each arm")
    parser.add_argument("--json", type=Path, default=None, help="where the results go as JSON")
    options = parser.parse_args(arguments)
    for name, value in DEFAULTS[options.device].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark, prints the table and writes the JSON.

    Returns 2 if it cannot start and 1 if a peer failed.
    """
    options = parse_arguments(arguments)
    try:
        with tempfile.TemporaryDirectory() as folder:
            results = measure(options, Path(folder))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if "failed" in results else 0


def measure(options: argparse.Namespace, temporary: Path) -> dict[str, Any]:
    """Measure everything, writing results after each round."""
    device = device_named(options.device)
    so_far = ResultsSoFar(options.json, math.inf)
    torch.set_flush_denormal(True)
    folder = options.model
    if options.size is not None:
        folder = fresh_encoder(options.model, options.size, temporary)
    extractor = open_extractor(folder, options.max_tokens, device)
    texts, lengths = draw_texts(options, extractor)
    embedding_arms = EmbeddingArms(texts, device)
    weights = weight_bytes(extractor.encoder)
    embedding_arms.add("ours", lambda: extractor.of_texts, bytes_before=weights)
    chosen = peers(folder, device, options.peer_batch, temporary)
    for name, make in chosen.items():
        if options.peers is not None and name not in options.peers:
            continue
        try:
            embedding_arms.add(name, make)
        except Exception as error:  # noqa: BLE001 - one peer's failure must not cost the others' figures
            so_far.fail(name, error)
    so_far.keep(largest_difference=embedding_arms.largest_difference())
    arms = [
        Arm(name, name != "ours", lambda embed=embed: embed(texts))
        for name, embed in embedding_arms.embedders.items()
    ]
    so_far.keep(tokenizing_seconds=tokenizing_seconds(extractor, texts))
    peaks: list[float] = []
    for _ in range(options.rounds):
        run_interleaved(arms, device, rounds=1, steps=1)
        arms.append(arms.pop(0))  # rotate the order
        peaks.append(matmul_peak(device))
        found = summarize(options, extractor, lengths, arms, device, float(np.median(peaks)))
        for name, arm in found["arms"].items():
            arm["peak_bytes"] = embedding_arms.peak_bytes[name]
        so_far.keep(**found)
    so_far.finish()
    print_results(so_far.values)
    return so_far.values


def tokenizing_seconds(extractor: Extractor, texts: Sequence[str], rounds: int = 3) -> float:
    """The median time that ours spends before the first forward pass."""
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        extractor.rows(cut_texts(extractor.tokenizer, texts, offsets=False))
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def open_extractor(folder: Path, max_tokens: int | None, device: torch.device) -> Extractor:
    """Our arm: the mean over a text, in bfloat16 on CUDA."""
    dtype = torch.bfloat16 if device.type == "cuda" else None
    found = load_extractor(folder, FeatureChoice(), device=device, autocast_dtype=dtype)
    return found if max_tokens is None else replace(found, max_tokens=max_tokens)


def draw_texts(options: argparse.Namespace, extractor: Extractor) -> tuple[list[str], list[int]]:
    """Sentences and paragraphs, mixed, and their tokens with [CLS] and [SEP].

    Texts that the encoder would read in windows are left out, since the peers cut them.
    """
    draw = np.random.default_rng(0)
    sentences = sentences_of(options.sentences)
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
            "peer_batch": options.peer_batch,
            "precision": "float32" if extractor.autocast_dtype is None else "bfloat16",
        },
        "encoder": config.model_dump(include={"num_hidden_layers", "hidden_size"}),
        "num_texts": len(lengths),
        "num_tokens": num_tokens,
        "longest": max(lengths),
        "padding_of_peers": padding_share(lengths, options.peer_batch),
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


def padding_share(lengths: Sequence[int], batch: int) -> float:
    """The share of the peers' slots that is padding."""
    ordered = sorted(lengths, reverse=True)
    batches = [ordered[first : first + batch] for first in range(0, len(ordered), batch)]
    return 1 - sum(lengths) / sum(len(each) * each[0] for each in batches)


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
        memory = "" if arm["peak_bytes"] is None else f"{arm['peak_bytes'] / 1e9:6.1f} GB"
        print(f"{name:22} {arm['tokens_per_second']:12,.0f} tokens/s{memory}{beside}")
    share = results["flops_per_second"] / results["peak_flops_per_second"]
    print(
        f"ours: {results['flops_per_second'] / 1e9:,.1f} GFLOP/s, {share:.0%} of the measured peak,"
        f" {results['tokenizing_seconds']:.2f} s of it are tokenizing"
    )
    print(f"the peers' batches are {results['padding_of_peers']:.1%} padding")
    print(f"vectors differ by {results['largest_difference']:.1e} at most")


TOLERANCE = {"cpu": 1e-5, "cuda": 6e-2, "int8": 0.5}
"""Allowed distance of vectors, relative to their norm: float32, bfloat16, and 8 bits."""

Embed = Callable[[Sequence[str]], FloatArray]


@dataclass
class EmbeddingArms:
    """The arms, ours first, with their vectors of the texts and their peak memory."""

    texts: Sequence[str]
    device: torch.device
    embedders: dict[str, Embed] = field(default_factory=dict)
    vectors: dict[str, FloatArray] = field(default_factory=dict)
    peak_bytes: dict[str, int | None] = field(default_factory=dict)

    def add(self, name: str, make: Callable[[], Embed], *, bytes_before: int = 0) -> None:
        """Builds an arm and embeds all texts; `bytes_before` are already on the device."""
        watch = MemoryWatch(self.device)
        embed = make()
        self.vectors[name] = embed(self.texts)
        self.embedders[name] = embed
        above = watch.peak_bytes()
        self.peak_bytes[name] = None if above is None else bytes_before + above

    def largest_difference(self) -> float:
        """Between our vectors and a peer's that is not in int8, by number.

        Raises `AssertionError` if vectors differ by more than `TOLERANCE`.
        """
        ours = self.vectors["ours"]
        lengths = np.linalg.norm(ours, axis=1)
        apart = {
            name: float((np.linalg.norm(found - ours, axis=1) / lengths).max())
            for name, found in self.vectors.items()
        }
        for name, distance in apart.items():
            kind = "int8" if name.endswith("int8") else self.device.type
            assert distance < TOLERANCE[kind], apart
        exact = [found for name, found in self.vectors.items() if not name.endswith("int8")]
        return max(float(np.abs(found - ours).max()) for found in exact)


LIBRARIES = {"sentence-transformers": "sentence_transformers", "transformers": "transformers"}
"""Peers that open the model folder, and their packages."""
ENGINES: dict[str, tuple["Format", bool]] = {
    "ONNX Runtime": ("onnx", False),
    "ONNX Runtime, int8": ("onnx", True),
    "OpenVINO": ("openvino", False),
    "OpenVINO, int8": ("openvino", True),
}
"""Peers that open a graph: its format, and whether it is in int8."""


def peers(
    folder: Path, device: torch.device, batch: int, temporary: Path
) -> dict[str, Callable[[], Embed]]:
    """Builders of the installed peers, with the same weights, in bfloat16 on CUDA."""
    found: dict[str, Callable[[], Embed]] = {}
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    arms = {
        "sentence-transformers": sentence_transformers_arm,
        "transformers": transformers_arm,
    }
    for name, package in LIBRARIES.items():
        if importlib.util.find_spec(package) is None:
            print(f"{name} is not installed: left out")
        else:
            found[name] = partial(arms[name], folder, device, dtype, batch)
    for name, (format_name, int8) in ENGINES.items() if device.type == "cpu" else ():
        try:
            # A bare machine has neither Ray nor what the workflows need.
            from workflows.portable.graphs import refuse_missing_packages

            refuse_missing_packages(format_name)
        except (ImportError, UserError) as error:
            print(f"{name}: {error}: left out")
        else:
            output = temporary / name.replace(", ", "-")
            found[name] = partial(engine_arm, folder, output, format_name, int8, batch)
    return found


def sentence_transformers_arm(
    folder: Path, device: torch.device, dtype: torch.dtype, batch_size: int
) -> Embed:
    """`SentenceTransformer.encode`, which sorts by length."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    body = Transformer(str(folder), model_kwargs={"dtype": dtype})
    config = body.model.config
    pooling = Pooling(config.hidden_size, pooling_mode="mean")
    model = SentenceTransformer(modules=[body, pooling], device=device.type)
    model.max_seq_length = config.max_position_embeddings

    def embed(texts: Sequence[str]) -> FloatArray:
        return np.asarray(model.encode(list(texts), batch_size=batch_size), np.float32)

    return embed


def transformers_arm(
    folder: Path, device: torch.device, dtype: torch.dtype, batch_size: int
) -> Embed:
    """`AutoModel` on batches of similar length, padded to the longest; the mean over the mask."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=dtype, add_pooling_layer=False)
    model = model.to(device).eval()
    longest = model.config.max_position_embeddings

    def embed(texts: Sequence[str]) -> FloatArray:
        ids = tokenizer(list(texts), truncation=True, max_length=longest)["input_ids"]
        vectors = np.empty((len(ids), model.config.hidden_size), np.float32)
        with torch.inference_mode():
            for some in batches_by_length(ids, batch_size):
                batch = tokenizer.pad({"input_ids": [ids[i] for i in some]}, return_tensors="pt")
                batch = batch.to(device)
                states = model(**batch).last_hidden_state.float()
                mask = batch["attention_mask"].unsqueeze(-1)
                vectors[some] = ((states * mask).sum(1) / mask.sum(1)).cpu().numpy()
        return vectors

    return embed


def engine_arm(
    folder: Path, output: Path, format_name: "Format", int8: bool, batch_size: int
) -> Embed:
    """The exported encoder in ONNX Runtime or OpenVINO, on the batches of `transformers_arm`."""
    from workflows.portable.folder import write_portable
    from workflows.portable.graphs import open_graph

    config, model, tokenizer = load_model_folder(folder)
    encoder = output.with_name(f"{output.name}-encoder")  # without heads, and so of vectors
    save_model_folder(encoder, Bert(model.encoder, {}), tokenizer)
    for _ in write_portable(encoder, output, format_name, int8=int8):
        pass
    graph = open_graph(format_name, output)
    tokenizer.enable_truncation(config.max_position_embeddings)

    def embed(texts: Sequence[str]) -> FloatArray:
        ids = [row.ids for row in tokenizer.encode_batch(list(texts))]
        vectors = np.empty((len(ids), config.hidden_size), np.float32)
        for some in batches_by_length(ids, batch_size):
            input_ids = np.full((len(some), len(ids[some[0]])), config.pad_token_id)
            mask = np.zeros_like(input_ids)
            for row, number in enumerate(some):
                input_ids[row, : len(ids[number])] = ids[number]
                mask[row, : len(ids[number])] = 1
            given = (input_ids, mask, np.zeros_like(input_ids))
            states = graph(dict(zip(INPUTS, given, strict=True)))["last_hidden_state"]
            real = mask[:, :, None].astype(np.float32)
            vectors[some] = (states * real).sum(1) / real.sum(1)
        return vectors

    return embed


def batches_by_length(ids: Sequence[Sequence[int]], batch_size: int) -> list[list[int]]:
    """The numbers of texts, in batches of similar lengths, longest first."""
    order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
    return [order[first : first + batch_size] for first in range(0, len(order), batch_size)]


if __name__ == "__main__":
    sys.exit(main())
