"""The three steps of preparing text, each a function of files that may be run again at any time.

`scan_parts` cuts a corpus into pieces of whole documents, `encode_piece` turns one into arrays,
`join_pieces` makes shards of consecutive pieces. Each writes its record last: a record means done.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from bert_core.text.reading.corpus import read_documents
from bert_core.text.reading.sentences import split_sentences
from bert_core.text.reading.sources import CorpusPart
from bert_core.text.shard_index import ShardEntry, write_array, write_bytes
from bert_core.text.sharding.encoding import SentenceEncoder
from bert_core.text.shards import map_shard, write_shard_arrays

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
    folder: Path, name: str, parts: Sequence[CorpusPart], *, text_column: str, strict: bool
) -> ScanRecord:
    """Reads parts into pieces `NAME-00000`, `NAME-00001`, … of at most `PIECE_BYTES` or so."""
    path = folder / "scanned" / f"{name}.json"
    if path.is_file():
        return ScanRecord.model_validate_json(path.read_bytes())
    dropped: Counter[str] = Counter()
    documents = (
        document
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
    held: list[str] = []
    num_bytes = 0
    for document in documents:
        held.append(document)
        num_bytes += len(document)
        if num_bytes >= PIECE_BYTES:
            yield held
            held, num_bytes = [], 0
    if held:
        yield held


def _write_piece(folder: Path, name: str, documents: list[str]) -> Piece:
    encoded = [document.encode() for document in documents]
    hashes = [hashlib.blake2b(each, digest_size=8).digest() for each in encoded]
    sizes = np.array([len(each) for each in encoded], dtype=np.uint64)
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
    folder: Path,
    piece: Piece,
    choice: NDArray[np.int8],
    encoder: SentenceEncoder,
    language: str,
) -> EncodeRecord:
    """Encodes the documents of a piece into `encoded/NAME.SPLIT.*.npy`, then removes its text.

    `choice` [num_documents] says where a document goes: 0 train, 1 heldout, -1 nowhere.
    """
    path = folder / "encoded" / f"{piece.name}.json"
    if path.is_file():
        return EncodeRecord.model_validate_json(path.read_bytes())
    documents = read_piece(folder, piece)
    splits: dict[str, ShardEntry] = {}
    counts: Counter[str] = Counter()
    for number, split in enumerate(ENCODED_SPLITS):
        chosen = [documents[index] for index in np.flatnonzero(choice == number)]
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
    """The arrays of a `Shard`, without empty sentences and documents, which are counted."""
    sentences: list[str] = []
    sizes: list[int] = []
    for document in documents:
        found = split_sentences(document, language)
        sentences += found
        sizes.append(len(found))
    before = encoder.unknown_characters
    tokens, lengths = encoder.encode(sentences)
    if encoder.unknown_characters > before:
        counts["characters_of_words_too_long"] += encoder.unknown_characters - before
    document_of = np.repeat(np.arange(len(documents)), sizes)[lengths > 0]
    per_document = np.bincount(document_of, minlength=len(documents))
    counts["sentences_without_token"] += int((lengths == 0).sum())
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
    return _offsets(np.concatenate([np.diff(each) for each in offsets]))
