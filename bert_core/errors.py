"""The one exception for what a user can cause and a user can mend."""

from collections.abc import Collection
from difflib import get_close_matches


class UserError(Exception):
    """A mistake in the input or the surroundings, said in one line.

    `what` went wrong, `where` (a path, a setting, a line), and the `remedy`. Entry points print
    `str(error)` to standard error and leave with exit code 2.
    """

    def __init__(self, what: str, where: str, remedy: str) -> None:
        super().__init__(f"{what}: {where} ({remedy})")
        self.what = what
        self.where = where
        self.remedy = remedy

    def __reduce__(self) -> tuple[type["UserError"], tuple[str, str, str]]:
        """Lets the error cross process borders: its three parts rebuild it."""
        return type(self), (self.what, self.where, self.remedy)


def nearest(name: str, known: Collection[str]) -> str:
    """`, did you mean X`, or nothing where no name is near."""
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return f", did you mean {close[0]}" if close else ""
