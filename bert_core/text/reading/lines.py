"""Bytes of a file go in; its lines as text, with the byte where each begins, come out."""

from collections import Counter
from collections.abc import Iterator
from typing import IO

from bert_core.text.reading.sources import CorpusError, CorpusPart
from bert_core.text_encoding import how_to_convert, unmarked_encoding

_LEAST_INVALID, _INVALID_SHARE = 10, 0.001
"""From this number and share of invalid characters on, text is taken to be in another encoding."""


def read_lines(
    stream: IO[bytes],
    part: CorpusPart,
    max_bytes: int,
    dropped: Counter[str],
    strict: bool,
    *,
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
    held = b""
    invalid = characters = 0
    unmarked: str | None = None
    while line := held + stream.readline(max_bytes - len(held)):
        held = b""
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
            line, held = line[:cut], line[cut:]
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
