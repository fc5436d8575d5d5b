"""Texts without answers that a student learns from, because its teacher answers them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.tables import TaskDataError
from bert_core.tasks.task import Task
from bert_core.text_encoding import open_text


def unlabelled_examples(task: Task, sources: Sequence[str | Path]) -> list[Any]:
    """The examples of files, or addresses, without their answers if they have any.

    Of a classification's `.txt` each line is a text; everything else is read as training data are.
    Raises `TaskDataError` for what cannot be read, and where there is nothing.
    """
    found: list[Any] = []
    for source in sources:
        if isinstance(task, Classification) and isinstance(source, Path) and _is_text(source):
            examples: Sequence[Any] = _lines(task, source)
        else:
            examples = task.examples(source, "train")
        if not examples:
            raise TaskDataError("no unlabelled examples", str(source), "leave it out")
        found += map(without_answer, examples)
    return found


def without_answer(example: Any) -> Any:  # noqa: ANN401 - of any task
    """The same example, its answer unknown."""
    names = [name for name in ("answer", "answers", "tags") if hasattr(example, name)]
    return replace(example, **dict.fromkeys(names))


def refuse_other_choices(train: EncodedRows, unlabelled: EncodedRows, where: str) -> None:
    """Raises `TaskDataError` where examples have other numbers of choices than those of train."""
    ours, theirs = (int(rows.rows_per_item.max(initial=1)) for rows in (train, unlabelled))
    if ours != theirs:
        what = f"{theirs} choices where the training examples have {ours}"
        raise TaskDataError(what, where, "give examples with as many")


def _is_text(path: Path) -> bool:
    return path.suffix == ".txt"


def _lines(task: Classification, path: Path) -> list[Text]:
    if task.reads_pairs:
        remedy = "give a table with the columns of train"
        raise TaskDataError("lines of text, and the task reads pairs", str(path), remedy)
    if not path.is_file():
        raise TaskDataError("no such file", str(path), "check the path")
    with open_text(path) as file:
        lines = [line.strip() for line in file]
    return [Text(line, None, None, f"{path}:{n}") for n, line in enumerate(lines, 1) if line]
