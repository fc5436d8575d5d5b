"""The corpus as a whole: records of the scan go in, a choice for every document comes out.

Needs some tens of bytes of memory for each document, and no text.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_core.text.reading.documentation import documentation_version
from bert_core.text.reading.sources import PART_BYTES, CorpusError, CorpusPart
from bert_core.text.sharding.choice import DUPLICATE, choose_documents, choose_sample
from bert_core.text.sharding.pieces import Piece, ScanRecord, read_hashes, read_piece


@dataclass(frozen=True)
class Corpus:
    """Pieces in order, the choice and the sample mask [num_documents] of each, and counts."""

    pieces: list[Piece]
    choices: list[NDArray[np.int8]]
    samples: list[NDArray[np.bool_]]
    sample_bytes: int
    counts: Counter[str]


def group_parts(parts: Iterable[CorpusPart]) -> Iterator[list[CorpusPart]]:
    """Groups small parts of the same source, so that a task has some megabytes to read."""
    held: list[CorpusPart] = []
    num_bytes = 0.0
    for part in parts:
        if held and (num_bytes + part.text_bytes > PART_BYTES or part.typed != held[0].typed):
            yield held
            held, num_bytes = [], 0.0
        held.append(part)
        num_bytes += part.text_bytes
    if held:
        yield held


def take_inventory(
    folder: Path, records: Iterable[ScanRecord], heldout_share: float, sample_bytes: int
) -> Corpus:
    """Decides about all documents; raises `CorpusError` if there are none."""
    records = list(records)
    found = [piece for record in records for piece in record.pieces]
    if not found:
        raise CorpusError("empty corpus", "no document in any of the files", "give other text")
    hashes, sizes = np.concatenate([read_hashes(folder, piece) for piece in found], axis=1)
    choice = choose_documents(hashes, heldout_share)
    sample = choose_sample(hashes, sizes, choice, sample_bytes)
    counts: Counter[str] = Counter()
    for record in records:
        counts.update(record.dropped)
    counts["duplicate_documents"] = int((choice == DUPLICATE).sum())
    counts["documents_read"] = len(hashes)
    counts["characters_read"] = sum(piece.num_characters for piece in found)
    bounds = np.cumsum([piece.num_documents for piece in found])[:-1]
    return Corpus(
        pieces=found,
        choices=np.split(choice, bounds),
        samples=np.split(sample, bounds),
        sample_bytes=int(sizes[sample].sum()),
        counts=counts,
    )


class SampleTexts:
    """The lines of the sampled documents; may be walked through any number of times.

    `advance` is called with the bytes of each piece that was read.
    """

    def __init__(self, folder: Path, corpus: Corpus, advance: Callable[[int], None]) -> None:
        self._folder = folder
        self._corpus = corpus
        self._advance = advance

    def __iter__(self) -> Iterator[str]:
        for piece, sample in zip(self._corpus.pieces, self._corpus.samples, strict=True):
            if sample.any():
                documents = read_piece(self._folder, piece)
                for index in np.flatnonzero(sample):
                    yield from documents[index].split("\n")
                self._advance(int(read_hashes(self._folder, piece)[1][sample].sum()))


def describe_sources(
    folder: Path, units: list[list[CorpusPart]], scanned: list[ScanRecord]
) -> list[dict[str, Any]]:
    """What was typed, in order, with the number, size and hash of its documents."""
    described: dict[str, dict[str, Any]] = {}
    digests: dict[str, Any] = {}
    for unit, record in zip(units, scanned, strict=True):
        part = unit[0]
        if part.typed not in described:
            described[part.typed] = {"text": part.typed, "num_documents": 0, "num_bytes": 0}
            digests[part.typed] = hashlib.sha256()
            if part.kind == "documentation":
                described[part.typed]["version"] = documentation_version(part.path)
        for piece in record.pieces:
            described[part.typed]["num_documents"] += piece.num_documents
            described[part.typed]["num_bytes"] += piece.num_bytes
            digests[part.typed].update(read_hashes(folder, piece)[0].tobytes())
    return [source | {"sha256": digests[name].hexdigest()} for name, source in described.items()]
