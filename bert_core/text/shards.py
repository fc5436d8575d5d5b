"""Token shards on disk: documents of token ids -> memory-mapped arrays and index.json.

The content of index.json depends on the text, the tokenizer and the settings alone.
`python -m bert_core.text.shards verify DIR` checks every byte against it.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from bert_core.disk import atomic_write, file_sha256
from bert_core.errors import UserError
from bert_core.strict_files import first_fault, is_plain_name, read_json_object

INDEX_NAME = "index.json"
TOKENIZER_NAME = "tokenizer.json"
TOKEN_COUNTS_NAME = "token_counts.npy"
VERSION = 1
HELDOUT_BYTES = "heldout_bytes"
"""The count in index.json of the UTF-8 bytes of the held-out text; not in that of older shards."""

PARTS = ("tokens", "sentences", "documents")
"""The arrays of a shard; array PART of shard NAME is the file NAME.PART.npy."""

_MOST_INDEX_BYTES = 1 << 28
"""It has a line or some for each file of the corpus."""

Count = Annotated[int, Field(ge=0, lt=1 << 63)]


def _plain(name: str) -> str:
    if not is_plain_name(name):
        raise ValueError(f"{name[:60]!r} is no name of a file in the folder")
    return name


FileName = Annotated[str, AfterValidator(_plain)]


class ShardsError(UserError):
    """A folder of token shards that is missing, damaged or of another version."""


class FileEntry(BaseModel):
    """What a file of the folder must be: its size and its hash."""

    model_config = ConfigDict(extra="forbid")

    num_bytes: Count
    sha256: str


class ShardEntry(BaseModel):
    """One shard in index.json; its files are `NAME.tokens.npy` and so on (see `PARTS`)."""

    model_config = ConfigDict(extra="forbid")

    name: FileName
    num_documents: Count
    num_sentences: Count
    num_tokens: Count
    files: dict[FileName, FileEntry]

    @model_validator(mode="after")
    def _has_its_arrays(self) -> Self:
        for part in PARTS:
            if f"{self.name}.{part}.npy" not in self.files:
                raise ValueError(f"{self.name}.{part}.npy is not among its files")
        return self


class ShardIndex(BaseModel):
    """The content of index.json; nothing in it depends on when or how fast it was made."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = VERSION
    dtype: Literal["uint16", "uint32"]
    vocab_size: int = Field(ge=1, le=1 << 32)
    tokenizer_sha256: str
    splits: dict[str, list[ShardEntry]]
    files: dict[FileName, FileEntry] = Field(default_factory=dict)
    counts: dict[str, int] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    sources: list[dict[str, Any]] = Field(default_factory=list)

    @property
    def data_hash(self) -> str:
        """The sha256, in hex, of tokens, offsets, splits and tokenizer; not of paths or counts."""
        decisive = self.model_dump(
            mode="json", include={"dtype", "vocab_size", "tokenizer_sha256", "splits"}
        )
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def write_array(path: Path, array: np.ndarray) -> FileEntry:
    """Writes a .npy file atomically; returns its size and hash."""
    return _write(path, lambda file: np.save(file, array, allow_pickle=False))


def write_index(folder: str | Path, index: ShardIndex) -> None:
    """Writes index.json, the last file of a folder: with it the folder is complete."""
    text = json.dumps(index.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False)
    write_bytes(Path(folder) / INDEX_NAME, text.encode() + b"\n")


def write_bytes(path: Path, content: bytes) -> FileEntry:
    """Writes a file atomically; returns its size and hash."""
    return _write(path, lambda file: file.write(content))


def _write(path: Path, write: Callable[[BinaryIO], object]) -> FileEntry:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as written:
        with written.open("wb") as file:
            write(file)
        return describe_file(written)


def describe_file(path: Path) -> FileEntry:
    """Reads a file once for its size and its sha256."""
    return FileEntry(num_bytes=path.stat().st_size, sha256=file_sha256(path))


def read_index(folder: str | Path) -> ShardIndex:
    """Reads index.json; raises `ShardsError` if it is missing, damaged or of another version."""
    path = Path(folder) / INDEX_NAME
    remedy = "prepare the text again with workflows/prepare.py"
    if not path.is_file():
        raise ShardsError("no token shards here", str(folder), remedy)
    try:
        content = read_json_object(path, remedy, max_bytes=_MOST_INDEX_BYTES)
    except UserError as error:
        raise ShardsError(f"damaged index, {error.what}", str(path), remedy) from error
    try:
        version = content.get("version")
        if version != VERSION:
            what = f"shards of version {str(version)[:30]}, not {VERSION}"
            raise ShardsError(what, str(path), remedy)
        return ShardIndex.model_validate(content, strict=True)
    except ValidationError as error:
        raise ShardsError(f"damaged index, {first_fault(error)}", str(path), remedy) from error


_REMEDY = "prepare the text again with workflows/prepare.py --fresh"


@dataclass(frozen=True)
class Shard:
    """One memory-mapped shard.

    tokens [num_tokens] uint16 or uint32; sentences [num_sentences + 1] int64, the token offset of
    each sentence and the end; documents [num_documents + 1] int64, the sentence offset of each
    document and the end. No sentence and no document is empty.
    """

    name: str
    tokens: NDArray[np.unsignedinteger]
    sentences: NDArray[np.int64]
    documents: NDArray[np.int64]

    @property
    def num_documents(self) -> int:
        """Documents in this shard."""
        return len(self.documents) - 1

    @property
    def num_sentences(self) -> int:
        """Sentences in this shard."""
        return len(self.sentences) - 1

    @property
    def num_tokens(self) -> int:
        """Tokens in this shard, special tokens not among them."""
        return len(self.tokens)


@dataclass(frozen=True)
class TokenShards:
    """The shards of one split, in the order of the corpus, and what they were made with."""

    folder: Path
    split: str
    shards: list[Shard]
    vocab_size: int
    tokenizer_hash: str
    data_hash: str

    @property
    def num_documents(self) -> int:
        """Documents in the split."""
        return sum(shard.num_documents for shard in self.shards)

    @property
    def num_sentences(self) -> int:
        """Sentences in the split."""
        return sum(shard.num_sentences for shard in self.shards)

    @property
    def num_tokens(self) -> int:
        """Tokens in the split."""
        return sum(shard.num_tokens for shard in self.shards)


def heldout_bytes_per_token(index: ShardIndex) -> float | None:
    """The bytes of held-out text that a token stands for; None where they were not counted."""
    num_bytes = index.counts.get(HELDOUT_BYTES)
    tokens = sum(entry.num_tokens for entry in index.splits.get("heldout", []))
    return num_bytes / tokens if num_bytes and tokens else None


def token_dtype(vocab_size: int) -> Literal["uint16", "uint32"]:
    """The smallest of the two token types that holds every id."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def write_shard(
    folder: str | Path, name: str, documents: Iterable[list[list[int]]], dtype: DTypeLike
) -> ShardEntry:
    """Writes documents of sentences of token ids as one shard.

    Empty sentences, and documents without any other, are left out.
    """
    tokens: list[int] = []
    sentence_ends: list[int] = [0]
    document_ends: list[int] = [0]
    for document in documents:
        for sentence in document:
            if sentence:
                tokens.extend(sentence)
                sentence_ends.append(len(tokens))
        if len(sentence_ends) - 1 > document_ends[-1]:
            document_ends.append(len(sentence_ends) - 1)
    return write_shard_arrays(
        folder,
        name,
        np.asarray(tokens, dtype=dtype),
        np.asarray(sentence_ends, dtype=np.int64),
        np.asarray(document_ends, dtype=np.int64),
    )


def write_shard_arrays(
    folder: str | Path,
    name: str,
    tokens: NDArray[np.unsignedinteger],
    sentences: NDArray[np.int64],
    documents: NDArray[np.int64],
) -> ShardEntry:
    """Writes the three arrays of a `Shard`, each under a temporary name, then renamed."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for part, array in zip(PARTS, (tokens, sentences, documents), strict=True):
        files[f"{name}.{part}.npy"] = write_array(folder / f"{name}.{part}.npy", array)
    return ShardEntry(
        name=name,
        num_documents=len(documents) - 1,
        num_sentences=len(sentences) - 1,
        num_tokens=len(tokens),
        files=files,
    )


def open_shards(folder: str | Path, split: str = "train") -> TokenShards:
    """Memory-maps the shards of a split.

    Raises `ShardsError` for a missing split, a missing file, or a file of another size than
    index.json says; contents are compared by `verify_shards` only, which reads every byte.
    """
    folder = Path(folder)
    index = read_index(folder)
    if split not in index.splits:
        raise ShardsError(
            f"no split {split!r}", str(folder), f"it has {', '.join(sorted(index.splits))}"
        )
    shards = [_open_shard(folder, entry, index.dtype) for entry in index.splits[split]]
    return TokenShards(
        folder, split, shards, index.vocab_size, index.tokenizer_sha256, index.data_hash
    )


def _open_shard(folder: Path, entry: ShardEntry, dtype: str) -> Shard:
    for name, file in entry.files.items():
        _check_size(folder / name, file)
    shard = map_shard(folder, entry.name)
    offsets = ((shard.sentences, "int64"), (shard.documents, "int64"))
    for array, expected in ((shard.tokens, dtype), *offsets):
        if array.dtype != expected or array.ndim != 1:
            where = str(folder / entry.name)
            raise ShardsError(f"{array.dtype} where {expected} belongs", where, _REMEDY)
    return shard


def map_shard(folder: Path, name: str) -> Shard:
    """Memory-maps the arrays of one shard as they are; `open_shards` compares them with the index.

    Raises `ShardsError` for a file that is no array.
    """
    try:
        arrays = [
            np.load(folder / f"{name}.{part}.npy", mmap_mode="r", allow_pickle=False)
            for part in PARTS
        ]
    # What numpy raises for a header that is none; a FIFO would have it wait, and is no file.
    except (OSError, ValueError, EOFError, SyntaxError, TypeError, OverflowError) as error:
        raise ShardsError("damaged shards", str(folder / name), _REMEDY) from error
    return Shard(name, *arrays)


def _check_size(path: Path, entry: FileEntry) -> None:
    size = path.stat().st_size if path.is_file() else None
    if size != entry.num_bytes:
        actual = "missing" if size is None else f"{size} bytes"
        raise ShardsError(
            f"damaged shards ({actual}, not {entry.num_bytes} bytes)", str(path), _REMEDY
        )


def verify_shards(folder: str | Path) -> ShardIndex:
    """Checks every file's hash and every shard's offsets against index.json.

    Raises `ShardsError` at the first difference and names the file.
    """
    folder = Path(folder)
    index = read_index(folder)
    entries = [entry for entries in index.splits.values() for entry in entries]
    files = dict(index.files)
    for entry in entries:
        files.update(entry.files)
    if TOKENIZER_NAME not in files and (folder / TOKENIZER_NAME).exists():
        raise ShardsError(f"the index lacks {TOKENIZER_NAME}", str(folder), _REMEDY)
    for name, expected in files.items():
        _check_size(folder / name, expected)
        if describe_file(folder / name) != expected:
            raise ShardsError(
                "damaged shards (sha256 differs)", str(folder / name), "prepare it again"
            )
    for entry in entries:
        _check_offsets(folder, _open_shard(folder, entry, index.dtype), entry, index.vocab_size)
    return index


def _check_offsets(folder: Path, shard: Shard, entry: ShardEntry, vocab_size: int) -> None:
    counts = (shard.num_tokens, shard.num_sentences, shard.num_documents)
    problems = {
        "counts differ from index.json": counts
        != (entry.num_tokens, entry.num_sentences, entry.num_documents),
        "an empty sentence": _not_rising(shard.sentences, shard.num_tokens),
        "an empty document": _not_rising(shard.documents, shard.num_sentences),
        "a token outside the vocabulary": bool(
            shard.num_tokens and int(shard.tokens.max()) >= vocab_size
        ),
    }
    for problem, is_present in problems.items():
        if is_present:
            raise ShardsError(
                f"invalid shard ({problem})", str(folder / shard.name), "prepare again"
            )


def _not_rising(offsets: NDArray[np.int64], end: int) -> bool:
    return bool(
        len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != end or np.any(np.diff(offsets) < 1)
    )


def main(arguments: Sequence[str]) -> int:
    """Runs `verify DIR`: one line and exit code 0, or what is wrong and 2."""
    if len(arguments) != 2 or arguments[0] != "verify":
        sys.stderr.write("usage: python -m bert_core.text.shards verify DIR\n")
        return 2
    try:
        index = verify_shards(arguments[1])
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for split, entries in index.splits.items():
        documents = sum(entry.num_documents for entry in entries)
        tokens = sum(entry.num_tokens for entry in entries)
        sys.stdout.write(
            f"{split}: {len(entries)} shards, {documents:,} documents, {tokens:,} tokens: intact\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
