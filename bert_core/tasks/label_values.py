"""Label names from table cells, and which cells mean that there is no label.

The rules, for every reader of labels and tags:

- White space and invisible characters at the edges are not part of a label.
- Nothing, null, NaN, and the texts `nan`, `<NA>`, `#N/A` and `\\N` are no label.
- `-1`, `none`, `null`, `NA` and `N/A` may be a class or mean that there is no label. If the labels
  are known and do not include it, it is no label. Otherwise it is a class, with a warning; but `-1`
  is no label alone, next to names, or next to class numbers above 1.
- Dropped labels are no labels: those the user names, or `-` next to the labels of entailment.
"""

import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import chain
from shlex import quote
from typing import Any

from bert_core.errors import TaskDataError

_INVISIBLE = "\ufeff\u200b\u200c\u200d\u200e\u200f\u2060\u00ad\u061c\u180e"
_EDGES = "".join(filter(str.isspace, map(chr, range(0x3001)))) + _INVISIBLE

_NEVER_A_LABEL = {"", "nan", "<na>", "#n/a", "\\n"}
_PERHAPS_NONE = {"none", "null", "na", "n/a"}
_NO_AGREEMENT = "-"
_QUOTES = {'""', "''", "``", "\u201c\u201d", "\u2018\u2019"}
_DIVIDERS, _LIST_DIVIDERS = re.compile(r"[|;/\s]+"), re.compile(r"[|;,]")
_OF_ENTAILMENT = {
    *("entailment", "neutral", "contradiction", "contradictory"),
    *("not entailment", "non entailment"),
    *("e", "n", "c"),
}


def stripped(text: str) -> str:
    """The text without white space and invisible characters at its edges."""
    return text.strip(_EDGES)


def label_of(value: Any) -> str | None:  # noqa: ANN401 - a table holds anything
    """The name of a label, None where there is none; 2.0 is 2, since pandas writes it so."""
    if value is None or value != value:  # noqa: PLR0124 - NaN
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    name = stripped(str(value))
    return None if name.casefold() in _NEVER_A_LABEL else name


_LARGEST = 1e15


def number_of(value: Any, where: str) -> float | None:  # noqa: ANN401 - a table holds anything
    """The number of a cell, None where there is none.

    Raises `TaskDataError` for anything else, and for a number whose error has no square in float32.
    """
    name = label_of(value)
    if name is None or is_word_for_nothing(name):
        return None
    try:
        number = float(name)
    except ValueError as error:
        what = f"{str(value)[:40]!r} is not a number"
        remedy = "write a point for the decimal comma" if "," in name else "fix the label"
        raise TaskDataError(what, where, remedy) from error
    if not abs(number) <= _LARGEST:  # nor NaN
        remedy = f"fix the label: at most {_LARGEST:g} can be learned"
        raise TaskDataError(f"{number:g} is too large to be learned", where, remedy)
    return number


def not_labels(
    names: Collection[str], known: Collection[str] = (), dropped: Collection[str] = ()
) -> set[str]:
    """Which of these names, all that a column has, say that there is no label.

    `known` are the task's labels, if they are known yet, and `dropped` those to be left out.
    """
    none = {stripped(name) for name in dropped} - set(known)
    others = list(known or (each for each in {*names} - {_NO_AGREEMENT} if not _may_be_none(each)))
    is_of_entailment = all(map(_is_of_entailment, others)) and len("".join(others)) > 1
    if not dropped and is_of_entailment:
        none.add(_NO_AGREEMENT)
    folded = {name.casefold() for name in known}
    for name in names:
        if known:
            none |= {name} if _may_be_none(name) and name.casefold() not in folded else set()
        elif _number(name) == -1 and not _is_on_a_scale({*names} - {name} - none):
            none.add(name)
    return none & set(names)


def as_known(name: str, known: Collection[str]) -> str:
    """The known label that is the same number, 1 for 1.0, or the same text, or the name.

    The same text may have space around it or other code points: é is one or two.
    """
    if name in known:
        return name
    composed = unicodedata.normalize("NFC", name)
    same = (label for label in known if unicodedata.normalize("NFC", stripped(label)) == composed)
    number = _number(name)
    equal = (label for label in known if number is not None and _number(label) == number)
    return next(chain(same, equal), name)


def likeness_warnings(labels: Iterable[str]) -> list[str]:
    """A line for each group of labels of training data that may be meant to be one."""
    alike: dict[str, list[str]] = defaultdict(list)
    for label in labels:
        words = unicodedata.normalize("NFKC", label).casefold().split()
        number = _number(label)
        alike[" ".join(words) if number is None else str(number)].append(label)
    return [
        "labels that differ only in case, spaces, Unicode form or how a number is written:"
        f" {', '.join(map(repr, group))}"
        for group in alike.values()
        if len(group) > 1
    ]


def class_warnings(labels: Iterable[str]) -> list[str]:
    """A line for each label of training data that may mean that there is none."""
    return [
        f"{label!r} is taken for a class (--options.labels confirms it); if it means that there is"
        f" no label, leave its rows out with {drop_label_option(label)}"
        for label in labels
        if _may_be_none(label) or label == _NO_AGREEMENT
    ]


def divided_warnings(labels: Collection[str], *, multiple: bool) -> list[str]:
    """A line where labels of training data may each be several, divided by another sign."""
    names = set(labels)
    found = []
    for label in labels:
        parts = (_DIVIDERS if multiple else _LIST_DIVIDERS).split(label)
        is_list = len(parts) > 1 and names.issuperset(map(stripped, parts))
        if is_list or (multiple and _LIST_DIVIDERS.search(label)):
            found.append(label)
    remedy = (
        "separate them by commas, or write a list" if multiple else "give --options.kind multiple"
    )
    shown = ", ".join(map(repr, found[:5]))
    return [f"labels that may be several: {shown}; if so, {remedy}"] if found else []


def quoted_warnings(labels: Collection[str]) -> list[str]:
    """Warns where all labels of training data are quoted, as the quotes may be unintended."""
    if labels and all(len(label) > 1 and label[0] + label[-1] in _QUOTES for label in labels):
        shown = ", ".join(sorted(labels)[:5])
        return [f"labels include their quotes: {shown}; if that is wrong, remove the quotes"]
    return []


def drop_label_option(label: str) -> str:
    """The option of training that drops a label, as a shell takes it."""
    divides = "," in label or label.startswith(("[", "{")) or label in ("", "null")
    value = json.dumps([label], ensure_ascii=False) if divides else label
    return quote(f"--options.drop_labels={value}")


def drop_label_of_trained(label: str) -> str:
    """The option of evaluation that drops a label, as a shell takes it."""
    if "," not in label and "\\" not in label:
        return f"--options {quote(f'drop_labels={label}')}"
    doubled = label.replace('"', '""')
    value = f'"{doubled}"' if "," in label else label
    options = json.dumps({"drop_labels": value}, ensure_ascii=False)
    # The command line takes the sign after a backslash for no end of a string, whatever it is.
    options = options.replace("\\\\", "\\u005c")
    return f"--options {quote(options)}"


def is_word_for_nothing(name: str) -> bool:
    """Whether a name is `none`, `null`, `NA` or `N/A`, in any case."""
    return name.casefold() in _PERHAPS_NONE


def _may_be_none(name: str) -> bool:
    return is_word_for_nothing(name) or _number(name) == -1


def _is_on_a_scale(others: Iterable[str]) -> bool:
    """Whether -1 is a class among these: with 0 and 1, fractions, or other negative numbers."""
    numbers = list(map(_number, others))
    known = [number for number in numbers if number is not None]
    if any(number < 0 or not number.is_integer() for number in known):
        return True
    return bool(known) and len(known) == len(numbers) and max(known) <= 1


def _is_of_entailment(name: str) -> bool:
    return name.casefold().replace("_", " ").replace("-", " ") in _OF_ENTAILMENT


def _number(name: str) -> float | None:
    try:
        return float(name)
    except ValueError:
        return None
