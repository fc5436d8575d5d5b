"""Errors that a user can cause and fix, reported in one line."""

from collections.abc import Collection
from difflib import get_close_matches
from importlib.util import find_spec

_JOINER = "\u200d"
"""Stands between the emoji that are shown as one."""

_LONGEST = 1000
"""Of a part of a message, in characters: a file may have put anything into it."""


class UserError(Exception):
    """Reports a mistake in the input or the environment, in one line.

    `what` went wrong, `where` (a path, a setting, a line), and the `remedy`. Entry points print
    `str(error)` to standard error and leave with exit code 2.
    """

    def __init__(self, what: str, where: str, remedy: str) -> None:
        parts = (_cut(one_line(_cut(part))) for part in (what, where, remedy))
        super().__init__("{}: {} ({})".format(*parts))
        self.what = what
        self.where = where
        self.remedy = remedy

    def __reduce__(self) -> tuple[type["UserError"], tuple[str, str, str]]:
        """Lets the error cross process borders: its three parts rebuild it."""
        return type(self), (self.what, self.where, self.remedy)


class TaskDataError(UserError):
    """Reports labelled data that is missing, damaged, or not what the task expects."""


class NoSuchSplitError(TaskDataError):
    """Reports labelled data that lacks the split asked for."""


def one_line(text: str) -> str:
    """A text of any origin, such as a label, as it may be printed.

    White space becomes a space; control characters, marks of direction, lone surrogates and what
    cannot be seen are written as in Python, `\\x1b`. Joined emoji stay.
    """
    if text.isprintable():
        return text
    return "".join(map(_printable, text))


def reason_of(error: BaseException) -> str:
    """Returns the text of any exception for use in a message; its type if it has no text."""
    reason = " ".join(str(error)[:_LONGEST].split())
    return one_line(reason[:300]) or type(error).__name__


def refusal(error: ValueError) -> str:
    """Why a value was refused: the text of an error, of pydantic's the first complaint."""
    from pydantic import ValidationError  # not at the top: `import bert_core` is light

    if isinstance(error, ValidationError):
        return error.errors()[0]["msg"].removeprefix("Value error, ")
    return str(error)


def require(
    what: str,
    *packages: str,
    where: str,
    extra: str,
    place: str = "in the checkout",
    kind: type[UserError] = UserError,
) -> None:
    """Raises `kind` unless the packages of an extra are installed; imports none of them.

    `{}` in `what` stands for those that are missing.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise kind(what.format(", ".join(missing)), where, f"{place}: pip install -e '.[{extra}]'")


def _cut(text: str) -> str:
    """The beginning of a text and its end, as of a path."""
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[: half - 1]}…{text[-half:]}"


def _printable(character: str) -> str:
    if character.isprintable() or character == _JOINER:
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode()


_LONGEST_NAME = 200


def nearest(name: str, known: Collection[str]) -> str:
    """Returns `, did you mean X` with the most similar known name, or an empty string.

    For dotted names the last part may match: `degree` suggests `oven.degrees`.
    """
    if len(name) > _LONGEST_NAME:  # comparing takes quadratic time, and nothing would match
        return ""
    whole = {each: each for each in known}
    last_parts = {each.rpartition(".")[2]: each for each in reversed(list(known))}
    for wanted, names, cutoff in ((name, whole, 0.5), (name.rpartition(".")[2], last_parts, 0.6)):
        close = get_close_matches(wanted, names, n=1, cutoff=cutoff)
        if close:
            return f", did you mean {names[close[0]]}"
    return ""
