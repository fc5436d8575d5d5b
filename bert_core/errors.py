"""The one exception for what a user can cause and a user can mend."""

from collections.abc import Collection
from difflib import get_close_matches

_LONGEST = 2000


class UserError(Exception):
    """A mistake in the input or the surroundings, said in one line.

    `what` went wrong, `where` (a path, a setting, a line), and the `remedy`. Entry points print
    `str(error)` to standard error and leave with exit code 2.
    """

    def __init__(self, what: str, where: str, remedy: str) -> None:
        super().__init__(_in_one_line(f"{what}: {where} ({remedy})"))
        self.what = what
        self.where = where
        self.remedy = remedy

    def __reduce__(self) -> tuple[type["UserError"], tuple[str, str, str]]:
        """Lets the error cross process borders: its three parts rebuild it."""
        return type(self), (self.what, self.where, self.remedy)


def _in_one_line(message: str) -> str:
    """The message without line ends, and no longer than a few, whatever a file has put into it."""
    line = " ".join(message.splitlines())
    cut = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
    return cut.encode("utf-8", "backslashreplace").decode()


def nearest(name: str, known: Collection[str]) -> str:
    """`, did you mean X`, the known name that is most alike, or nothing where none is.

    Of dotted names the last part may be what is alike: `degree` of `oven.degrees`.
    """
    whole = {each: each for each in known}
    last_parts = {each.rpartition(".")[2]: each for each in reversed(list(known))}
    for wanted, names, cutoff in (
        (name, whole, 0.5),
        (name.rpartition(".")[2], last_parts, 0.6),
    ):
        close = get_close_matches(wanted, names, n=1, cutoff=cutoff)
        if close:
            return f", did you mean {names[close[0]]}"
    return ""
