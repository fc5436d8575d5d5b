"""index.json of a folder of token shards: what stands there, and what every file must be.

Its content depends on the text, the tokenizer and the settings alone.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, Self

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from bert_core.disk import file_sha256, written_whole
from bert_core.errors import UserError
from bert_core.strict_json import first_fault, is_plain_name, read_json_object

INDEX_NAME = "index.json"
TOKENIZER_NAME = "tokenizer.json"
TOKEN_COUNTS_NAME = "token_counts.npy"
VERSION = 1

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
    """Writes a .npy file atomically and says what it must be."""
    return _write(path, lambda file: np.save(file, array, allow_pickle=False))


def write_index(folder: str | Path, index: ShardIndex) -> None:
    """Writes index.json, the last file of a folder: with it the folder is complete."""
    text = json.dumps(index.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False)
    write_bytes(Path(folder) / INDEX_NAME, text.encode() + b"\n")


def write_bytes(path: Path, content: bytes) -> FileEntry:
    """Writes a file atomically and says what it must be."""
    return _write(path, lambda file: file.write(content))


def _write(path: Path, write: Callable[[BinaryIO], object]) -> FileEntry:
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as written:
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
