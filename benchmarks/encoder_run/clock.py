"""How much time a call has, how much of it is for pre-training, and when to say something."""

import time

SAID_SECONDS = 5.0
"""Between two lines of progress."""


class Clock:
    """The time of one call, from its start."""

    def __init__(self, minutes: float, pretraining_minutes: float) -> None:
        """`minutes` for everything; in the first `pretraining_minutes` of them pre-training."""
        self._begin = time.monotonic()
        self._end = self._begin + 60 * minutes
        self._pretraining_end = self._begin + 60 * min(pretraining_minutes, minutes)
        self._said = 0.0

    def is_over(self) -> bool:
        """Whether the call should come to its end."""
        return time.monotonic() >= self._end

    def pretraining_seconds(self) -> float:
        """What is left for pre-training, in seconds."""
        return self._pretraining_end - time.monotonic()

    def say(self, line: str) -> None:
        """Prints a line of progress behind the minutes gone, unless one was printed just now."""
        now = time.monotonic()
        if now - self._said >= SAID_SECONDS:
            self._said = now
            print(f"{(now - self._begin) / 60:5.1f} min  {line}", flush=True)


def duration(seconds: float) -> str:
    """A time as people say it: 45 s, 12 min 30 s."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"
