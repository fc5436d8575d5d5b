"""The one exception for what a user can cause and a user can mend."""


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
