"""Write results as JSON, at the end or after every step, and end a benchmark's program."""

import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bert_core.errors import UserError


class ResultsSoFar:
    """The results of a run, written after every step, so that a killed run leaves what it has.

    They contain `unfinished` until the end, `left_out` for what there was no time for, and
    `failed` for errors.
    """

    def __init__(
        self, path: Path | None, budget_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._clock = clock
        self._end = clock() + budget_seconds
        self.values: dict[str, Any] = {}

    @property
    def seconds_left(self) -> float:
        """Return the rest of the budget; negative when it is used up."""
        return self._end - self._clock()

    def keep(self, **values: object) -> None:
        """Add these results, replacing older ones of the same names, and write all."""
        self.values |= values
        write_results({**self.values, "unfinished": True}, self._path)

    def leave_out(self, name: str) -> None:
        """Record something that there is no time for."""
        self.keep(left_out=[*self.values.get("left_out", []), name])

    def fail(self, name: str, error: Exception) -> None:
        """Record what failed and why, in a line; print the traceback to standard error."""
        traceback.print_exception(error)
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        self.keep(failed={**self.values.get("failed", {}), name: said})

    def finish(self) -> None:
        """Write the results of a finished run."""
        write_results(self.values, self._path)


def run_program(main: Callable[[], int | None]) -> NoReturn:
    """Exit with the code of `main`; a `UserError` is one line on standard error and code 2."""
    try:
        sys.exit(main())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def started_results(path: Path, new: dict[str, Any], same: Sequence[str]) -> dict[str, Any]:
    """Read the results in a file, or return `new` if there is none.

    Raises `UserError` if they differ from `new` in a field of `same`.
    """
    if not path.exists():
        return new
    results = json.loads(path.read_text(encoding="utf-8"))
    if any(results.get(field) != new[field] for field in same):
        raise UserError("results of other settings", str(path), "give another --json")
    return results


def write_results(results: Mapping[str, Any], path: Path | None) -> None:
    """Write results as JSON, atomically; do nothing without a path."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.written")
    temporary.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
