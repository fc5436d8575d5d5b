"""Measure what each filter of `prepare.py` costs, in CPU seconds of one process, without Ray.

`python -m benchmarks.filters`. The rate with a filter is relative to reading and encoding alone,
which every preparation does; training a tokenizer is not counted.
"""

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.preparation import cut_corpus
from benchmarks.results import run_program, write_results
from bert_core.machine import processor_name
from bert_core.text import pieces
from bert_core.text.encoding import SentenceEncoder
from bert_core.text.near_duplicates import require_minhash
from bert_core.text.personal_data import PERSONAL_DATA
from bert_core.text.pieces import Corpus, ScanRecord
from bert_core.text.quality import chosen_rules
from bert_core.text.screening import (
    Screening,
    conclude,
    evaluation_texts,
    screen_piece,
    write_ngrams,
)
from bert_core.text.sources import evaluation_parts, find_parts
from bert_core.tokenizer_training import train_wordpiece

BARE, SCRUB = "no filter", "--scrub email phone iban card"
_SAMPLE_BYTES, _VOCABULARY = 10_000_000, 30_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures every filter in turn, prints the results and writes the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.filters", description=__doc__)
    parser.add_argument("--text", default="../shared/data/text/wikipedia-aa.txt.xz")
    parser.add_argument(
        "--excluded", default="mrpc=../shared/data/glue/MRPC", help="a task's evaluation data"
    )
    parser.add_argument("--megabytes", type=float, default=100, help="of text, from its start")
    parser.add_argument("--repeats", type=int, default=3, help="of each arm, in turn")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args(arguments)
    require_minhash()
    with tempfile.TemporaryDirectory() as name:
        corpus = Path(name) / "corpus.jsonl"
        num_bytes = cut_corpus(options.text, options.megabytes, corpus)
        seconds: dict[str, list[float]] = {}
        dropped: dict[str, int] = {}
        for number in range(options.repeats):
            for arm, value, count in measure(corpus, options.excluded, Path(name) / str(number)):
                seconds.setdefault(arm, []).append(value)
                dropped[arm] = count
    bare = statistics.median(seconds[BARE])
    results: dict[str, Any] = {
        "text_bytes": num_bytes,
        "processor": processor_name(torch.device("cpu")),
        "arms": {
            arm: {
                "cpu_seconds": values,
                "megabytes_per_second": num_bytes / 1e6 / (bare + (arm != BARE) * median),
                "of_bare": bare / (bare + (arm != BARE) * median),
                "dropped": dropped[arm],
            }
            for arm, values in seconds.items()
            for median in [statistics.median(values)]
        },
    }
    for arm, result in results["arms"].items():
        rate, share = result["megabytes_per_second"], result["of_bare"]
        print(f"{arm:40}{rate:8.1f} MB/s{share:8.2f} of the rate{result['dropped']:10,} dropped")
    write_results(results, options.json)
    return 0


def measure(corpus: Path, excluded: str, folder: Path) -> list[tuple[str, float, int]]:
    """CPU seconds of reading and encoding, then those that each filter adds, and what it drops."""
    start = time.process_time()
    records = scan(corpus, folder / "bare", ())
    scanning = time.process_time() - start
    start = time.process_time()
    scrubbed = scan(corpus, folder / "scrubbed", PERSONAL_DATA)
    scrubbing = time.process_time() - start - scanning
    replaced = sum(
        number
        for record in scrubbed
        for reason, number in record.dropped.items()
        if reason.startswith("scrubbed_")
    )
    texts = evaluation_texts(evaluation_parts([excluded]))
    write_ngrams(folder / "excluded.npy", texts)
    quality = chosen_rules(["gopher", "c4", "fineweb"])
    filters = {
        "--keep_languages en": Screening(languages=("en",)),
        "--quality gopher c4 fineweb": Screening(quality=quality),
        f"--exclude {excluded.partition('=')[0]}": Screening(excluded=folder / "excluded.npy"),
        "--near_duplicates 0.8": Screening(near_duplicates=0.8),
    }
    added = [(SCRUB, scrubbing, replaced)]
    for name, screening in filters.items():
        screened = folder / name
        screened.mkdir()
        (screened / "text").symlink_to(folder / "bare" / "text")
        start = time.process_time()
        num_dropped = screen(screened, records, screening)
        added.append((name, time.process_time() - start, num_dropped))
    taken = pieces.take_inventory(folder / "bare", records, 0.01, _SAMPLE_BYTES)
    return [(BARE, scanning + encode(folder / "bare", taken), 0), *added]


def scan(corpus: Path, folder: Path, scrubbed: tuple[str, ...]) -> list[ScanRecord]:
    """Reads the corpus into pieces."""
    units = pieces.group_parts(find_parts([str(corpus)], "text", Counter()))
    return [
        pieces.scan_parts(
            folder, f"{index:06d}", unit, text_column="text", strict=False, scrubbed=scrubbed
        )
        for index, unit in enumerate(units)
    ]


def screen(folder: Path, records: list[ScanRecord], screening: Screening) -> int:
    """Applies a filter to all pieces; returns the number of dropped documents."""
    of_corpus = pieces.pieces_of(records)
    screened = [
        screen_piece(folder, piece, np.zeros(piece.num_documents, dtype=np.bool_), screening)
        for piece in of_corpus
    ]
    return int(conclude(folder, of_corpus, screened, screening).is_dropped.sum())


def encode(folder: Path, corpus: Corpus) -> float:
    """CPU seconds of encoding all pieces with a tokenizer trained on a sample."""
    texts = pieces.SampleTexts(folder, corpus, lambda _: None)
    tokenizer = train_wordpiece(texts, _VOCABULARY, lowercase=True)
    encoder = SentenceEncoder(tokenizer, "uint16")
    start = time.process_time()
    for piece, choice in zip(corpus.pieces, corpus.choices, strict=True):
        pieces.encode_piece(folder, piece, choice, encoder, "en")
    return time.process_time() - start


if __name__ == "__main__":
    run_program(main)
