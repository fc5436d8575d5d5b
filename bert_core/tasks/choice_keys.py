"""Which choice is right, from how a file says it: a column's name, a letter, a number, or its text.

Keys of a whole file go in, answers counted from 0 come out. A file is read in one way: where two
ways are possible and say different things, it is refused.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from bert_core.tasks.label_values import label_of
from bert_core.tasks.tables import TaskDataError

_WHOLE_NUMBER = re.compile(r"([+-]?\d{1,9})(?:\.0*)?", re.ASCII)
_LETTER = re.compile(r"[A-Za-z]")
_BRACKETED = re.compile(r"[(\[]?\s?(\w{1,9})\s?[)\].:]{0,2}")
_FIRST_NUMBER = "--options.first_number 0 or 1 (evaluate.py: --options first_number=0)"

_Read = Callable[["Key"], int | None]


@dataclass(frozen=True)
class Key:
    """What a record says of its answer: `text`, None where it says nothing; beside its `choices`.

    Whole numbers have the same text however they are written: 1, "1", 1.0. `labels` are what the
    record itself calls its choices, if it does.
    """

    text: str | None
    choices: tuple[str, ...]
    where: str
    labels: tuple[str, ...] = ()

    @property
    def number(self) -> int | None:
        """The number, where it is one, perhaps in brackets."""
        text = _bare(self.text or "")
        return int(text) if _WHOLE_NUMBER.fullmatch(text) else None

    @property
    def letter(self) -> int | None:
        """The number of the letter, A being 0, where it is one: `A`, `(a)`, `A.`."""
        text = _bare(self.text or "")
        return ord(text.upper()) - ord("A") if _LETTER.fullmatch(text) else None

    @property
    def labelled(self) -> int | None:
        """The index of the choice that the record itself names so."""
        wanted = _bare(self.text or "").casefold()
        return self.labels.index(wanted) if wanted and wanted in self.labels else None

    def within(self, index: int | None) -> int | None:
        """The number of a choice; None where there is no such choice."""
        return index if index is not None and 0 <= index < len(self.choices) else None


def listed_choices(value: Any) -> tuple[tuple[Any, ...], tuple[str, ...]] | None:  # noqa: ANN401 - a table's
    """Texts and labels of choices in one cell, labels only where they have some; None for others.

    A list of texts, or of `{"text": …, "label": …}`; `{"text": […], "label": […]}`, as ARC has it
    on the Hub; `{"A": …, "B": …}`.
    """
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        value = {name: [each.get(name) for each in value] for name in ("text", "label")}
    if isinstance(value, list):
        return tuple(value), ()
    if not isinstance(value, Mapping):
        return None
    texts, labels = value.get("text"), value.get("label")
    if isinstance(texts, list):
        if not isinstance(labels, list) or len(labels) != len(texts):
            labels = []
        return tuple(texts), _names(labels)
    choices = {name: text for name, text in value.items() if text is not None}
    return tuple(choices.values()), _names(list(choices))


def _names(labels: Sequence[Any]) -> tuple[str, ...]:
    """The names that labels are; none where they repeat or are 1 and 0, which mark the answer."""
    names = tuple(_bare("" if label is None else str(label)).casefold() for label in labels)
    return names if len(set(names)) == len(names) and names != ("1", "0") else ()


def key_of(
    value: Any,  # noqa: ANN401 - a table's
    choices: tuple[str, ...],
    where: str,
    labels: tuple[str, ...] = (),
) -> Key:
    """The key of a record; -1 says nothing, nor does what is no label (`label_values`)."""
    text = label_of(value) or ""
    whole = _WHOLE_NUMBER.fullmatch(text)
    text = str(int(whole[1])) if whole else text
    return Key(None if text in ("", "-1") else text, choices, where, labels)


def _bare(text: str) -> str:
    """A letter or number without the brackets, point or colon around it."""
    found = _BRACKETED.fullmatch(text)
    return found[1] if found else text


def answers_of(
    keys: Sequence[Key],
    *,
    names: Sequence[str],
    names_are_numbers: bool,
    first_number: int | None,
    others: Callable[[], Sequence[Key]],
) -> list[int | None]:
    """The answer of each key, counted from 0; None where it says nothing.

    `names` are those of the choices' columns, which mean more than letters and numbers do, unless
    there is no header and they are numbers themselves. Numbers count from `first_number`, or from
    what all keys allow, those of the `others`, which are the other splits, too. What a record
    itself calls its choices comes before all that, unless a number is none of its record's.

    Raises `TaskDataError`, with its place, for a key that says nothing of the choices, and where
    keys may mean different choices.
    """
    if any(each.labels for each in keys):
        others = cache(others)
        numbered = [*keys, *(others() if any(key.number is not None for key in keys) else ())]
        if any(key.number is not None and key.labels and key.labelled is None for key in numbered):
            keys = [replace(key, labels=()) for key in keys]
    given = [each for each in keys if each.text is not None and each.labelled is None]
    by_name = _by_name(names)
    letters = _letters(given, by_name)
    numbers = [each for each in given if each.number is not None]
    ways = [_either(by_name, letters)]
    if numbers:
        of_numbers = _numbers(numbers, by_name, names_are_numbers, first_number, others)
        ways = [_either(read, by_name, letters) for read in of_numbers]
    found = [read for read in [[way(each) for each in given] for way in ways] if None not in read]
    all_named = not names_are_numbers and all(by_name(each) is not None for each in given)
    if not all_named and (first_number is None or not numbers):
        texts = [_by_text(each) for each in given]
        found += [] if None in texts else [texts]
    if not found:
        _refuse_unknown(given, ways, _either(by_name, letters), names)
    for read in found[1:]:
        _refuse_another_answer(given, found[0], read)
    answers = iter(found[0])
    return [
        each.labelled if each.text is None or each.labelled is not None else next(answers)
        for each in keys
    ]


def _by_name(names: Sequence[str]) -> _Read:
    exact = {name: index for index, name in enumerate(names)}
    folded = [name.casefold() for name in names]
    alike = {name: index for index, name in enumerate(folded) if folded.count(name) == 1}
    return lambda key: exact.get(key.text or "", alike.get((key.text or "").casefold()))


def _letters(given: Sequence[Key], by_name: _Read) -> _Read:
    """Reads letters, unless one of them is the name of another column than its letter says."""
    named = [each for each in given if each.letter is not None and by_name(each) is not None]
    if any(by_name(each) != each.letter for each in named):
        return by_name
    return lambda key: key.within(key.letter)


def _numbers(
    numbers: Sequence[Key],
    by_name: _Read,
    names_are_numbers: bool,
    first_number: int | None,
    others: Callable[[], Sequence[Key]],
) -> list[_Read]:
    """The ways in which keys that are numbers may be read, all of them in the same way."""
    named = [each for each in numbers if by_name(each) is not None]
    all_named = len(named) == len(numbers)
    if first_number is not None:
        counted = _counted_from(first_number)
        other = next((each for each in named if by_name(each) != counted(each)), None)
        if all_named and other is not None and not names_are_numbers:
            raise TaskDataError(
                f"the answer {other.text!r} is the name of a column, and the number of another",
                other.where,
                "leave --options.first_number out, or rename the columns",
            )
        return [counted]
    if all_named and not names_are_numbers:
        return [by_name]
    ways = [by_name] if all_named else []
    all_numbers = [*numbers, *(each for each in others() if each.number is not None)]
    for counted in map(_counted_from, (0, 1)):
        agrees = names_are_numbers or all(by_name(each) == counted(each) for each in named)
        if agrees and all(counted(each) is not None for each in all_numbers):
            ways.append(counted)
    return ways


def _counted_from(first: int) -> _Read:
    return lambda key: key.within(None if key.number is None else key.number - first)


def _either(*reads: _Read) -> _Read:
    """The first of these ways that says anything."""
    return lambda key: next((found for read in reads if (found := read(key)) is not None), None)


def _by_text(key: Key) -> int | None:
    """The choice that has the text of the key, where one alone has it."""
    for same in (str.strip, str.casefold):
        texts = [same(choice.strip()) for choice in key.choices]
        if texts.count(same(key.text or "")) == 1:
            return texts.index(same(key.text or ""))
    return None


def _refuse_another_answer(
    given: Sequence[Key], first: Sequence[int | None], second: Sequence[int | None]
) -> None:
    for key, one, other in zip(given, first, second, strict=True):
        if one != other and one is not None and other is not None:
            choices = " or ".join(f"{key.choices[each][:40]!r}" for each in (one, other))
            raise TaskDataError(
                f"the answer {key.text!r} may be the choice {choices}",
                key.where,
                f"give {_FIRST_NUMBER} where answers are numbers, or write the names of the"
                " columns",
            )


def _refuse_unknown(
    given: Sequence[Key], ways: Sequence[_Read], without_numbers: _Read, names: Sequence[str]
) -> None:
    """Raises for the first key that says nothing in the way that fails least often."""
    counted = [_either(_counted_from(first), without_numbers) for first in (0, 1)]
    failures = [[each for each in given if way(each) is None] for way in ways or counted]
    wrong = next(iter(min(failures, key=len)), None)
    known = ", ".join([*names, "a letter from A on", "a number", "the text of a choice"])
    if wrong is None or wrong.number is not None:
        numbers = sorted({each.number for each in given if each.number is not None})
        raise TaskDataError(
            f"unknown label {(wrong or given[0]).text!r}: numbers from {numbers[0]} to"
            f" {numbers[-1]}, with those of the other splits, can be counted neither from 0 nor"
            " from 1",
            (wrong or given[0]).where,
            f"mend the answer, or give {_FIRST_NUMBER}",
        )
    raise TaskDataError(f"unknown label {wrong.text!r}", wrong.where, f"one of {known}")
