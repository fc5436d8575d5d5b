"""Examples that a run does not learn from: a file of them, such as the suspects of an audit.

A row names an example by its place in the training file (`where`) and its texts (`text`, and
`second` of a pair). What names none is an error: the data may have changed.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_core.errors import UserError
from bert_core.tasks.classification import Classification
from bert_core.tasks.tables import Record, column, read_table
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task

WHERE = "where"
TEXTS = ("text", "second")
"""The columns that name an example: its place, and its texts."""
SUFFIXES = (".csv", ".jsonl")

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"'*[+-]?\d+(\.\d+)?")


def place_of(where: str) -> str:
    """The place of an example without folders: `train.tsv:12`; an address stays as it is."""
    return where if "://" in where else Path(where).name


def as_cell(text: str) -> str:
    """The text as a cell of CSV: what a spreadsheet takes for a formula begins with an apostrophe.

    (CSV injection, OWASP.) Numbers stay as they are. `of_cell` gives the text back.
    """
    return f"'{text}" if _is_formula(text) else text


def of_cell(cell: str) -> str:
    """The text of such a cell."""
    return cell[1:] if cell.startswith("'") and _is_formula(cell) else cell


def _is_formula(text: str) -> bool:
    """Whether it is one behind its apostrophes: those that were there, and ours."""
    return _FORMULA.match(text) is not None and _NUMBER.fullmatch(text) is None


def excluded(task: Task, file: str, examples: Sequence[Any]) -> set[int]:
    """The numbers of the examples that a CSV or JSONL file names.

    Raises `UserError` for another kind of file or task, and for a row that names no example.
    """
    path = Path(file)
    if path.suffix not in SUFFIXES:
        raise UserError("unknown kind of file", f"--exclude {file}", f"use {' or '.join(SUFFIXES)}")
    if not isinstance(task, Classification | Tagging):
        what = "examples of labels and of tags can be left out, not of other tasks"
        raise UserError(what, f"--exclude {file}", "leave it out")
    if not path.is_file():
        raise UserError("no such file", f"--exclude {file}", "check the path")
    by_place: dict[str, list[int]] = {}
    for number, example in enumerate(examples):
        by_place.setdefault(place_of(example.where), []).append(number)
    found: set[int] = set()
    # A text of several lines is no quote that was left open: the file was written by a program.
    for record in read_table(path, max_skipped=1):
        place = place_of(_text(record, WHERE, path))
        there = by_place.get(place, [])
        same = [number for number in there if _has_texts(task, examples[number], record, path)]
        if not same:
            what = "another text at" if there else "no training example at"
            remedy = "the data must be those that were audited: audit these"
            raise UserError(f"{what} {place}", record.where, remedy)
        found.update(same)
    return found


def _has_texts(task: Task, example: Any, record: Record, path: Path) -> bool:  # noqa: ANN401
    texts = task.texts(example)
    names = TEXTS[: len(texts)]
    return [_text(record, name, path) for name in names] == texts


def _text(record: Record, name: str, path: Path) -> str:
    value = str(column(record, name))
    return of_cell(value) if path.suffix == ".csv" else value
