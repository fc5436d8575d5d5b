"""Progress on one line that is rewritten in a terminal, or logged now and then without one.

`ProgressLine` shows how many of some bytes are done, `share_line` what share of anything, and
`LiveLine` the steps of a training run.
"""

import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from workflows.messages import RunProgress

_CLEAR = "\r\x1b[K"
"""Begins the terminal's line again, empty."""
_TERMINAL_SECONDS = 0.5
_LOG_SECONDS = 15.0
_WAITING_LOG_SECONDS = 30.0
"""Seconds between two lines in a terminal, in a log, and in a log while a run waits."""


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
        self._stream.write(f"{_CLEAR}{text}" if self._stream.isatty() else f"{text}\n")
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


def share_line(label: str, stream: TextIO | None = None) -> Callable[[float], None]:
    """A function that shows `label  42 %  4 s left` of the share that it is told is done.

    As `ProgressLine`; what takes no time shows nothing, and a terminal's line is gone in the end.
    """
    out = stream or sys.stderr
    begin = shown = time.monotonic()

    def show(share: float) -> None:
        nonlocal shown
        now, is_terminal = time.monotonic(), out.isatty()
        if is_terminal and share >= 1 and shown > begin:
            out.write(_CLEAR)
        elif share < 1 and now - shown >= (_TERMINAL_SECONDS if is_terminal else _LOG_SECONDS):
            shown = now
            text = f"{label}  {share:.0%}  {duration((now - begin) * (1 - share) / share)} left"
            out.write(f"{_CLEAR}{text}" if is_terminal else f"{text}\n")
        out.flush()

    return show


class LiveLine:
    """Shows the progress of a run; messages of the workers are printed once, above the line.

    `title` stands before each line, to tell apart runs that follow each other.
    """

    def __init__(self, title: str = "", stream: TextIO | None = None) -> None:
        self._title = f"{title}  " if title else ""
        self._stream = stream or sys.stdout
        self._terminal = self._stream.isatty()
        self._shown: list[str] = []
        self._last_text = ""
        self._last_time = -_WAITING_LOG_SECONDS
        self._waiting = False

    def __call__(self, progress: RunProgress) -> None:
        """Shows the progress, or what the run waits for, unless nothing is new."""
        messages = list(progress.messages or self._shown)
        if messages[: len(self._shown)] != self._shown:  # a worker in the place of a lost one
            self._shown = []
        for message in messages[len(self._shown) :]:
            self._print(self._title + message)
        self._shown = messages
        waiting = progress.waiting
        text = waiting or progress.activity or describe(progress)
        text = self._title + text if text else ""
        if text == self._last_text:
            return
        if bool(waiting) != self._waiting:  # the first line of either kind is due at once
            self._last_time = -_WAITING_LOG_SECONDS
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"{_CLEAR}{text[:width]}")
        elif text and (self._is_due(waiting) or _is_last(progress)):
            self._stream.write(text + "\n")
            self._last_time = time.monotonic()
        self._stream.flush()
        self._last_text, self._waiting = text, bool(waiting)

    def close(self) -> None:
        """Leaves the line as it stands."""
        if self._terminal and self._last_text:
            self._stream.write("\n")
            self._stream.flush()

    def _is_due(self, waiting: str) -> bool:
        pause = _WAITING_LOG_SECONDS if waiting else _LOG_SECONDS
        return time.monotonic() - self._last_time > pause

    def _print(self, message: str) -> None:
        self._stream.write(f"{_CLEAR}{message}\n" if self._terminal else f"{message}\n")


def _is_last(progress: RunProgress) -> bool:
    return progress.step is not None and progress.step == progress.total_steps


LOSSES = {
    "train/masked_token_loss": "mlm",
    "train/next_token_loss": "lm",
    "train/next_sentence_loss": "nsp",
    "heldout/masked_token_loss": "held-out mlm",
    "heldout/next_token_loss": "held-out lm",
    "train/accuracy": "accuracy",
}
"""Metrics that are shown besides, and their labels."""


def describe(progress: RunProgress) -> str:
    """One line: step, losses, dev metric, learning rate, speed, padding, MFU, memory, time left."""
    metrics, speed = progress.metrics, progress.speed
    if "train/loss" not in metrics or speed is None:
        return ""
    parts = [
        f"step {progress.step:,}/{progress.total_steps:,}",
        f"loss {metrics['train/loss']:.3f}",
        *(f"{label} {metrics[name]:.3f}" for name, label in LOSSES.items() if name in metrics),
        *([progress.evaluation] if progress.evaluation else []),
        f"lr {metrics['train/learning_rate']:.1e}",
        f"{speed.tokens_per_second:,.0f} tokens/s",
        f"padding {speed.padding_share:.1%}",
        f"MFU {speed.mfu:.0%}",
        f"{speed.memory_bytes / 2**30:.1f} GiB",
        f"ETA {duration(speed.eta_seconds)}",
    ]
    return "  ".join(parts)


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
