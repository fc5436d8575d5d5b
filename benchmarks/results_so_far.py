"""Results that are on disk as far as they are known, and the time that is left for more."""

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measurement import write_results


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
