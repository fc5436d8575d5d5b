"""Bytes of a file go in; its lines as text, with the byte where each begins, come out."""

from collections import Counter
from collections.abc import Iterator
from typing import IO

from bert_core.text.reading.sources import CorpusError, CorpusPart


def read_lines(
    stream: IO[bytes], part: CorpusPart, max_bytes: int, dropped: Counter[str], strict: bool
) -> Iterator[tuple[int, str]]:
    """Yields (byte offset, stripped line) from the first line that begins in the part.

    A line longer than `max_bytes` is given in stretches, cut at a space where there is one.
    """
    offset = part.start
    if offset:
        stream.seek(offset - 1)
        while rest := stream.readline(max_bytes):
            offset += len(rest)
            if rest.endswith(b"\n"):
                break
        offset -= 1
    held = b""
    while line := held + stream.readline(max_bytes - len(held)):
        held = b""
        if len(line) >= max_bytes and not line.endswith(b"\n"):
            cut = line.rfind(b" ", 1)
            if cut < 0:
                # Before the last character but one: a character has four bytes at most.
                ends = range(len(line) - 4, len(line) - 8, -1)
                cut = next((end for end in ends if line[end] & 0xC0 != 0x80), ends[0])
            line, held = line[:cut], line[cut:]
            dropped["lines_cut_for_length"] += 1
        yield offset, _decode(line, offset, part, dropped, strict).strip()
        offset += len(line)


def _decode(line: bytes, offset: int, part: CorpusPart, dropped: Counter[str], strict: bool) -> str:
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
        dropped["invalid_utf8_characters_replaced"] += replaced
    return text.replace("\0", "") if "\0" in text else text
