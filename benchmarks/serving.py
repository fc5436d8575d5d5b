"""Compare one model over HTTP with other servers: throughput, latency, CPU time, memory.

`python -m benchmarks.serving --text FILE --model FOLDER --work DIR`: a classifier, each text a
request; with `--route rerank` a reranker, each query with its passages a request; with `--route
shared` both embeddings and a reranker, of one encoder and of two. Every peer has a virtual
environment of its own under DIR, created once. All servers run at the same time and take
turns. The CPU time of a request is that of all processes of a server.
"""

import argparse
import math
import os
import shutil
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from tokenizers import Tokenizer

from benchmarks.inputs import paragraphs_of
from benchmarks.measurement import surroundings
from benchmarks.results import run_program, write_results
from benchmarks.servers import (
    BOTH,
    EXPORTED,
    INT8,
    ONE_ENCODER,
    RAY_SERVE,
    TWO_ENCODERS,
    UVICORN,
    Kind,
    Ranked,
    Route,
    Scores,
    Served,
    Turn,
    ask_for_a_while,
    kinds,
    make_environment,
)
from bert_core.errors import UserError
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.predictor import load_predictor
from bert_core.quantization import PRECISION_FIELD
from bert_core.tasks.catalog import task_config
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.reranking import Candidates, Reranking
from bert_core.tasks.task import Task, add_task_head
from bert_core.tasks.text_embedding import TextEmbedding
from workflows.portable.folder import write_portable

TEXTS = 256
CELLS = {"20": (20, 20), "128": (128, 128), "10-200": (10, 200)}
"""Tokens of a text with [CLS] and [SEP]: minimum and maximum of a uniform draw."""
MIX = "10-200"
CLIENTS = (1, 8, 32)
RERANK_TOKENS, RERANK_PASSAGES, RERANK_CLIENTS = (20, 128), (10, 100), (1, 4)
"""Tokens of a query with a passage, passages of a request, and clients."""
RERANK_REQUESTS = 32
_QUERY_TOKENS = 10
TOLERANCE = {INT8: 0.05, "onnxruntime, int8": 0.05, "openvino, int8": 0.05}
"""Allowed difference from the offline predictor's score, by default `ROUNDING`."""
ROUNDING = 1e-4
_LABELS = ("negative", "positive")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--text", type=Path, required=True, help="file with paragraphs")
    parser.add_argument("--model", type=Path, required=True, help="an encoder's model folder")
    parser.add_argument("--work", type=Path, required=True, help="environments and logs")
    parser.add_argument("--route", choices=get_args(Route), default="classify")
    names = {name for route in get_args(Route) for name in kinds(route)}
    parser.add_argument("--servers", nargs="+", choices=sorted(names), help="by default all")
    parser.add_argument("--seconds", type=float, default=4.0, help="per turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each server in a cell")
    parser.add_argument(
        "--threads", type=int, default=None, help="OMP_NUM_THREADS of all; unset by default"
    )
    parser.add_argument("--json", type=Path, default=None, help="where the results go as JSON")
    return parser.parse_args(arguments)


@dataclass(frozen=True)
class Workload:
    """The servers of a route with their folders, and what they are asked: by cell, and clients.

    `question` has the scores `right`, `encoder` is the folder that all were made of.
    """

    encoder: Path
    kinds: Mapping[str, Kind]
    folders: Mapping[str, Path]
    cells: Mapping[str, tuple[Sequence[str | Ranked], int]]
    question: str | Ranked
    right: Scores


def main() -> None:
    """Runs the benchmark, prints the tables and writes the JSON."""
    options = parse_arguments()
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    loads = {"classify": classification, "rerank": reranking, "shared": shared}
    load = loads[options.route](options, work)
    with ExitStack() as stack:
        servers, ready = start_servers(options, load, stack)
        memory = {name: [each.resident_bytes] for name, each in servers.items()}
        cells = {
            name: measure(options, servers, name, texts, clients)
            for name, (texts, clients) in load.cells.items()
        }
        for name, each in servers.items():
            memory[name].append(each.resident_bytes)
    results = {
        "benchmark": "serving",
        "settings": {key: getattr(options, key) for key in ("seconds", "rounds", "threads")},
        "encoder": load_model_folder(load.encoder)[0].model_dump(
            include={"num_hidden_layers", "hidden_size"}
        ),
        "surroundings": surroundings(torch.device("cpu")) | {"cores": os.cpu_count()},
        "packages": {name: list(load.kinds[name].packages) for name in servers},
        "ready_seconds": ready,
        "resident_bytes": memory,
        "cells": cells,
        "ratios": {cell: ratios(each, load.kinds) for cell, each in cells.items()},
    }
    print_results(results)
    write_results(results, options.json)


def classification(options: argparse.Namespace, work: Path) -> Workload:
    """A classifier, asked about one text at a time."""
    folders = write_classifiers(options.model, work)
    for name in EXPORTED:
        if name in (options.servers or EXPORTED):
            folders[name] = export_classifier(folders[UVICORN], name, work)
    texts = draw_texts(options.text, load_model_folder(folders[UVICORN])[2])
    cells = {
        f"{cell} tokens, {_counted(clients, 'client')}": (texts[cell], clients)
        for cell in CELLS
        for clients in CLIENTS
    }
    question = texts["20"][0]
    right = offline_scores(folders[UVICORN], question)
    return Workload(options.model, kinds(), folders, cells, question, right)


def reranking(options: argparse.Namespace, work: Path) -> Workload:
    """A reranker, asked to order passages, each as long as the others."""
    folders = write_models(options.model, work, "rerank", Reranking(max_length=256))
    tokenizer = load_model_folder(folders[UVICORN])[2]
    sizes = {"query": _QUERY_TOKENS} | {str(t): t + 1 - _QUERY_TOKENS for t in RERANK_TOKENS}
    texts = draw_texts(options.text, tokenizer, {name: (n, n) for name, n in sizes.items()})
    draw = np.random.default_rng(1)
    cells: dict[str, tuple[Sequence[Ranked], int]] = {}
    for tokens in RERANK_TOKENS:
        for passages in RERANK_PASSAGES:
            asked = [
                (query, draw.choice(texts[str(tokens)], passages, replace=False).tolist())
                for query in texts["query"][:RERANK_REQUESTS]
            ]
            for clients in RERANK_CLIENTS:
                title = f"{tokens} tokens, {passages} passages, {_counted(clients, 'client')}"
                cells[title] = (asked, clients)
    query, passages = question = next(iter(cells.values()))[0][0]
    given = Candidates(query, tuple(passages), None)
    (found,), _ = load_predictor(folders[UVICORN]).predict_examples([given])
    right = {str(n): 1 / (1 + math.exp(-score)) for n, score in enumerate(found["scores"])}
    return Workload(options.model, kinds("rerank"), folders, cells, question, right)


def shared(options: argparse.Namespace, work: Path) -> Workload:
    """A model of embeddings and a reranker of one encoder, or of two, asked in turns."""
    folders = {name: work / name.replace(" ", "-") for name in kinds("shared")}
    tasks = {"embedding": TextEmbedding(max_length=256), "rerank": Reranking(max_length=256)}
    for name, folder in folders.items():
        shutil.rmtree(folder, ignore_errors=True)
        for model_name, (key, task) in zip(BOTH, tasks.items(), strict=True):
            _, model, tokenizer = load_model_folder(options.model)
            torch.manual_seed(0)
            add_task_head(model, task)
            if name == TWO_ENCODERS and key == "rerank":
                model.encoder.word_embeddings.data[0, 0] += 1e-3  # no longer the same
            (folder / model_name).parent.mkdir(exist_ok=True)
            config = task_config(key, task)
            save_model_folder(folder / model_name, model, tokenizer, "", extra_config=config)
    texts = draw_texts(options.text, load_model_folder(options.model)[2])["20"]
    asked: list[str | Ranked] = []
    for number, text in enumerate(texts):  # as many texts to embed as pairs to order
        asked.append(text)
        if number % RERANK_PASSAGES[0] == 0:
            asked.append((text, texts[: RERANK_PASSAGES[0]]))
    (first,) = load_predictor(folders[ONE_ENCODER] / BOTH[0]).embed(texts[:1], normalize=True)
    cells = {f"20 tokens, {_counted(count, 'client')}": (asked, count) for count in CLIENTS[:2]}
    right = {"0": float(first[0])}
    return Workload(options.model, kinds("shared"), folders, cells, texts[0], right)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"


def write_classifiers(encoder: Path, work: Path) -> dict[str, Path]:
    """Writes a classifier; see `write_models`."""
    return write_models(
        encoder, work, "classification", Classification(labels=_LABELS, max_length=256)
    )


def export_classifier(folder: Path, name: str, work: Path) -> Path:
    """Writes the graph of a classifier for the peer `name`; returns its folder."""
    output = work / f"classification-{name.replace(', ', '-')}"
    shutil.rmtree(output, ignore_errors=True)
    format_name, int8 = EXPORTED[name]
    for line in write_portable(folder, output, format_name, int8=int8):
        print(f"{name}: {line}", flush=True)
    return output


def write_models(encoder: Path, work: Path, name: str, task: Task) -> dict[str, Path]:
    """Writes a model of a task in float32 and in int8; returns the folder for each server.

    The weights of its head are random, which does not affect the cost.
    """
    of_route = kinds("rerank" if name == "rerank" else "classify")
    folders = dict.fromkeys(of_route, work / name) | {INT8: work / f"{name}-int8"}
    _, model, tokenizer = load_model_folder(encoder)
    torch.manual_seed(0)
    add_task_head(model, task)
    config = task_config(name, task)
    for folder, more in ((folders[UVICORN], {}), (folders[INT8], {PRECISION_FIELD: "int8"})):
        shutil.rmtree(folder, ignore_errors=True)
        save_model_folder(folder, model, tokenizer, card="", extra_config=config | more)
    return folders


def draw_texts(
    path: Path, tokenizer: Tokenizer, cells: Mapping[str, tuple[int, int]] = CELLS
) -> dict[str, list[str]]:
    """Beginnings of real paragraphs with the number of tokens of a cell."""
    draw = np.random.default_rng(0)
    wanted = {
        cell: draw.integers(least, most + 1, TEXTS).tolist()
        for cell, (least, most) in cells.items()
    }
    found: dict[str, list[str]] = {cell: [] for cell in cells}
    paragraphs = paragraphs_of(path)
    for number in draw.permutation(len(paragraphs)):
        encoding = tokenizer.encode(paragraphs[number])
        for cell, sizes in wanted.items():
            size = next((each for each in sizes if each <= len(encoding)), None)
            if size is None:
                continue
            text = paragraphs[number][: encoding.offsets[size - 2][1]]
            if len(tokenizer.encode(text)) == size:
                found[cell].append(text)
                sizes.remove(size)
    assert not any(wanted.values()), "too few long paragraphs"
    return {cell: draw.permutation(texts).tolist() for cell, texts in found.items()}


def start_servers(
    options: argparse.Namespace, load: Workload, stack: ExitStack
) -> tuple[dict[str, Served], dict[str, float]]:
    """Starts the servers, checks their answers, and returns them with their start-up seconds."""
    servers: dict[str, Served] = {}
    ready: dict[str, float] = {}
    work = options.work.absolute()
    for name in options.servers or load.kinds:
        if name not in load.kinds:
            known = f"there are {', '.join(load.kinds)}"
            raise UserError(f"{name} has no route {options.route}", "--servers", known)
        kind = load.kinds[name]
        if kind.is_peer:
            make_environment(kind, work)
        begin = os.times().elapsed
        servers[name] = Served(kind, load.folders[name], work, options.threads)
        stack.callback(servers[name].end)
        tolerance = TOLERANCE.get(name, ROUNDING)
        servers[name].wait(load.question, load.right, tolerance=tolerance)
        ready[name] = os.times().elapsed - begin
        print(f"{name}: answers after {ready[name]:.1f} s", flush=True)
    return servers, ready


def offline_scores(folder: Path, text: str) -> Scores:
    """What a server has to say of a text."""
    (found,), _ = load_predictor(folder).predict_examples([Text(text, None, None)])
    return found["scores"]


def measure(
    options: argparse.Namespace,
    servers: Mapping[str, Served],
    title: str,
    texts: Sequence[str | Ranked],
    clients: int,
) -> dict[str, Any]:
    """Measures each server in a cell."""
    print(title, flush=True)
    requests = {name: [each.kind.request(text) for text in texts] for name, each in servers.items()}
    turns: dict[str, list[tuple[Turn, float]]] = {name: [] for name in servers}
    names = list(servers)
    for turn in range(options.rounds):
        start = turn % len(names)
        for name in (*names[start:], *names[:start]):
            each = servers[name]
            ask_for_a_while(each.port, requests[name], clients=clients, seconds=0.5)
            before = each.processor_seconds()
            found = ask_for_a_while(
                *(each.port, requests[name]),
                **{"clients": clients, "seconds": options.seconds, "first": turn * 97},
            )
            turns[name].append((found, each.processor_seconds_since(before)))
    cell = {name: figures(each) for name, each in turns.items()}
    print_cell(cell)
    return cell


def figures(turns: Sequence[tuple[Turn, float]]) -> dict[str, Any]:
    """Medians over the turns; percentiles over all answers."""
    latencies = np.concatenate([turn.latencies for turn, _ in turns])
    rates = [len(turn.latencies) / turn.seconds for turn, _ in turns]
    costs = [1000 * seconds / len(turn.latencies) for turn, seconds in turns]
    p50, p99 = np.percentile(latencies, (50, 99)) * 1000
    return {
        "requests_per_second": statistics.median(rates),
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "cpu_ms": statistics.median(costs),
        "cpu_ms_of_rounds": costs,
        "requests": len(latencies),
    }


def ratios(cell: Mapping[str, Any], known: Mapping[str, Kind]) -> dict[str, float]:
    """CPU time of each of our servers relative to the best peer, the median over rounds.

    In int8 to the best peer in int8, if there is one.
    """
    found = {}
    for name in (each for each in (UVICORN, INT8, RAY_SERVE) if each in cell):
        peers = [each for each in cell if known[each].is_peer]
        alike = [each for each in peers if each.endswith("int8") == name.endswith("int8")]
        rounds = [cell[each]["cpu_ms_of_rounds"] for each in alike or peers]
        best = [min(each) for each in zip(*rounds, strict=True)]
        if best:
            both = zip(cell[name]["cpu_ms_of_rounds"], best, strict=True)
            found[name] = statistics.median(mine / theirs for mine, theirs in both)
    return found


def print_cell(cell: Mapping[str, Any]) -> None:
    """A line for each server."""
    for name, each in cell.items():
        print(
            f"  {name:22} {each['requests_per_second']:7.1f}/s  p50 {each['p50_ms']:7.1f} ms"
            f"  p99 {each['p99_ms']:7.1f} ms  CPU {each['cpu_ms']:6.1f} ms",
            flush=True,
        )


def print_results(results: Mapping[str, Any]) -> None:
    """Prints start-up time, memory and CPU time of the servers."""
    for name, seconds in results["ready_seconds"].items():
        first, last = (result / 1e6 for result in results["resident_bytes"][name])
        print(f"{name:22} ready in {seconds:5.1f} s, {first:6.0f} MB, after all {last:6.0f} MB")
    for cell, found in results["ratios"].items():
        if not found:  # no peers
            continue
        said = ", ".join(f"{name} {ratio:.2f}" for name, ratio in found.items())
        print(f"{cell:24} CPU time, of the best peer's: {said}")


if __name__ == "__main__":
    run_program(main)
