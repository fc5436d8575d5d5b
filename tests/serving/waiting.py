"""Waits for what comes about by itself."""

import time


def wait_until(holds, seconds=60):
    """Until it holds; fails where it does not within so many seconds."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)
