"""The live table of a sweep: trials and their states as a table that updates in place.

Without a terminal each finished trial prints a line, and the summary is printed once a minute.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from workflows.messages import RunProgress
from workflows.progress import duration
from workflows.sweeps.outcome import Point, TrialOutcome
from workflows.sweeps.planned import BEHIND, FAILED, RUNNING, TRAINED, TrialStatus
from workflows.sweeps.sweep import PlannedTrial

MOST_ROWS = 12
"""Trials that the table shows: those that run, and the best of the others."""
LOG_SECONDS = 60.0
SETTLE_SECONDS = 30.0
"""How long trials run before the remaining time is shown."""


@dataclass(frozen=True)
class TableRow:
    """A training run as the table shows it.

    `cells` are its columns, `result` is the line printed at its end, `cost` is work in any unit.
    The row with the best `score` is named below the table, as what was `measured`.
    """

    name: str
    title: str
    state: str
    status: TrialStatus
    cost: float
    cells: dict[str, str]
    result: str = ""
    score: float | None = None
    measured: str = ""


class SweepTable:
    """Shows the state of trials, or of other runs that `row` turns into rows."""

    def __init__(
        self,
        trials: Sequence[Any],
        stream: TextIO | None = None,
        *,
        row: Callable[[Any], TableRow] | None = None,
        called: str = "trials",
    ) -> None:
        self._trials = trials
        self._row = row or trial_row
        self._called = called
        self._stream = stream or sys.stdout
        self._live: Live | None = None
        if self._stream.isatty():
            self._live = Live(
                console=Console(file=self._stream), refresh_per_second=2, transient=True
            )
        self._begin: tuple[float, float] | None = None
        self._logged = time.monotonic()
        self._printed: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self) -> None:
        """Updates the table from the states of the trials."""
        rows = [self._row(trial) for trial in self._trials]
        for row in rows:
            if row.state in (TRAINED, BEHIND, FAILED) and self._printed.get(row.name) != row.state:
                if row.status != TrialStatus():  # not what an earlier start has done
                    self.print_line(f"{row.title}  {_end_of(row)}")
                self._printed[row.name] = row.state
        if self._live is not None:
            self._live.update(Group(_table(rows), Text(self._summary(rows))))
        elif time.monotonic() - self._logged > LOG_SECONDS:
            self.print_line(self._summary(rows))
            self._logged = time.monotonic()

    def print_line(self, line: str) -> None:
        """Prints a line above the table."""
        if self._live is not None:
            self._live.console.print(line, highlight=False, markup=False)
        else:
            self._stream.write(f"{line}\n")
            self._stream.flush()

    def _summary(self, rows: Sequence[TableRow]) -> str:
        states = [row.state for row in rows]
        done = states.count(TRAINED) + states.count(BEHIND)
        parts = [f"{done} of {len(states)} {self._called} done"]
        if states.count(RUNNING):
            parts.append(f"{states.count(RUNNING)} running")
        if states.count(FAILED):
            parts.append(f"{states.count(FAILED)} failed")
        best = max(rows, key=_score, default=None)
        if best is not None and best.score is not None:
            parts.append(f"best {best.measured} {best.score:.3f} ({best.title})")
        parts.append(f"ETA {self._eta(rows)}")
        return "  ".join(parts)

    def _eta(self, rows: Sequence[TableRow]) -> str:
        done = sum(row.cost * _share(row) for row in rows)
        now = time.monotonic()
        if self._begin is None:
            if any(row.state == RUNNING for row in rows):
                self._begin = now, done
            return "…"
        seconds, advanced = now - self._begin[0], done - self._begin[1]
        if seconds < SETTLE_SECONDS or advanced <= 0:
            return "…"
        left = sum(row.cost for row in rows) - done
        return duration(left * seconds / advanced)


def trial_row(trial: PlannedTrial) -> TableRow:
    """A trial of a sweep: a column for each axis, and how it stands."""
    measured, outcome = trial.job.data.task.criterion, trial.outcome
    values = {_short(axis): _text(value) for axis, value in trial.point.items()}
    state, reached = _standing(trial, outcome)
    row = TableRow(
        name=trial.name,
        title=titled(trial),
        state=state_of(trial, outcome),
        status=trial.status,
        cost=trial.cost,
        cells=values | {_repeat(trial)[0]: str(_repeat(trial)[1]), "state": state, "dev": reached},
    )
    if not trial.is_finished:
        return row
    score, early = outcome.score or 0.0, ", ended early" if outcome.stopped_early else ""
    after = f"after epoch {outcome.best_epoch:.4g}{early}, {duration(outcome.seconds)}"
    return replace(row, score=score, measured=measured, result=f"{measured} {score:.3f} {after}")


def _table(rows: Sequence[TableRow]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in rows[0].cells if rows else ():
        table.add_column(name, no_wrap=True)
    running = [each for each in rows if each.state == RUNNING]
    finished = [each for each in rows if each.state in (TRAINED, BEHIND)]
    finished.sort(key=_score, reverse=True)
    for row in [*running, *finished][:MOST_ROWS]:
        table.add_row(*row.cells.values())
    return table


def _end_of(row: TableRow) -> str:
    return f"failed: {row.status.failure or ''}" if row.state == FAILED else row.result


def _score(row: TableRow) -> float:
    return -math.inf if row.score is None else row.score


def describe(point: Point) -> str:
    """A point by the last part of its fields' names: `batch_size=16 epochs=3`."""
    return " ".join(f"{_short(name)}={_text(value)}" for name, value in point.items())


def titled(trial: PlannedTrial) -> str:
    """A trial by its values."""
    name, number = _repeat(trial)
    return describe(trial.point | {name: number})


def _repeat(trial: PlannedTrial) -> tuple[str, int]:
    return trial.outcome.repeats, trial.outcome.repeat


def state_of(trial: PlannedTrial, outcome: TrialOutcome) -> str:
    """The state of a trial; "" before it starts."""
    if trial.is_finished:
        return BEHIND if outcome.stopped_early else TRAINED
    return trial.status.state


def _share(row: TableRow) -> float:
    if row.state in (TRAINED, BEHIND):
        return 1.0
    progress = row.status.progress
    return (progress.step or 0) / (progress.total_steps or 1)


def _standing(trial: PlannedTrial, outcome: TrialOutcome) -> tuple[str, str]:
    if trial.is_finished:
        return f"epoch {outcome.best_epoch:.4g} was best", f"{outcome.score or 0:.3f}"
    return step_text(trial.status.progress), trial.status.progress.evaluation


def step_text(progress: RunProgress) -> str:
    """The step of a run: `step 10 of 36`."""
    if progress.step is None:
        return "starting"
    return f"step {progress.step:,} of {progress.total_steps:,}"


def _short(field: str) -> str:
    return field.rpartition(".")[2]


def _text(value: Any) -> str:  # noqa: ANN401 - a setting's value
    return f"{value:g}" if isinstance(value, float) else str(value)
