"""Compare text preparation with the libraries alone, on the same text and the same cores.

Measures the rates of `prepare`, of `tokenizers` with sentencex in processes and in threads, and of
`tokenizers` on sentences that are already split. Needs Ray.
"""

import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import ray
from tokenizers import Tokenizer

from benchmarks.cluster_memory import watched_memory
from bert_core.text.corpus import read_documents
from bert_core.text.encoding import split_sentences
from bert_core.text.shards import open_shards
from bert_core.text.sources import find_parts
from workflows.prepare import PrepareSettings, prepare

TRAINED = "trained"
"""The folder of shards, within that of a measurement, whose vocabulary was trained on the text."""

PROCESSES = "tokenizers + sentencex, processes"
THREADS = "tokenizers + sentencex, threads"
BARE = "tokenizers, sentences given"

_PIECE_CHARACTERS = 8 << 20


def measure_preparation(text: str, megabytes: float, repeats: int, folder: Path) -> dict[str, Any]:
    """Runs all arms in turn; rates are medians over the repeats. The shards stay in `folder`."""
    corpus = folder / "corpus.jsonl"
    num_bytes = cut_corpus(text, megabytes, corpus)
    num_cores = len(os.sched_getaffinity(0))
    load_before = os.getloadavg()[0]
    ray.init("local", num_cpus=num_cores, log_to_driver=False, include_dashboard=False)
    with watched_memory() as memory:
        start = time.perf_counter()
        run_prepare(corpus, folder / TRAINED)
        trained_seconds = time.perf_counter() - start
    shards = open_shards(folder / TRAINED)
    num_tokens = shards.num_tokens + open_shards(folder / TRAINED, "heldout").num_tokens
    tokenizer = folder / TRAINED / "tokenizer.json"
    seconds: dict[str, list[float]] = {"ours": [], PROCESSES: [], THREADS: [], BARE: []}
    with ProcessPoolExecutor(num_cores, mp_context=get_context("spawn")) as pool:
        list(pool.map(segment_and_encode, [(["Warm."], str(tokenizer))] * 2 * num_cores))
        for number in range(repeats):
            seconds["ours"].append(timed_prepare(corpus, folder / f"again-{number}", tokenizer))
            seconds[PROCESSES].append(timed_processes(pool, corpus, tokenizer, num_tokens))
            split, encoding = timed_threads(corpus, tokenizer, num_tokens)
            seconds[THREADS].append(split + encoding)
            seconds[BARE].append(encoding)
    ray.shutdown()
    rates = {arm: num_tokens / statistics.median(each) for arm, each in seconds.items()}
    return {
        "text_bytes": num_bytes,
        "tokens": num_tokens,
        "cores": num_cores,
        "load_average_before": load_before,
        "arms": {
            "ours": {"tokens_per_second": rates["ours"], "seconds": seconds["ours"]},
            **{
                arm: {
                    "tokens_per_second": rates[arm],
                    "seconds": seconds[arm],
                    "ratio": rates["ours"] / rates[arm],
                }
                for arm in (PROCESSES, THREADS, BARE)
            },
        },
        "with_tokenizer_training_seconds": trained_seconds,
        "peak_bytes_above_idle_cluster": memory.peak_above_idle,
    }


def cut_corpus(text: str, megabytes: float, path: Path) -> int:
    """Writes the first documents as .jsonl, which all arms read; returns the bytes of text."""
    num_bytes = 0
    with path.open("w", encoding="utf-8") as file:
        for part in find_parts([text], "text", Counter()):
            for document in read_documents(part, Counter()):
                if num_bytes >= megabytes * 1e6:
                    return num_bytes
                file.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
                num_bytes += len(document.encode())
    return num_bytes


def run_prepare(corpus: Path, output: Path, tokenizer: Path | None = None) -> None:
    """Runs `prepare`, from files to verified index, without its summary."""
    with redirect_stdout(StringIO()):
        prepare(
            PrepareSettings(
                text=[str(corpus)], output=output, tokenizer=str(tokenizer) if tokenizer else None
            )
        )


def timed_prepare(corpus: Path, output: Path, tokenizer: Path) -> float:
    """Seconds of `prepare` with a given tokenizer, on the running cluster."""
    start = time.perf_counter()
    run_prepare(corpus, output, tokenizer)
    return time.perf_counter() - start


def timed_processes(
    pool: ProcessPoolExecutor, corpus: Path, tokenizer: Path, num_tokens: int
) -> float:
    """Seconds of segmenting, then encoding, in one process per core; reading is not counted."""
    calls = [(piece, str(tokenizer)) for piece in pieces(corpus)]
    start = time.perf_counter()
    found = sum(pool.map(segment_and_encode, calls))
    seconds = time.perf_counter() - start
    check_equal(found, num_tokens)
    return seconds


def segment_and_encode(call: tuple[list[str], str]) -> int:
    """Splits and encodes with the two libraries alone; returns the number of ids."""
    documents, path = call
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return sum(map(len, encode(sentences_of(documents), load(path))))


def timed_threads(corpus: Path, tokenizer: Path, num_tokens: int) -> tuple[float, float]:
    """Seconds of segmenting and of encoding in this process, with the threads of `tokenizers`.

    The second alone is the time of bare `tokenizers` for given sentences.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    found, seconds = 0, [0.0, 0.0]
    for piece in pieces(corpus):
        start = time.perf_counter()
        sentences = sentences_of(piece)
        split = time.perf_counter()
        found += sum(map(len, encode(sentences, load(str(tokenizer)))))
        seconds[0] += split - start
        seconds[1] += time.perf_counter() - split
    check_equal(found, num_tokens)
    return seconds[0], seconds[1]


def sentences_of(documents: list[str]) -> list[str]:
    """Splits documents with sentencex."""
    return [sentence for document in documents for sentence in split_sentences(document)]


def load(path: str) -> Tokenizer:
    """Loads a tokenizer that treats the names of special tokens as text."""
    tokenizer = Tokenizer.from_file(path)
    tokenizer.encode_special_tokens = True
    return tokenizer


def encode(sentences: list[str], tokenizer: Tokenizer) -> list[Any]:
    """Encodes all sentences at once, the fastest way."""
    return tokenizer.encode_batch_fast(sentences, add_special_tokens=False)


def check_equal(found: int, expected: int) -> None:
    """Raises `RuntimeError` if an arm did other work."""
    if found != expected:
        raise RuntimeError(f"{found} tokens, not {expected}: the arms differ")


def pieces(corpus: Path) -> Iterator[list[str]]:
    """Yields the documents, some megabytes at a time."""
    held: list[str] = []
    num_characters = 0
    with corpus.open(encoding="utf-8") as file:
        for line in file:
            held.append(json.loads(line)["text"])
            num_characters += len(held[-1])
            if num_characters > _PIECE_CHARACTERS:
                yield held
                held, num_characters = [], 0
    if held:
        yield held


def print_preparation(result: dict[str, Any]) -> None:
    """Prints one line per arm."""
    megabytes = result["text_bytes"] / 1e6
    print(
        f"{megabytes:.1f} MB of text, {result['tokens']:,} tokens, {result['cores']} cores, "
        f"load average before: {result['load_average_before']:.1f}"
    )
    for name, arm in result["arms"].items():
        rate = arm["tokens_per_second"]
        mb_rate = rate * megabytes / result["tokens"]
        ratio = f"   ours is {arm['ratio']:.2f} times as fast" if "ratio" in arm else ""
        print(f"{name:36}{rate:14,.0f} tokens/s{mb_rate:8.1f} MB/s{ratio}")
    print(f"with tokenizer training: {result['with_tokenizer_training_seconds']:.1f} s")
    peak = result["peak_bytes_above_idle_cluster"] / 1e6
    print(f"peak memory above the idle cluster: {peak:,.0f} MB")
