"""What a user gives as --text -> the parts of files that one task reads each, and their lines.

Files, folders, globs, URIs with `s3://` and `gs://`, `hf://OWNER/NAME[:CONFIG[:SPLIT]]`,
`docs://[PACKAGE]`, and `task://NAME=DATA`, the training texts of a task.
"""

import bz2
import glob
import gzip
import io
import lzma
import os
import posixpath
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, cast

from bert_core.errors import UserError, nearest, reason_of
from bert_core.hub import HubAddress, require_datasets
from bert_core.text.documentation import documentation_files
from bert_core.text_encoding import encoding_by_mark, how_to_convert, unmarked_encoding

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

TASK_SCHEME = "task://"
PART_BYTES = 8 << 20
_BUFFER = 1 << 20
_FORMATS = {".txt": "text", ".jsonl": "jsonl", ".parquet": "parquet"}
_COMPRESSIONS = {".xz": "xz", ".gz": "gz", ".bz2": "bz2"}
_EXPANSION = {"": 1.0, "gz": 2.8, "xz": 3.6, "bz2": 3.7}
"""Bytes of text that a compressed byte of natural language stands for, roughly."""
_READABLE = ".txt, .jsonl (or .xz, .gz, .bz2 of them), .parquet or WikiExtractor's wiki_NN"
_HEAD_BYTES = 1 << 16
_EXTRACTED = re.compile(r"wiki_\d+")
"""Names of the files that WikiExtractor writes."""


class CorpusError(UserError):
    """Text that is missing, unreadable or empty."""


class UnreadableFileError(CorpusError):
    """A file that is damaged, or that may not be read; one can go on without it."""


@dataclass(frozen=True)
class CorpusPart:
    """What one task reads: a file, or the stretch of it from `start` to `end`.

    `start` and `end` count bytes of uncompressed text files and row groups of parquet files; an
    `end` of None means all of it. `filesystem` is the URI that `pyarrow.fs` opens, or empty for a
    local path. `num_bytes` is what progress is measured by.
    """

    typed: str
    kind: str
    path: str
    num_bytes: int
    compression: str = ""
    filesystem: str = ""
    start: int = 0
    end: int | None = None

    @property
    def text_bytes(self) -> float:
        """About how much text it holds, for progress and free disk only."""
        return self.num_bytes * _EXPANSION[self.compression]

    def as_dict(self) -> dict[str, Any]:
        """The fields, for JSON and for a task's arguments."""
        return asdict(self)


def find_parts(
    texts: Iterable[str],
    text_column: str,
    skipped: Counter[str],
    *,
    unreadable: list[UnreadableFileError] | None = None,
    option: str = "text_column",
) -> Iterator[CorpusPart]:
    """Yields the parts of everything typed, in a fixed order; folders are walked by sorted path.

    Files of a folder whose extension says no format are left out and counted in `skipped`. Files
    of text and records are divided every PART_BYTES. Raises `CorpusError` for what does not
    exist, cannot be read, or lacks the text column, which `option` names; where `unreadable` is
    given, what is known by now of files that cannot be read is put there instead.
    """
    for typed in texts:
        if typed.startswith("docs://"):
            for name in typed.removeprefix("docs://").split(","):
                package = name or "stdlib"
                num_bytes = sum(path.stat().st_size for path in documentation_files(package))
                yield CorpusPart(f"docs://{name}", "documentation", package, num_bytes)
        elif typed.startswith("hf://"):
            require_datasets(HubAddress.of(typed))
            yield CorpusPart(typed, "hugging_face", typed.removeprefix("hf://"), 0)
        elif typed.startswith(TASK_SCHEME):
            yield _part_of_task(typed)
        else:
            find_files = _find_remote_files if "://" in typed else _find_local_files
            for part in find_files(typed, skipped):
                try:
                    _check_permission(part)
                    yield from _divide(part, text_column, option)
                except UnreadableFileError as error:
                    if unreadable is None:
                        raise
                    unreadable.append(error)


def evaluation_parts(texts: Iterable[str]) -> list[CorpusPart]:
    """The parts of `NAME=DATA`, labelled data that models are evaluated on."""
    return [_part_of_task(typed, "--exclude ") for typed in texts]


def _part_of_task(typed: str, prefix: str = TASK_SCHEME) -> CorpusPart:
    """What `NAME=DATA` names behind its scheme or option; its size is that of all its files."""
    named = typed.removeprefix(TASK_SCHEME)
    where, (name, _, data) = f"{prefix}{named}", named.partition("=")
    if not name or not data:
        raise CorpusError("no data of a task", where, f"write {prefix}mrpc=glue/MRPC")
    from bert_core.tasks.catalog import TASKS

    if name not in TASKS:
        known = ", ".join(TASKS)
        raise CorpusError(f"no such task{nearest(name, TASKS)}", where, f"give one of {known}")
    if "://" in data:
        return CorpusPart(typed, "task", f"{name}={data}", 0)
    path = Path(data).expanduser().absolute()
    if not path.exists():
        raise CorpusError("no such file or folder", where, "check the path")
    files = _visible_files(path) if path.is_dir() else [path]
    return CorpusPart(typed, "task", f"{name}={path}", sum(file.stat().st_size for file in files))


def _find_local_files(typed: str, skipped: Counter[str]) -> Iterator[CorpusPart]:
    path = Path(typed).expanduser().absolute()  # tasks run in other folders
    if path.is_file():
        files = [path]
    elif path.is_dir():
        visible = _visible_files(path)
        files = [file for file in visible if _format(file.name)]
        skipped["files_of_unknown_format"] += len(visible) - len(files)
    else:
        files = [Path(file) for file in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 - absolute globs
        files = [file for file in files if file.is_file()]
    if not files:
        what = "no text files in this folder" if path.is_dir() else "no such file or folder"
        raise CorpusError(what, typed, f"give {_READABLE} files, a folder or a glob")
    for file in files:
        yield _part_of_file(typed, str(file), file.stat().st_size)


def _visible_files(folder: Path) -> list[Path]:
    """Its files and those of its folders, sorted, without hidden ones and what is in them.

    Raises `CorpusError` for a folder that cannot be looked into.
    """

    def fail(error: OSError) -> None:
        raise CorpusError(
            f"cannot read the folder ({error.strerror})", error.filename, "change its permissions"
        ) from error

    files: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        files += [Path(place) / name for name in names if not _is_hidden(name)]
    return sorted(path for path in files if path.is_file())


def _check_permission(part: CorpusPart) -> None:
    if not part.filesystem and not os.access(part.path, os.R_OK, effective_ids=True):
        raise UnreadableFileError("no permission to read", part.path, "change its permissions")


def _find_remote_files(typed: str, skipped: Counter[str]) -> Iterator[CorpusPart]:
    from pyarrow.fs import FileSelector, FileType

    address, _, query = typed.partition("?")
    wild = next((i for i, char in enumerate(address) if char in "*["), None)
    root = address if wild is None else address[: address.rindex("/", 0, wild)]
    uri = f"{root}?{query}" if query else root
    try:
        filesystem, path = _filesystem(uri)
        info = filesystem.get_file_info(path)
        if info.type == FileType.File:
            files = [info]
        else:
            selector = FileSelector(path, recursive=True, allow_not_found=True)
            infos = [info for info in filesystem.get_file_info(selector) if info.is_file]
            pattern = "" if wild is None else path + address[len(root) :]
            visible = [info for info in infos if not _is_hidden(info.path[len(path) :])]
            files = [info for info in visible if _is_meant(info.path, pattern)]
            files.sort(key=lambda info: PurePosixPath(info.path).parts)
            skipped["files_of_unknown_format"] += 0 if pattern else len(visible) - len(files)
    except OSError as error:
        remedy = f"check the address and credentials; {reason_of(error)}"
        raise CorpusError("cannot read", typed, remedy) from error
    if not files:
        raise CorpusError("no text files at this address", typed, f"give {_READABLE} files")
    for file in files:
        yield replace(_part_of_file(typed, file.path, file.size), filesystem=uri)


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(path).parts)


def _is_meant(path: str, pattern: str) -> bool:
    """Whether a path matches the glob, whose `*` stays in a folder; without one, is readable."""
    if not pattern:
        return _format(path) is not None
    same_depth = len(PurePosixPath(path).parts) == len(PurePosixPath(pattern).parts)
    return same_depth and PurePosixPath(path).match(pattern)


def _filesystem(uri: str) -> tuple["FileSystem", str]:
    from pyarrow import ArrowInvalid
    from pyarrow.fs import FileSystem

    try:
        return FileSystem.from_uri(uri)
    except ArrowInvalid as error:
        remedy = "give a path, or a file://, s3://, gs://, hf:// or docs:// address"
        raise CorpusError("no such kind of address", uri, remedy) from error


def _format(name: str) -> tuple[str, str] | None:
    stem, extension = os.path.splitext(name)  # noqa: PTH122 - remote names are no local paths
    compression = _COMPRESSIONS.get(extension, "")
    if compression:
        extension = os.path.splitext(stem)[1]  # noqa: PTH122
    kind = _FORMATS.get(extension)
    if kind is None and _EXTRACTED.fullmatch(posixpath.basename(stem + extension)):
        kind = "text"
    if kind is None or (compression and kind == "parquet"):
        return None
    return kind, compression


def _part_of_file(typed: str, path: str, num_bytes: int) -> CorpusPart:
    kind = _format(path)
    if kind is None:
        raise CorpusError("unknown text format", path, f"give {_READABLE} files")
    return CorpusPart(typed, kind[0], path, num_bytes, compression=kind[1])


def _divide(part: CorpusPart, text_column: str, option: str) -> Iterator[CorpusPart]:
    if part.kind == "parquet":
        yield from _row_groups(part, text_column, option)
    elif part.num_bytes <= PART_BYTES or not is_divisible(part):
        yield part
    else:
        for start in range(0, part.num_bytes, PART_BYTES):
            end = min(start + PART_BYTES, part.num_bytes)
            yield replace(part, start=start, end=end, num_bytes=end - start)


def _row_groups(part: CorpusPart, text_column: str, option: str) -> Iterator[CorpusPart]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    with open_part(part) as stream:
        try:
            file = ParquetFile(stream)
        except (ArrowException, OSError, ValueError) as error:
            raise UnreadableFileError(
                "damaged parquet file", part.path, "restore the file"
            ) from error
        names = file.schema_arrow.names
        if text_column not in names:
            raise missing_column(text_column, names, part.path, option)
        groups = [file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)]
    for index, num_bytes in enumerate(groups):
        yield replace(part, start=index, end=index + 1, num_bytes=num_bytes)


def missing_column(
    column: str, names: Iterable[str], where: str, option: str = "text_column"
) -> CorpusError:
    """The error for records without a column, with the nearest name as the remedy."""
    names = list(names)
    nearest = get_close_matches(column, names, n=1) or names[:1]
    return CorpusError(
        f"no column {column!r}",
        where,
        f"give --{option}, for example {nearest[0]}" if nearest else f"give --{option}",
    )


def damaged_file(part: CorpusPart, error: Exception) -> UnreadableFileError:
    """The error for a file that breaks off or does not decompress."""
    reason = next(iter(str(error).splitlines()), "").rstrip(".")
    what = f"cannot read to the end ({reason})"
    return UnreadableFileError(what, part.path, "restore the file")


def is_divisible(part: CorpusPart) -> bool:
    """Whether reading can begin at any byte of a file: no compressed one, nor one in UTF-16."""
    if part.compression:
        return False
    with _open_as_it_is(part) as stream:
        return _recoding(stream.read(_HEAD_BYTES)) is None


def open_part(part: CorpusPart) -> IO[bytes]:
    """Opens the file of a part for reading bytes, uncompressed; raises `CorpusError`.

    Text that begins with the byte order mark of UTF-16 or UTF-32 is given in UTF-8.
    """
    stream = _open_as_it_is(part)
    if part.kind == "parquet" or part.start:
        return stream
    try:
        recoding = _recoding(stream.read(_HEAD_BYTES))
        stream.seek(0)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise damaged_file(part, error) from error
    return io.BufferedReader(_Recoded(stream, *recoding), _BUFFER) if recoding else stream


def _recoding(head: bytes) -> tuple[str, str | None] | None:
    """Encoding and `newline`, as `open` has them, of a file that is not in lines of UTF-8.

    Lines that end in a CR alone are those of old Macintoshes.
    """
    encoding = encoding_by_mark(head)
    if encoding:
        return encoding, ""
    return ("utf-8-sig", None) if b"\r" in head and b"\n" not in head else None


def _open_as_it_is(part: CorpusPart) -> IO[bytes]:
    opened = {"": _as_it_is, "xz": lzma.open, "gz": gzip.open, "bz2": bz2.open}[part.compression]
    try:
        if part.filesystem:
            filesystem, _ = _filesystem(part.filesystem)
            stream: Any = io.BufferedReader(filesystem.open_input_file(part.path), _BUFFER)
            return cast(IO[bytes], opened(stream))
        return cast(IO[bytes], opened(part.path))
    except OSError as error:
        reason = reason_of(error)
        raise UnreadableFileError("cannot read", part.path, reason) from error


def _as_it_is(source: Any) -> Any:  # noqa: ANN401 - a path, or a stream that is open
    return Path(source).open("rb", buffering=_BUFFER) if isinstance(source, str) else source


class _Recoded(io.RawIOBase):
    """The bytes of a text in UTF-8, read from a stream of it in another encoding."""

    def __init__(self, stream: IO[bytes], encoding: str, newline: str | None) -> None:
        self._text = io.TextIOWrapper(stream, encoding, newline=newline)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Goes back to the start; raises OSError for any other place."""
        if offset or whence != io.SEEK_SET:
            raise OSError("recoded text can only be read from its start")
        return self._text.seek(0)

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - a writable buffer
        try:
            content = self._text.read(len(buffer) // 4).encode()
        except UnicodeError as error:
            raise OSError(f"invalid {self._text.encoding.upper()}") from error
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._text.close()
        super().close()


_LEAST_INVALID, _INVALID_SHARE = 10, 0.001
"""From this number and share of invalid characters on, text is taken to be in another encoding."""


def read_lines(
    stream: IO[bytes],
    part: CorpusPart,
    max_bytes: int,
    dropped: Counter[str],
    *,
    strict: bool = False,
    records: bool = False,
) -> Iterator[tuple[int, str]]:
    """Yields (byte offset, stripped line) from the first line that begins in the part.

    A line longer than `max_bytes` is given in stretches, cut at a space where there is one; one
    that is a record cannot be cut, and is refused. Invalid UTF-8 is replaced and counted.
    Raises `CorpusError` for text in another encoding, and, if `strict`, for any invalid byte.
    """
    offset = part.start
    end = float("inf") if part.end is None else part.end
    if offset:
        stream.seek(offset - 1)
        while rest := stream.readline(max_bytes):
            offset += len(rest)
            if rest.endswith(b"\n"):
                break
        offset -= 1
    rest_of_line = b""
    invalid = characters = 0
    unmarked: str | None = None
    while line := rest_of_line + stream.readline(max_bytes - len(rest_of_line)):
        rest_of_line = b""
        if len(line) >= max_bytes and not line.endswith(b"\n"):
            if records:
                what = f"a record of more than {max_bytes >> 20} MiB"
                remedy = "divide the record among several"
                raise CorpusError(what, f"{part.path}, byte {offset}", remedy)
            cut = line.rfind(b" ", 1)
            if cut < 0:
                # Before the last character but one: a character has four bytes at most.
                ends = range(len(line) - 4, len(line) - 8, -1)
                cut = next((end for end in ends if line[end] & 0xC0 != 0x80), ends[0])
            line, rest_of_line = line[:cut], line[cut:]
            dropped["lines_cut_for_length"] += 1
        text, replaced, nuls = _decode(line, offset, part, strict)
        if nuls and offset == 0:
            unmarked = unmarked_encoding(line)
        if replaced:
            dropped["invalid_utf8_characters_replaced"] += replaced
        invalid += replaced + nuls
        characters += len(text) + nuls
        if invalid >= _LEAST_INVALID and offset + len(line) >= end:  # the last line of the part
            _refuse_another_encoding(invalid, characters, part, unmarked)
            end = float("inf")
        yield offset, text.strip()
        offset += len(line)
    _refuse_another_encoding(invalid, characters, part, unmarked)


def _decode(line: bytes, offset: int, part: CorpusPart, strict: bool) -> tuple[str, int, int]:
    """The text without NULs, the number of characters replaced, and that of the NULs."""
    replaced = nuls = 0
    if offset == 0:
        line = line.removeprefix(b"\xef\xbb\xbf")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        if strict:
            where = f"{part.path}, byte {offset + error.start}"
            remedy = "convert the file to UTF-8, or leave --strict out to have it replaced"
            raise CorpusError("invalid UTF-8", where, remedy) from error
        text = line.decode(errors="replace")
        replaced = text.count("�") - line.count("�".encode())
    if "\0" in text:
        nuls = text.count("\0")
        text = text.replace("\0", "")
    return text, replaced, nuls


def _refuse_another_encoding(
    invalid: int, characters: int, part: CorpusPart, unmarked: str | None
) -> None:
    if invalid >= _LEAST_INVALID and invalid > characters * _INVALID_SHARE:
        is_file = not (part.compression or part.filesystem)
        raise CorpusError(
            f"not UTF-8: {invalid:,} of {characters:,} characters are invalid",
            part.path,
            how_to_convert(part.path if is_file else "FILE", unmarked),
        )
