"""Ways to cut examples into slices: by length, by the question's word, by a column of the data.

Outcomes, or what is known of each example, go in; a `Slicing` comes out. N examples.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_core.evaluation.outcomes import Outcome
from bert_core.tasks.tables import Record, TaskDataError, column

NUM_BUCKETS = 4
MOST_SLICES = 20
OTHERS = "(others)"
EMPTY = "(empty)"

_FEW_NUMBERS = 10  # so few different numbers are as good as names
_QUESTION_WORDS = ("what", "which", "who", "whose", "whom", "when", "where", "why", "how")
_COUNTED = ("many", "much", "long", "old", "far", "often")
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Slicing:
    """The slice each example belongs to, [N], and the names of the slices in the order to show."""

    by: str
    slice_of: tuple[str, ...]
    names: tuple[str, ...]


def by_number(by: str, numbers: npt.ArrayLike, num_buckets: int = NUM_BUCKETS) -> Slicing:
    """Slices of about as many examples each, by the size of a number of theirs, [N].

    A slice is named by the least and the greatest number in it; equal numbers share one.
    """
    sizes = np.asarray(numbers, dtype=np.float64)
    edges = np.unique(np.quantile(sizes, np.linspace(0, 1, num_buckets + 1)[1:-1]))
    bucket = np.searchsorted(edges, sizes, side="left")
    names = {}
    for index in np.unique(bucket).tolist():
        inside = sizes[bucket == index]
        least, greatest = f"{inside.min():.6g}", f"{inside.max():.6g}"
        names[index] = least if least == greatest else f"{least} to {greatest}"
    return Slicing(by, tuple(names[index] for index in bucket.tolist()), tuple(names.values()))


def by_value(by: str, values: Sequence[str]) -> Slicing:
    """A slice for each value, the most frequent first; what is beyond 20 slices is `(others)`."""
    ranked = [value for value, _ in Counter(values).most_common()]
    names = ranked if len(ranked) <= MOST_SLICES else [*ranked[: MOST_SLICES - 1], OTHERS]
    known = set(names)
    return Slicing(by, tuple(each if each in known else OTHERS for each in values), tuple(names))


def by_words(results: Sequence[Outcome]) -> Slicing:
    """By the number of words in all the texts of an example."""
    return by_number("words", [_num_words(each) for each in results])


def by_column(results: Sequence[Outcome], name: str) -> Slicing:
    """By a column of the data: numbers in buckets, other values each for itself.

    Raises `TaskDataError`, with the nearest name, for a column that an example does not have, and
    for one that makes no slices.
    """
    values = [column(Record(each.columns, each.where), name) for each in results]
    numbers = [_number(value) for value in values]
    known = [number for number in numbers if number is not None]
    if len(known) == len(values) and len(set(known)) > _FEW_NUMBERS:
        return by_number(name, known)
    shown = [_shown(value) for value in values]
    if len(set(shown)) == len(shown) > MOST_SLICES:
        raise TaskDataError(
            "another value for every example", f"column {name}", "slice by another column"
        )
    return by_value(name, shown)


def by_question_word(questions: Sequence[str]) -> Slicing:
    """By what is asked for: the first question word, wherever it stands ("In what year" is what).

    `how` has the word that says what it counts: how many, how long.
    """
    return by_value("question word", [_question_word(question) for question in questions])


def by_answer_length(golds: Sequence[Sequence[str]]) -> Slicing:
    """By the words of the first right answer."""
    names = {
        0: "no answer",
        1: "1 word",
        2: "2 or 3 words",
        4: "4 to 6 words",
        7: "7 words or more",
    }
    starts = np.array(list(names))
    lengths = [len(texts[0].split()) if texts else 0 for texts in golds]
    chosen = starts[np.searchsorted(starts, lengths, side="right") - 1].tolist()
    shown = tuple(name for start, name in names.items() if start in chosen)
    return Slicing("answer length", tuple(names[start] for start in chosen), shown)


def _num_words(result: Outcome) -> int:
    texts: list[Any] = []
    for value in result.texts.values():
        texts += value if isinstance(value, list) else [value]
    return sum(len(text.split()) for text in texts if isinstance(text, str))


def _question_word(question: str) -> str:
    words = [word.lower() for word in _WORD.findall(question)]
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == "how" and after in _COUNTED:
            return f"how {after}"
        if word in _QUESTION_WORDS:
            return word
    return "none"


def _number(value: Any) -> float | None:  # noqa: ANN401 - a table holds anything
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except ValueError:
            return None
        return number if np.isfinite(number) else None
    return None


def _shown(value: Any) -> str:  # noqa: ANN401 - a table holds anything
    if value is None or value == "":
        return EMPTY
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
