"""SQuAD's JSON, version 1.1 or 2.0 -> questions, each with its context and its gold answers."""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_core.tasks.tables import TaskDataError

_LAYOUT = "SQuAD's layout is data, paragraphs, context, qas, answers"


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


def _member(values: object, name: str, kind: type, where: str) -> Any:  # noqa: ANN401 - JSON
    found = values.get(name) if isinstance(values, dict) else None
    if not isinstance(found, kind):
        raise TaskDataError(f"no {name}", where, _LAYOUT)
    return found


def _text(values: object, name: str, where: str) -> str:
    text = _member(values, name, str, where)
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
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise TaskDataError("cannot read", str(path), str(error).splitlines()[0]) from error
