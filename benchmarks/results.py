"""Write results as JSON, at the end or after every step."""

import json
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class ResultsSoFar:
    """The results of a run, written at every step of it, so that a killed one leaves its own.

    `unfinished` stands among them until the end. What there was no time for is named under
    `left_out`, what did not work under `failed`.
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
        """Of the budget; negative when it is used up."""
        return self._end - self._clock()

    def keep(self, **values: object) -> None:
        """Takes these results in, in place of older ones of the same names, and writes all."""
        self.values |= values
        write_results({**self.values, "unfinished": True}, self._path)

    def leave_out(self, name: str) -> None:
        """Notes something that there is no time for."""
        self.keep(left_out=[*self.values.get("left_out", []), name])

    def fail(self, name: str, error: Exception) -> None:
        """Notes what failed and why, in a line; where is said on standard error."""
        traceback.print_exception(error)
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        self.keep(failed={**self.values.get("failed", {}), name: said})

    def finish(self) -> None:
        """Writes the results as those of a run that came to its end."""
        write_results(self.values, self._path)


def write_results(results: Mapping[str, Any], path: Path | None) -> None:
    """Writes results as JSON, beside the name and renamed; nothing without a path."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.written")
    beside.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)
