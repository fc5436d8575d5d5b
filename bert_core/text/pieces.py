"""The steps of preparing text, each a function of files that may be run again at any time.

`scan_parts` cuts a corpus into pieces of whole documents, `take_inventory` decides about every
document, `encode_piece` turns a piece into arrays, `join_pieces` makes shards of pieces in order.
Each step writes its record last: a record means done. Choices depend on the documents' texts alone,
never on their number or the workers' order.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from bert_core.text.corpus import read_documents
from bert_core.text.documentation import documentation_version
from bert_core.text.encoding import MOST_TOKENS, SentenceEncoder, split_sentences
from bert_core.text.personal_data import scrub
from bert_core.text.shards import (
    HELDOUT_BYTES,
    ShardEntry,
    map_shard,
    write_array,
    write_bytes,
    write_shard_arrays,
)
from bert_core.text.sources import PART_BYTES, CorpusError, CorpusPart

PIECE_BYTES = 8 << 20
_SEPARATOR = "\0"
"""Between documents; `read_documents` lets no NUL through."""

ENCODED_SPLITS = ("train", "heldout")


class Piece(BaseModel):
    """A few megabytes of whole documents, as text in the folder of unfinished work."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    num_documents: int
    num_bytes: int
    num_characters: int


class ScanRecord(BaseModel):
    """The pieces that came out of some parts, in order, and what was dropped by reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pieces: list[Piece]
    dropped: dict[str, int]


class EncodeRecord(BaseModel):
    """What encoding a piece gave: an entry for each split, and counts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    splits: dict[str, ShardEntry]
    counts: dict[str, int]


def scan_parts(
    folder: Path,
    name: str,
    parts: Sequence[CorpusPart],
    *,
    text_column: str,
    strict: bool,
    scrubbed: Sequence[str] = (),
) -> ScanRecord:
    """Reads parts into pieces `NAME-00000`, `NAME-00001`, … of at most `PIECE_BYTES` or so.

    Personal data of the kinds in `scrubbed` is replaced.
    """
    path = folder / "scanned" / f"{name}.json"
    if path.is_file():
        return ScanRecord.model_validate_json(path.read_bytes())
    dropped: Counter[str] = Counter()
    documents = (
        scrub(document, scrubbed, dropped)
        for part in parts
        for document in read_documents(part, dropped, text_column=text_column, strict=strict)
    )
    pieces = [
        _write_piece(folder, f"{name}-{number:05d}", batch)
        for number, batch in enumerate(_batches(documents))
    ]
    record = ScanRecord(pieces=pieces, dropped=dict(sorted(dropped.items())))
    write_bytes(path, record.model_dump_json().encode())
    return record


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    num_bytes = 0
    for document in documents:
        batch.append(document)
        num_bytes += len(document)
        if num_bytes >= PIECE_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


def _write_piece(folder: Path, name: str, documents: list[str]) -> Piece:
    encoded = [document.encode() for document in documents]
    hashes = [hashlib.blake2b(document, digest_size=8).digest() for document in encoded]
    sizes = np.array([len(document) for document in encoded], dtype=np.uint64)
    table = np.stack([np.frombuffer(b"".join(hashes), dtype="<u8"), sizes])
    write_array(folder / "text" / f"{name}.npy", table)
    write_bytes(folder / "text" / f"{name}.txt", _SEPARATOR.encode().join(encoded))
    return Piece(
        name=name,
        num_documents=len(documents),
        num_bytes=int(sizes.sum()),
        num_characters=sum(map(len, documents)),
    )


def read_piece(folder: Path, piece: Piece) -> list[str]:
    """The documents of a piece."""
    return (folder / "text" / f"{piece.name}.txt").read_bytes().decode().split(_SEPARATOR)


def written_bytes(folder: Path) -> int:
    """Bytes of text in all pieces so far: how far the reading of a large file has come."""
    return sum(path.stat().st_size for path in (folder / "text").glob("*.txt"))


def read_hashes(folder: Path, piece: Piece) -> NDArray[np.uint64]:
    """[2, num_documents]: a 64-bit hash of each document's text, and its length in bytes."""
    return np.load(folder / "text" / f"{piece.name}.npy", allow_pickle=False)


def encode_piece(
    folder: Path, piece: Piece, choice: NDArray[np.int8], encoder: SentenceEncoder, language: str
) -> EncodeRecord:
    """Encodes the documents of a piece into `encoded/NAME.SPLIT.*.npy`, then removes its text.

    `choice` [num_documents] says where a document goes: 0 train, 1 heldout, below 0 nowhere.
    """
    path = folder / "encoded" / f"{piece.name}.json"
    if path.is_file():
        return EncodeRecord.model_validate_json(path.read_bytes())
    documents = read_piece(folder, piece)
    splits: dict[str, ShardEntry] = {}
    counts: Counter[str] = Counter()
    for number, split in enumerate(ENCODED_SPLITS):
        chosen = [documents[index] for index in np.flatnonzero(choice == number)]
        if split == "heldout":
            counts[HELDOUT_BYTES] += sum(len(document.encode()) for document in chosen)
        if chosen:
            arrays = _encode_documents(chosen, encoder, language, counts)
            if len(arrays[2]) > 1:
                name = f"{piece.name}.{split}"
                splits[split] = write_shard_arrays(folder / "encoded", name, *arrays)
    record = EncodeRecord(splits=splits, counts=dict(sorted(counts.items())))
    write_bytes(path, record.model_dump_json().encode())
    (folder / "text" / f"{piece.name}.txt").unlink(missing_ok=True)
    return record


def _encode_documents(
    documents: list[str], encoder: SentenceEncoder, language: str, counts: Counter[str]
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """The arrays of a `Shard`, without empty sentences and documents, which are counted.

    Sentences that no row would hold are cut, and counted too.
    """
    sentences: list[str] = []
    sizes: list[int] = []
    for document in documents:
        split = split_sentences(document, language)
        sentences += split
        sizes.append(len(split))
    before = encoder.unknown_characters
    tokens, lengths = encoder.encode(sentences)
    if encoder.unknown_characters > before:
        counts["characters_of_words_too_long"] += encoder.unknown_characters - before
    counts["sentences_without_token"] += int((lengths == 0).sum())
    lengths, num_pieces = encoder.cut(tokens, lengths)
    if num_cut := int((num_pieces > 1).sum()):
        counts[f"sentences_of_more_than_{MOST_TOKENS}_tokens"] += num_cut
    document_of = np.repeat(np.repeat(np.arange(len(documents)), sizes), num_pieces)[lengths > 0]
    per_document = np.bincount(document_of, minlength=len(documents))
    counts["documents_without_token"] += int((per_document == 0).sum())
    counts["documents_of_one_sentence"] += int((per_document == 1).sum())
    counts["unknown_tokens"] += int((tokens == encoder.unknown_id).sum())
    counts["characters"] += sum(map(len, documents))
    return tokens, _offsets(lengths[lengths > 0]), _offsets(per_document[per_document > 0])


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])


def join_pieces(
    folder: Path, output: Path, name: str, entries: Sequence[ShardEntry], vocab_size: int
) -> tuple[ShardEntry, NDArray[np.int64]]:
    """Joins encoded pieces to one shard; returns it and its token counts [vocab_size]."""
    shards = [map_shard(folder / "encoded", entry.name) for entry in entries]
    tokens = np.concatenate([shard.tokens for shard in shards])
    sentences = _joined([shard.sentences for shard in shards])
    documents = _joined([shard.documents for shard in shards])
    entry = write_shard_arrays(output, name, tokens, sentences, documents)
    return entry, np.bincount(tokens, minlength=vocab_size).astype(np.int64)


def _joined(offsets: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return _offsets(np.concatenate([np.diff(array) for array in offsets]))


TRAIN, HELDOUT, DUPLICATE, DROPPED = 0, 1, -1, -2
_HELDOUT_SALT, _SAMPLE_SALT = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F


def find_copies(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """[documents] bool: all but the first of equal hashes."""
    order = np.argsort(hashes, kind="stable")
    is_copy = np.zeros(len(hashes), dtype=np.bool_)
    is_copy[order[1:][hashes[order][1:] == hashes[order][:-1]]] = True
    return is_copy


def choose_documents(
    hashes: NDArray[np.uint64],
    heldout_share: float,
    is_dropped: NDArray[np.bool_] | None = None,
) -> NDArray[np.int8]:
    """[documents] int8: `DUPLICATE` for all but the first of equal hashes, `HELDOUT` or `TRAIN`.

    `DROPPED` are those that screening has dropped. A document is held out if its hash says so,
    with probability `heldout_share`. Both splits of a small corpus have two documents at least,
    one where there are fewer than four.
    """
    choice = np.full(len(hashes), TRAIN, dtype=np.int8)
    choice[find_copies(hashes)] = DUPLICATE
    if is_dropped is not None:
        choice[is_dropped] = DROPPED
    different = np.flatnonzero(choice == TRAIN)
    if heldout_share > 0 and len(different) > 1:
        ranks = _mixed(hashes[different], _HELDOUT_SALT)
        held_out = ranks < np.uint64(min(int(heldout_share * 2**64), 2**64 - 1))
        least = 2 if len(different) >= 4 else 1  # a NotNext segment comes from another document
        ascending = np.argsort(ranks, kind="stable")
        held_out[ascending[:least]] = True
        held_out[ascending[-least:]] = False
        choice[different[held_out]] = HELDOUT
    return choice


def choose_sample(
    hashes: NDArray[np.uint64],
    sizes: NDArray[np.uint64],
    choice: NDArray[np.int8],
    sample_bytes: int,
) -> NDArray[np.bool_]:
    """[documents] bool: the training documents with the lowest ranks, up to `sample_bytes`.

    One that does not fit is left out, until nine tenths are full; there is one at least.
    """
    candidates = np.flatnonzero(choice == TRAIN)
    order = candidates[np.argsort(_mixed(hashes[candidates], _SAMPLE_SALT), kind="stable")]
    chosen, fitting = order[:1], order
    while len(fitting):
        ends = np.cumsum(sizes[fitting])
        count = int((ends <= sample_bytes).sum())
        room = sample_bytes - (int(ends[count - 1]) if count else 0)
        if count == len(fitting) or room <= sample_bytes // 10:
            chosen = fitting[:count]
            break
        later = fitting[count:]
        fitting = np.concatenate([fitting[:count], later[sizes[later] <= room]])
    sampled = np.zeros(len(hashes), dtype=np.bool_)
    sampled[chosen] = True
    return sampled


def _mixed(hashes: NDArray[np.uint64], salt: int) -> NDArray[np.uint64]:
    """A permutation of the 64-bit numbers (the finaliser of splitmix64), another for each salt."""
    mixed = hashes ^ np.uint64(salt)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


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
    group: list[CorpusPart] = []
    num_bytes = 0.0
    for part in parts:
        if group and (num_bytes + part.text_bytes > PART_BYTES or part.typed != group[0].typed):
            yield group
            group, num_bytes = [], 0.0
        group.append(part)
        num_bytes += part.text_bytes
    if group:
        yield group


def pieces_of(records: Iterable[ScanRecord]) -> list[Piece]:
    """All pieces in order; raises `CorpusError` if there are none."""
    pieces = [piece for record in records for piece in record.pieces]
    if not pieces:
        raise CorpusError("empty corpus", "no document in any of the files", "give other text")
    return pieces


def take_inventory(
    folder: Path,
    records: Iterable[ScanRecord],
    heldout_share: float,
    sample_bytes: int,
    is_dropped: NDArray[np.bool_] | None = None,
) -> Corpus:
    """Decides about all documents; raises `CorpusError` if there are none.

    `is_dropped` [documents] says which of them screening has dropped.
    """
    records = list(records)
    pieces = pieces_of(records)
    hashes, sizes = np.concatenate([read_hashes(folder, piece) for piece in pieces], axis=1)
    choice = choose_documents(hashes, heldout_share, is_dropped)
    if (choice < 0).all():
        raise CorpusError("empty corpus", "the rules drop every document", "leave some rules out")
    sample = choose_sample(hashes, sizes, choice, sample_bytes)
    counts: Counter[str] = Counter()
    for record in records:
        counts.update(record.dropped)
    counts["duplicate_documents"] = int((choice == DUPLICATE).sum())
    counts["documents_read"] = len(hashes)
    counts["characters_read"] = sum(piece.num_characters for piece in pieces)
    bounds = np.cumsum([piece.num_documents for piece in pieces])[:-1]
    return Corpus(
        pieces=pieces,
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
