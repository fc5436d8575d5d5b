"""A long call beside the main thread, which stays free for signals, and what these do meanwhile."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class InThread:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._outcome: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._outcome = call()
        except BaseException as error:
            self._error = error

    def running(self, wait_seconds: float) -> bool:
        """Waits a while; whether the call has still not returned."""
        self._thread.join(wait_seconds)
        return self._thread.is_alive()

    def result(self) -> Any:  # noqa: ANN401
        """What the call returned; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._outcome


@contextmanager
def stop_on_signal(request_stop: Callable[[], object]) -> Iterator[None]:
    """Calls `request_stop` on SIGINT or SIGTERM; on a second one raises `KeyboardInterrupt`."""
    asked = 0.0

    def handle(number: int, frame: object) -> None:
        nonlocal asked
        del number, frame
        if asked and time.monotonic() - asked > 1:
            raise KeyboardInterrupt
        asked = asked or time.monotonic()
        request_stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
