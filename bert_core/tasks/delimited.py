"""Reads the cells of TSV and CSV files, and counts lost lines."""

import csv
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from bert_core.errors import TaskDataError
from bert_core.text_encoding import open_text

MAX_SKIPPED = 0.01
"""The share of a file's lines that may be lost before the file is refused."""

HasHeader = Annotated[
    bool,
    Field(description="whether TSV and CSV start with column names; else columns are 0, 1 …"),
]
MaxSkipped = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="largest share of lost lines in a TSV or CSV file: left out by"
        " skip_ragged, or inside an unclosed quote",
    ),
]

Lines = Iterator[tuple[int, list[str]]]
"""The number of each line, from 1, and its cells."""

_LOG = logging.getLogger(__name__)
_FEWEST_SWALLOWED = 3
_FEWEST_QUOTED = 10
_QUOTED = re.compile(r'"(?:[^"]++|"")*+"')
_NAME_IT_CSV = "if quotes only enclose cells, rename the file to .csv, where tabs work too"
_SEP_LINE = re.compile(r'"?sep=([,;\t|])"?')


def read_tsv(path: Path) -> Lines:
    """Yields number and cells of each line, divided by tabs alone."""
    with open_text(path, TaskDataError, newline=line_end(path)) as file:
        for number, line in enumerate(file, start=1):
            yield number, line.rstrip("\r\n").split("\t")


def line_end(path: Path) -> str | None:
    """Returns the `newline` argument for `open`: line feeds end lines, so that CR is a character.

    None, which is any line end, where the file has no line feed: an old Macintosh wrote it.
    """
    with open_text(path, TaskDataError, newline="") as file:
        return (
            "\n" if any("\n" in block for block in iter(lambda: file.read(1 << 20), "")) else None
        )


def read_csv(path: Path) -> Lines:
    """Yields the first line and the cells of each record.

    Raises `TaskDataError` where a quote is not closed. A cell is as long as the file at most, so it
    has no limit of its own: the file is what memory must hold in any case.
    """
    longest = max(path.stat().st_size, 1)
    delimiter, is_declared = _delimiter(path)
    with open_text(path, TaskDataError, newline="") as file:
        reader = csv.reader(file, strict=True, delimiter=delimiter)
        if is_declared:
            next(reader)
        while True:
            line = reader.line_num + 1
            # The limit is the process's: another reader's, and another thread's, is given back.
            before = csv.field_size_limit(longest)
            try:
                cells = next(reader, None)
            except csv.Error as error:
                what = "a quote that is not closed" if "end of data" in str(error) else str(error)
                raise TaskDataError(f"not CSV, {what}", f"{path}:{line}", "fix the line") from error
            finally:
                csv.field_size_limit(before)
            if cells is None:
                return
            yield line, cells


def _delimiter(path: Path) -> tuple[str, bool]:
    """The delimiter of a CSV file, and whether its first line declares it, as Excel's `sep=;`.

    Otherwise it is what the first line has most of: commas, semicolons or tabs.
    """
    with open_text(path, TaskDataError) as file:
        first = next((line for line in file if line.strip()), "").rstrip("\r\n")
    declared = _SEP_LINE.fullmatch(first)
    if declared is not None:
        return declared[1], True
    outside_quotes = re.sub(r'"[^"]*"', "", first)
    return max(",;\t", key=outside_quotes.count), False


def usual_width(read: Callable[[Path], Lines], path: Path) -> int:
    """The number of columns that most lines have; of equally many, the greater."""
    widths = Counter(len(cells) for _, cells in read(path) if not is_blank(cells))
    return max(widths, key=lambda width: (widths[width], width), default=0)


def is_blank(cells: Sequence[str]) -> bool:
    """Whether a line is empty, or all its cells are, as below a spreadsheet."""
    return not any(cells)


class SkippedLines:
    """Counts the lines of a file that are lost, and refuses the file where they are too many."""

    def __init__(self, path: Path, skip_ragged: bool, max_skipped: float) -> None:
        self.path, self.skip_ragged, self.max_skipped = path, skip_ragged, max_skipped
        self.lines = 0
        self.counts: Counter[str] = Counter()
        self.first: dict[str, int] = {}
        self.quotes: Counter[bool] = Counter()
        self.quoted_lines = 0
        self.first_quoted: tuple[int, str] | None = None

    def quoted(self, line: int, cells: Sequence[str], *, is_header: bool = False) -> None:
        """Counts the cells of a TSV line that CSV's quotes may enclose, and other quotes.

        Raises `TaskDataError` for the names of columns in quotes.
        """
        before = self.quotes[True]
        for cell in cells:
            if '"' in cell:
                is_quoted = _QUOTED.fullmatch(cell) is not None
                self.quotes[is_quoted] += 1
                if is_quoted and (self.first_quoted is None or _has_doubled(cell)):
                    self.first_quoted = line, cell
                if is_quoted and is_header:
                    self._refuse_quotes(f"the name of a column in quotes, {cell[:40]}", line)
        self.quoted_lines += self.quotes[True] > before

    def _refuse_quotes(self, what: str, line: int) -> None:
        raise TaskDataError(what, f"{self.path}:{line}", f"in .tsv quotes are text; {_NAME_IT_CSV}")

    def _tell_quotes(self) -> None:
        """Refuses a TSV file whose quotes enclose cells, or logs that they may."""
        if self.first_quoted is None or self.quotes[False]:
            return
        (line, cell), count = self.first_quoted, self.quotes[True]
        what = f"{count:,} cells in quotes, as {cell[:40]}"
        if _has_doubled(cell) or self.quoted_lines >= max(self.lines, _FEWEST_QUOTED):
            self._refuse_quotes(what, line)
        _LOG.warning("%s: %s:%s; in .tsv quotes are text; %s", what, self.path, line, _NAME_IT_CSV)

    def ragged(self, line: int, found: int, width: int, *, is_open: bool = False) -> None:
        """Counts a line of another number of columns, or refuses it.

        `is_open` says that a quote in one of its cells is not closed.
        """
        if not self.skip_ragged:
            remedy = "fix the line, or leave such lines out with --options.skip_ragged"
            remedy += " (evaluate.py: --options skip_ragged=true)"
            if is_open:
                remedy += f"; {_NAME_IT_CSV}"
            raise TaskDataError(f"{found} columns, expected {width}", f"{self.path}:{line}", remedy)
        self._count(f"of another number of columns than {width}", line, 1)

    def swallowed(self, line: int, cells: Sequence[str]) -> None:
        """Counts the lines in a quoted cell that look like records: a quote was not closed."""
        for cell in cells:
            inner = cell.split("\n")[1:-1]
            if len(inner) < _FEWEST_SWALLOWED or len(cells) < 2:
                continue
            divider, _ = _delimiter(self.path)
            if all(each.count(divider) == len(cells) - 1 for each in inner):
                self._count("that look like records, but within quotes", line, len(inner))
                self.lines += len(inner)

    def empty(self, line: int, number: int) -> None:
        """Counts empty rows between others."""
        self._count("in which all cells are empty", line, number)
        self.lines += number

    def _count(self, reason: str, line: int, number: int) -> None:
        self.counts[reason] += number
        self.first.setdefault(reason, line)

    def tell(self) -> None:
        """Logs lost lines; raises `TaskDataError` where there are too many."""
        self._tell_quotes()
        for reason, count in self.counts.items():
            place = f"{self.path}:{self.first[reason]}"
            share = count / max(self.lines, 1)
            if share > self.max_skipped:
                enough = min(1, share + 0.001)
                raise TaskDataError(
                    f"{count:,} of {self.lines:,} lines {reason} ({share:.1%})",
                    f"{place} is the first",
                    f"fix them, or allow more with --options.max_skipped {enough:.3f}"
                    f" (evaluate.py: --options max_skipped={enough:.3f})",
                )
            _LOG.warning(
                "%s of %s lines are lost, %s: %s is the first",
                *(f"{count:,}", f"{self.lines:,}", reason, place),
            )


def _has_doubled(cell: str) -> bool:
    """Whether a cell in quotes has two together within, as CSV writes one."""
    return '""' in cell[1:-1].strip('"')
