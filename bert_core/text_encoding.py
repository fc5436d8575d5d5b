"""Text files in any Unicode encoding: named by a byte order mark, else UTF-8."""

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TextIO

from bert_core.errors import UserError

_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Encodings by the byte order marks that files in them begin with, the longest first."""
_HEAD_BYTES = 1 << 12
_NUL_SHARE = 0.1


def lone_surrogate(text: str) -> int | None:
    """The index of the first half of a surrogate pair, which no encoding can write, or None."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return error.start
    return None


def how_to_convert(path: str, encoding: str | None = None) -> str:
    """The command that makes UTF-8 of a file, whole as a shell takes it; two of no known encoding.

    It writes another file, since the encoding may be guessed wrong.
    """
    files = f"{quote(path)} > {quote('converted' + Path(path).suffix)}"
    if encoding:
        return f"convert it with: iconv -f {encoding} -t UTF-8 {files}"
    return (
        f"convert it, for example with: iconv -f WINDOWS-1252 -t UTF-8 {files}"
        f" - or drop what is invalid with: iconv -f UTF-8 -t UTF-8 -c {files}"
    )


def encoding_by_mark(head: bytes) -> str | None:
    """The encoding that a byte order mark names, None for UTF-8."""
    return next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)


def unmarked_encoding(head: bytes) -> str | None:
    """Returns iconv's name for the encoding of UTF-16 or UTF-32 text without a mark.

    Every tenth byte of it is NUL, or more; None where that is not so.
    """
    head = head[: min(len(head), _HEAD_BYTES)]
    nuls = [head[offset::4].count(0) for offset in range(4)]
    if sum(nuls) <= len(head) * _NUL_SHARE:
        return None
    if min(nuls[1], nuls[2]) * 5 >= len(head):
        return "UTF-32LE" if nuls[3] > nuls[0] else "UTF-32BE"
    return "UTF-16LE" if nuls[1] + nuls[3] > nuls[0] + nuls[2] else "UTF-16BE"


@contextmanager
def open_text(
    path: Path, error: type[UserError] = UserError, *, newline: str | None = None
) -> Iterator[TextIO]:
    """Opens a file for reading text; `newline` as for `open`.

    Raises `error`, with line and byte, for text that is neither UTF-8 nor marked otherwise, also
    where that is found within the block, and OSError.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    encoding = encoding_by_mark(head)
    _refuse_unmarked(head, str(path), error)
    try:
        with path.open(encoding=encoding or "utf-8-sig", newline=newline) as file:
            yield file
    except UnicodeDecodeError as cause:
        if encoding:
            raise _damaged(encoding, str(path), error) from cause
        with path.open("rb") as lines:
            raise _not_utf8(lines, str(path), error) from cause


def decode_text(content: bytes, where: str, error: type[UserError] = UserError) -> str:
    """The text of a whole file; raises `error` as `open_text` does."""
    encoding = encoding_by_mark(content)
    _refuse_unmarked(content, where, error)
    try:
        return content.decode(encoding or "utf-8-sig")
    except UnicodeDecodeError as cause:
        if encoding:
            raise _damaged(encoding, where, error) from cause
        raise _not_utf8(content.splitlines(keepends=True), where, error) from cause


def _refuse_unmarked(head: bytes, where: str, error: type[UserError]) -> None:
    name = None if encoding_by_mark(head) else unmarked_encoding(head)
    if name:
        what = f"not UTF-8: {name} without a byte order mark"
        raise error(what, where, how_to_convert(where, name))


def _damaged(encoding: str, where: str, error: type[UserError]) -> UserError:
    return error(f"damaged {encoding.upper()}", where, "restore the file, or write it in UTF-8")


def _not_utf8(
    lines: "Iterator[bytes] | list[bytes]", where: str, error: type[UserError]
) -> UserError:
    offset, remedy = 0, how_to_convert(where)
    for number, line in enumerate(lines, start=1):
        try:
            line.decode()
        except UnicodeDecodeError as cause:
            return error("not UTF-8", f"{where}:{number}, byte {offset + cause.start}", remedy)
        offset += len(line)
    return error("not UTF-8", where, remedy)
