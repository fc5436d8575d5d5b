"""A model's mistakes as a table for people: outcomes go in, Markdown comes out."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bert_core.evaluation.outcomes import Outcome, spans
from bert_core.evaluation.table_text import markdown_text

_TITLES = {"first": "text", "second": "second text", "words": "text"}
_BEHIND_TEXTS = ("right answer", "found", "confidence", "where")


def markdown_mistakes(mistakes: Sequence[Outcome], *, width: int) -> str:
    """A table of them, with texts cut to `width` characters."""
    if not mistakes:
        return "None."
    rows = mistake_rows(mistakes, width)
    titles = list(rows[0])
    ruler = ["--:" if title == "confidence" else "---" for title in titles]
    cells = [titles, ruler, *([markdown_text(each) for each in row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(each)} |" for each in cells)


def mistake_rows(mistakes: Sequence[Outcome], width: int) -> list[dict[str, str]]:
    """For each its texts, the right answer, what was found, how sure it was, where it stands.

    Texts are cut to `width` characters. All rows have the same columns, of which none is empty
    throughout. Of entities only those are shown that one side has and the other has not.
    """
    rows = [_row(each, width) for each in mistakes]
    used = {name: None for row in rows for name in row if any(each.get(name) for each in rows)}
    names = sorted(used, key=lambda name: name in _BEHIND_TEXTS)
    return [{name: row.get(name, "") for name in names} for row in rows]


def _row(mistake: Outcome, width: int) -> dict[str, str]:
    gold, found, texts = mistake.gold, mistake.found, mistake.texts
    if "words" in texts:
        gold, found = _without(gold, found), _without(found, gold)
    if "choices" in texts:
        gold, found = (f"({index}) {texts['choices'][index]}" for index in (gold, found))
    answers = [*gold, found] if "question" in texts else []
    return {
        **{
            _TITLES.get(name, name): _excerpt(_joined(name, text), answers, width)
            for name, text in texts.items()
        },
        "right answer": _shown(gold),
        "found": _shown(found),
        "confidence": "" if mistake.confidence is None else f"{mistake.confidence:.3f}",
        "where": mistake.where,
    }


def _without(entities: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    return [each for each in entities if not spans([each]) & spans(others)]


def _joined(name: str, text: Any) -> str:  # noqa: ANN401 - a text, words, choices, or anything
    if not isinstance(text, list | tuple):
        return "" if text is None else str(text)
    if name == "choices":
        return "  ".join(f"({index}) {each}" for index, each in enumerate(text))
    return " ".join(map(str, text))


def _excerpt(text: str, answers: Sequence[str], width: int) -> str:
    """At most `width` characters of a text, those around the first of the answers in it."""
    text = " ".join(text.split())
    if len(text) <= width:
        return text
    place = next((text.find(each) for each in answers if each and each in text), 0)
    room = width - 1
    begin = min(place - width // 4, len(text) - room)
    if begin <= 0:
        return f"{text[:room]}…"
    rest = text[begin:]
    return f"…{rest}" if len(rest) == room else f"…{rest[: room - 1]}…"


def _shown(answer: Any) -> str:  # noqa: ANN401 - of any task
    match answer:
        case str():
            return answer or "(none)"
        case float():
            return f"{answer:.2f}"
        case {"type": kind, "text": text, **rest}:
            sure = f", {rest['score']:.2f}" if "score" in rest else ""
            return f"{text} ({kind}{sure})"
        case Mapping():
            return json.dumps(answer, ensure_ascii=False, default=str)
        case Sequence():
            return " / ".join(map(_shown, answer)) or "(none)"
    return str(answer)
