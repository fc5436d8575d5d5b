"""The progress of a run as one line that is rewritten, or without a terminal now and then."""

import shutil
import sys
import time
from typing import TextIO

from workflows.messages import RunProgress
from workflows.progress import duration

LOG_SECONDS = 15.0
WAITING_LOG_SECONDS = 30.0
"""Seconds between two lines where there is no terminal to rewrite; while a run waits, longer."""


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
        self._last_time = -WAITING_LOG_SECONDS
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
            self._last_time = -WAITING_LOG_SECONDS
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[K{text[:width]}")
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
        pause = WAITING_LOG_SECONDS if waiting else LOG_SECONDS
        return time.monotonic() - self._last_time > pause

    def _print(self, message: str) -> None:
        self._stream.write(f"\r\x1b[K{message}\n" if self._terminal else f"{message}\n")


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
