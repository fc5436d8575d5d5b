"""One live line on standard error: what is done goes in; share, rate and time left are shown."""

import sys
import time
from types import TracebackType
from typing import Self, TextIO

_TERMINAL_SECONDS = 0.5
_LOG_SECONDS = 15.0


class ProgressLine:
    """Shows `label  42 %  12.3 MB of 29.0 MB  4.1 MB/s  4 s left`, rewritten in a terminal.

    Where standard error is no terminal, a line is written every 15 seconds. `done_before` is what
    an earlier start did of the total, which says nothing of the rate.
    """

    def __init__(
        self,
        label: str,
        total_bytes: float,
        stream: TextIO | None = None,
        *,
        done_before: float = 0.0,
    ) -> None:
        self._label = label
        self._total = total_bytes
        self._stream = stream or sys.stderr
        self._start = time.monotonic()
        self._shown = self._start
        self._done = self._before = done_before
        self._note = ""

    def advance(self, num_bytes: float, note: str = "") -> None:
        """Counts what was done since the last time."""
        self._done += num_bytes
        self._note = note
        self.refresh()

    def reach(self, done_bytes: float) -> None:
        """Sets how much is done, if that is more than was counted."""
        self._done = max(self._done, done_bytes)
        self.refresh()

    def refresh(self) -> None:
        """Shows how much is done, if the last time is long enough ago."""
        now = time.monotonic()
        wait = _TERMINAL_SECONDS if self._stream.isatty() else _LOG_SECONDS
        if now - self._shown >= wait:
            self._shown = now
            self._show(self._text(now - self._start))

    def _text(self, seconds: float) -> str:
        rate = (self._done - self._before) / max(seconds, 1e-9)
        parts = [self._label]
        if self._total > 0:
            parts.append(f"{min(100.0, 100 * self._done / self._total):3.0f} %")
            parts.append(f"{self._done / 1e6:,.1f} of {self._total / 1e6:,.1f} MB")
        else:
            parts.append(f"{self._done / 1e6:,.1f} MB")
        parts.append(f"{rate / 1e6:.1f} MB/s" if rate >= 1e5 else f"{rate / 1e3:.1f} kB/s")
        if rate > 0 and self._total > self._done:
            parts.append(f"{duration((self._total - self._done) / rate)} left")
        return "  ".join([*parts, self._note] if self._note else parts)

    def _show(self, text: str) -> None:
        self._stream.write(f"\r\x1b[2K{text}" if self._stream.isatty() else f"{text}\n")
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        seconds = time.monotonic() - self._start
        if kind is None:
            self._show(f"{self._label}  done in {duration(seconds)}")
        if self._stream.isatty():
            self._stream.write("\n")


def duration(seconds: float) -> str:
    """A time as people say it: 4.2 s, 45 s, 12 min 30 s, 3 h 20 min, 4 d 2 h."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    if seconds < 86_400:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3600} h"
