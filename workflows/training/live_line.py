"""The news of a run -> one line that stays in place, or without a terminal a line now and then."""

import shutil
import sys
import time
from typing import Any, TextIO

from workflows.progress import duration

LOG_SECONDS = 15.0
WAITING_LOG_SECONDS = 30.0
"""Seconds between two lines where there is no terminal to rewrite; while a run waits, longer."""


class LiveLine:
    """Shows how a run stands; messages of the workers are printed once, above the line.

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

    def __call__(self, news: dict[str, Any]) -> None:
        """Shows the news, or what is waited for (`waiting`), unless nothing is new."""
        messages = list(news.get("messages", self._shown))
        if messages[: len(self._shown)] != self._shown:  # a worker in the place of a lost one
            self._shown = []
        for message in messages[len(self._shown) :]:
            self._print(self._title + message)
        self._shown = messages
        waiting = news.get("waiting", "")
        text = waiting or describe(news)
        text = self._title + text if text else ""
        if text == self._last_text:
            return
        if bool(waiting) != self._waiting:  # the first line of either kind is due at once
            self._last_time = -WAITING_LOG_SECONDS
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[K{text[:width]}")
        elif text and (self._is_due(waiting) or _is_last(news)):
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


def _is_last(news: dict[str, Any]) -> bool:
    return "step" in news and news["step"] == news.get("total_steps")


LOSSES = {
    "train/masked_token_loss": "mlm",
    "train/next_token_loss": "lm",
    "train/next_sentence_loss": "nsp",
    "heldout/masked_token_loss": "held-out mlm",
    "heldout/next_token_loss": "held-out lm",
    "train/accuracy": "accuracy",
}
"""What else is shown where it is in the news, and how it is called there."""


def describe(news: dict[str, Any]) -> str:
    """One line: step, losses, dev metric, learning rate, speed, padding, MFU, memory, time left."""
    if "train/loss" not in news:
        return ""
    parts = [
        f"step {news['step']:,}/{news['total_steps']:,}",
        f"loss {news['train/loss']:.3f}",
        *(f"{label} {news[name]:.3f}" for name, label in LOSSES.items() if name in news),
        *([news["best_epoch"]] if "best_epoch" in news else []),
        f"lr {news['train/learning_rate']:.1e}",
        f"{news['tokens_per_second']:,.0f} tokens/s",
        f"padding {news['padding_share']:.1%}",
        f"MFU {news['mfu']:.0%}",
        f"{news['memory_bytes'] / 2**30:.1f} GiB",
        f"ETA {duration(news['eta_seconds'])}",
    ]
    return "  ".join(parts)
