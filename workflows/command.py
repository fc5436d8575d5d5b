"""How commands run and end: exit codes, one line for an error, signals, calls in a thread."""

import errno
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bert_core.disk import is_disk_full
from bert_core.errors import UserError, one_line

STOPPED = 130
"""Exit code of a command that was told to stop, as the shell has it for Ctrl-C."""
REFUSED = 3
"""Exit code of a command whose input was in order and whose answer is no."""


_OF_PATHS = tuple(
    getattr(errno, f"E{name}")
    for name in ("ACCES", "PERM", "ROFS", "NOTDIR", "ISDIR", "NAMETOOLONG", "LOOP", "IO")
)
"""What the system says of a path that a user gave, or of the disk that it is on."""


class RefusedError(Exception):
    """What was asked for was judged and is not done; the message is one line that says why."""


def run_command(action: Callable[[], bool]) -> int:
    """Calls `action`; 0 when it has finished, 130 when it was told to stop, 2 for a `UserError`.

    3 for a `RefusedError`. What `bert_core` warns of is printed to standard error. SIGTERM is
    Ctrl-C here: both raise `KeyboardInterrupt` wherever the command is, so that what is open is
    closed. `action` may handle them itself for a while, and return False.
    """
    try:
        with _sigterm_as_ctrl_c(), _warnings_on_standard_error():
            finished = action()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        if is_disk_full(error):
            message = f"the disk is full{where} (free some space, then repeat)"
        elif error.errno in _OF_PATHS and where:
            message = f"{error.strerror}{where} (check the path, and what this user may do with it)"
        else:
            raise
        print(f"error: {one_line(message)}", file=sys.stderr)
        return 2
    except RefusedError as error:
        print(f"refused: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return STOPPED
    return 0 if finished else STOPPED


def command(action: Callable[[Sequence[str]], bool]) -> Callable[..., int]:
    """The `main` of a command, whose arguments are by default those of the process."""

    def main(arguments: Sequence[str] | None = None) -> int:
        """Runs the command; returns its exit code (see `run_command`)."""
        given = sys.argv[1:] if arguments is None else arguments
        return run_command(lambda: action(given))

    return main


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _warnings_on_standard_error() -> Iterator[None]:
    logger, handler = logging.getLogger("bert_core"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("warning: %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


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
