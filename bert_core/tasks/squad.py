"""SQuAD's JSON, version 1.1 or 2.0 -> questions, each with its context and its gold answers.

Also from tables with the columns that SQuAD has on the Hugging Face Hub.
"""

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_core.tasks.tables import Record, TaskDataError

_LAYOUT = "SQuAD's layout is data, paragraphs, context, qas, answers"
_COLUMNS = "SQuAD's columns are id, context, question, answers: {text: [...], answer_start: [...]}"


@dataclass(frozen=True, slots=True)
class Answer:
    """A passage of a context, and the character at which it is said to start."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context.

    `answers` is empty where the context holds none, None where the answer is not known.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None
    title: str = ""
    where: str = ""

    @property
    def columns(self) -> dict[str, Any]:
        """What slices may be made by."""
        return {"id": self.id, "title": self.title}


def read_squad(path: Path) -> list[Question]:
    """Reads a file of either version, also one compressed by xz or gzip.

    Raises `TaskDataError`, naming the line or the question, for what is damaged.
    """
    questions = []
    for article in _member(_load(path), "data", list, str(path)):
        title = str(article.get("title", "")) if isinstance(article, dict) else ""
        title = title.encode(errors="replace").decode()
        for paragraph in _member(article, "paragraphs", list, f"{path}, article {title}"):
            where = f"{path}, article {title}"
            context = _text(paragraph, "context", where)
            for record in _member(paragraph, "qas", list, where):
                name = _text(record, "id", where)
                place = f"{path}, question {name}"
                questions.append(
                    Question(
                        id=name,
                        question=_text(record, "question", place),
                        context=context,
                        answers=_answers(record, place),
                        title=title,
                        where=place,
                    )
                )
    return questions


def read_squad_table(records: Iterable[Record]) -> list[Question]:
    """Questions from a table: `answers` holds two lists, the texts and where they start.

    A record without `answers` has None. Raises `TaskDataError`, with the record's place, for what
    is damaged.
    """
    contexts: dict[str, str] = {}
    questions = []
    for record in records:
        name, question, context = (
            _text(record.values, column, record.where, _COLUMNS)
            for column in ("id", "question", "context")
        )
        questions.append(
            Question(
                id=name,
                question=question,
                context=contexts.setdefault(context, context),  # held once
                answers=_listed_answers(record),
                title=str(record.values.get("title", "")),
                where=record.where,
            )
        )
    return questions


def _listed_answers(record: Record) -> tuple[Answer, ...] | None:
    found = record.values.get("answers")
    if found is None:
        return None
    texts, starts = (
        _member(found, name, list, record.where, _COLUMNS) for name in ("text", "answer_start")
    )
    if len(texts) != len(starts):
        raise TaskDataError(
            f"{len(texts)} answers that start at {len(starts)} places", record.where, _COLUMNS
        )
    pairs = [{"text": text, "start": start} for text, start in zip(texts, starts, strict=True)]
    return tuple(
        Answer(
            _text(pair, "text", record.where, _COLUMNS),
            _member(pair, "start", int, record.where, _COLUMNS),
        )
        for pair in pairs
    )


def _answers(record: dict[str, Any], where: str) -> tuple[Answer, ...] | None:
    impossible = record.get("is_impossible", False)
    if "answers" not in record:
        return () if impossible else None
    found = tuple(
        Answer(_text(each, "text", where), _member(each, "answer_start", int, where))
        for each in _member(record, "answers", list, where)
    )
    if found and impossible:
        raise TaskDataError("is_impossible contradicts the answers", where, "mend the record")
    return found


def _member(values: object, name: str, kind: type, where: str, layout: str = _LAYOUT) -> Any:  # noqa: ANN401 - JSON
    found = values.get(name) if isinstance(values, Mapping) else None
    if not isinstance(found, kind):
        raise TaskDataError(f"no {name}", where, layout)
    return found


def _text(values: object, name: str, where: str, layout: str = _LAYOUT) -> str:
    text = _member(values, name, str, where, layout)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TaskDataError(f"half a surrogate pair in {name}", where, "mend the text") from error
    return text


def _load(path: Path) -> object:
    import gzip
    import lzma

    opened = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    try:
        with opened(path, "rb") as file:
            return json.loads(file.read())
    except json.JSONDecodeError as error:
        raise TaskDataError("not JSON", f"{path}:{error.lineno}", "restore the file") from error
    except UnicodeDecodeError as error:
        raise TaskDataError("not UTF-8", str(path), "convert the file") from error
    except (ValueError, RecursionError) as error:  # a number, or nesting, beyond Python's limits
        raise TaskDataError("not JSON", str(path), next(iter(str(error).splitlines()))) from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise TaskDataError("cannot read", str(path), str(error).splitlines()[0]) from error
