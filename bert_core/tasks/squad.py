"""Questions with contexts and gold answers, from SQuAD's JSON (1.1 or 2.0) or from tables.

Tables have the columns of SQuAD on the Hugging Face Hub.
"""

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_core.errors import reason_of
from bert_core.tasks.tables import Record, TaskDataError, parse_cell
from bert_core.text_encoding import decode_text, lone_surrogate

_LAYOUT = "SQuAD's layout is data, paragraphs, context, qas, answers"
_COLUMNS = "SQuAD's columns are id, context, question, answers: {text: [...], answer_start: [...]}"
_SINGLE = ("answer", "answer_text")


@dataclass(frozen=True, slots=True)
class Answer:
    """A passage of a context, and the index of its first character according to the file."""

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
        """The columns for slices."""
        return {"id": self.id, "title": self.title}


def read_squad(path: Path) -> list[Question]:
    """Reads a file of either version, also one compressed by xz or gzip.

    In place of articles there may be paragraphs, or questions that each have their context, in a
    list or a line each. Raises `TaskDataError`, naming the line or the question, for what is
    damaged.
    """
    questions: list[Question] = []
    loaded = _load(path)
    if isinstance(loaded, Mapping) and "context" in loaded:  # a single line
        loaded = [loaded]
    articles = loaded if isinstance(loaded, list) else _member(loaded, "data", list, str(path))
    if isinstance(loaded, list) and not loaded:
        raise TaskDataError("no data", str(path), _LAYOUT)
    contexts: dict[str, str] = {}
    for article in articles:
        if not _is_header(article):
            _add_article(article, str(path), questions, contexts)
    return questions


def read_squad_table(records: Iterable[Record]) -> list[Question]:
    """Questions from a table: `answers` holds two lists, the texts and where they start.

    Or a list of answers as SQuAD's JSON has it, or a text that is one of these as JSON or Python
    write them; or `answer` and `answer_start` hold one. A record without any has None. A record may
    be a paragraph or an article, too. Raises `TaskDataError`, with the record's place, for what is
    damaged.
    """
    contexts: dict[str, str] = {}
    questions: list[Question] = []
    for record in records:
        values, where = record.values, record.where
        if _is_header(values):
            continue
        if "qas" in values or "paragraphs" in values:
            _add_article(values, where, questions, contexts)
            continue
        name = _id(values, len(questions), where, _COLUMNS)
        context = _text(values, "context", where, _COLUMNS)
        context = contexts.setdefault(context, context)  # held once
        title = str(values.get("title") or "")
        questions.append(_question(values, name, context, title, where, _COLUMNS))
    return questions


def _is_header(article: object) -> bool:
    """Whether a record describes the others, as the first of MRQA's files does."""
    return isinstance(article, Mapping) and article.keys() == {"header"}


def _add_article(
    article: object, file: str, questions: list[Question], contexts: dict[str, str]
) -> None:
    """Adds the questions of an article or a paragraph; `contexts` are those held already."""
    title = str(article.get("title") or "") if isinstance(article, Mapping) else ""
    title = title.encode(errors="replace").decode()
    where = f"{file}, article {title}"
    for paragraph in _paragraphs(article, where):
        context = _text(paragraph, "context", where)
        context = contexts.setdefault(context, context)  # held once
        for record in _member(paragraph, "qas", list, where):
            name = _id(record, len(questions), where)
            place = f"{file}, question {name}"
            questions.append(_question(record, name, context, title, place, _LAYOUT))


def _paragraphs(article: object, where: str) -> list[Any]:
    """Those of an article; a paragraph is one itself, and so is a question with its context."""
    if isinstance(article, Mapping) and "paragraphs" not in article and "context" in article:
        flat = {"context": article["context"], "qas": [article]}
        return [article if "qas" in article else flat]
    return _member(article, "paragraphs", list, where)


def _question(  # noqa: PLR0913 - the parts of a question
    record: Mapping[str, Any], name: str, context: str, title: str, where: str, layout: str
) -> Question:
    question = _text(record, "question", where, layout)
    return Question(name, question, context, _answers(record, where, layout), title, where)


def _id(record: object, number: int, where: str, layout: str = _LAYOUT) -> str:
    """The id (`qid`), perhaps a whole number; the number of the question where it has none."""
    for name in ("id", "qid"):
        found = record.get(name) if isinstance(record, Mapping) else None
        if found is not None and found == found:  # noqa: PLR0124 - NaN
            whole = _whole_number(found) if isinstance(found, int | float) else None
            return _text(record, name, where, layout) if whole is None else str(whole)
    return str(number)


def _answers(record: Mapping[str, Any], where: str, layout: str) -> tuple[Answer, ...] | None:
    """The answers that have a text: where none has one, the context holds no answer."""
    impossible = str(record.get("is_impossible")).casefold() in ("true", "1", "1.0")
    listed = _listed(record)
    if listed is None or listed != listed or listed == "":  # noqa: PLC1901, PLR0124 - NaN
        return () if impossible else None
    if isinstance(listed, Mapping):
        listed = _in_pairs(listed, where, layout)
    found = []
    for each in _member({"answers": listed}, "answers", list, where, layout):
        text = _text(each, "text", where, layout)
        if text.strip():
            start = _whole_number(each.get("answer_start"))
            if start is None:
                raise TaskDataError("no answer_start", where, layout)
            found.append(Answer(text, start))
    if found and impossible:
        raise TaskDataError("is_impossible contradicts the answers", where, "fix the record")
    return tuple(found)


def _listed(record: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """The answers of a record, in any of the known fields.

    `detected_answers` are those of MRQA, whose `answers` have no place.
    """
    detected = record.get("detected_answers")
    if isinstance(detected, Mapping) and detected.get("text"):  # in columns, as on the Hub
        spans = detected.get("char_spans")
        starts = [_first_start(span) for span in spans] if isinstance(spans, list) else None
        return {"text": detected["text"], "answer_start": starts}
    answers = [
        {"text": answer.get("text"), "answer_start": _first_start(answer.get("char_spans"))}
        for answer in (detected if isinstance(detected, list) else [])
        if isinstance(answer, Mapping)
    ]
    if answers:
        return answers
    if record.get("answers") is not None:
        return parse_cell(record["answers"])
    answer = next((record[name] for name in _SINGLE if record.get(name) is not None), None)
    written = parse_cell(answer)
    if not isinstance(answer, str) or _is_answer(written):
        return written
    start = record.get("answer_start") if answer.strip() else 0
    return {"text": answer, "answer_start": start}


def _is_answer(value: Any) -> bool:  # noqa: ANN401 - JSON
    return isinstance(value[0] if isinstance(value, list) and value else value, Mapping)


def _first_start(spans: Any) -> Any:  # noqa: ANN401 - JSON
    """The first character of the first of these spans: `[[3, 5]]`, `{"start": [3], "end": [5]}`."""
    while isinstance(spans, list | Mapping) and spans:
        spans = spans.get("start") if isinstance(spans, Mapping) else spans[0]
    return spans


def _in_pairs(listed: Mapping[str, Any], where: str, layout: str) -> list[dict[str, Any]]:
    """Answers from two lists, the texts and where they start, or from one of each."""
    lists = {name: listed.get(name) for name in ("text", "answer_start")}
    lists = {
        name: value if isinstance(value, list | None) else [value] for name, value in lists.items()
    }
    texts, starts = (_member(lists, name, list, where, layout) for name in lists)
    if len(texts) != len(starts):
        raise TaskDataError(
            f"{len(texts)} answers that start at {len(starts)} places", where, layout
        )
    return [
        {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
    ]


def _whole_number(value: Any) -> int | None:  # noqa: ANN401 - JSON
    """A whole number, also one that is written as 12.0 or "12"; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, int):
        return value
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number) if number.is_integer() else None


def _member(values: object, name: str, kind: type, where: str, layout: str = _LAYOUT) -> Any:  # noqa: ANN401 - JSON
    found = values.get(name) if isinstance(values, Mapping) else None
    if not isinstance(found, kind):
        raise TaskDataError(f"no {name}", where, layout)
    return found


def _text(values: object, name: str, where: str, layout: str = _LAYOUT) -> str:
    text = _member(values, name, str, where, layout)
    if lone_surrogate(text) is not None:
        raise TaskDataError(f"lone surrogate in {name}", where, "fix the text")
    return text


def _load(path: Path) -> object:
    import gzip
    import lzma

    opened = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    content = ""
    try:
        with opened(path, "rb") as file:
            content = decode_text(file.read(), str(path), TaskDataError)
        return json.loads(content)
    except json.JSONDecodeError as error:
        records = _json_lines(content)
        if records:
            return records
        raise TaskDataError("not JSON", f"{path}:{error.lineno}", "restore the file") from error
    except (ValueError, RecursionError) as error:  # a number, or nesting, beyond Python's limits
        raise TaskDataError("not JSON", str(path), reason_of(error)) from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise TaskDataError("cannot read", str(path), reason_of(error)) from error


def _json_lines(content: str) -> list[Any] | None:
    """The records of a file that has one in each line; None where it has something else."""
    try:
        return [json.loads(line) for line in content.split("\n") if line.strip()]
    except (ValueError, RecursionError):
        return None
