"""The demo's models are served and asked: model folders go in; answers are printed.

`python -m serving` is a process of its own, which ends with the demo, however that ends.
"""

import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Literal

from bert_core.errors import UserError
from workflows.demonstration.asking import TITLES, Connection, ask_everything, routes_left_out
from workflows.demonstration.questions import DemoQuestions

Serve = Literal["auto", "yes", "no"]

LOG = "server.log"
_READY = re.compile(r"ready at (http://\S+?),")
_STOP_SECONDS = 10
_AGAIN = "http://127.0.0.1:8000/docs"
"""Where the server's command has the page when no port is given."""

_END_WITH_THE_DEMO = 'read -r server; cat; kill "$server"'
"""For a shell that reads a pipe from the demo: that ends when the demo does, be it by SIGKILL."""


def serve_demo(
    models: Mapping[str, Path], questions: DemoQuestions, folder: Path, serve: Serve
) -> None:
    """Serves the models and asks them; goes on serving until Ctrl-C where somebody is looking.

    `serve` says "yes" to that also where nobody is, and "no" to serving at all. What the server
    says on standard error lies in `folder`. Raises `UserError` where it does not start or answer.
    """
    command = serving_command(models)
    if serve == "no":
        print_command(f"to serve the models, the API's page at {_AGAIN}:", command)
        return
    stay = serve == "yes" or sys.stdout.isatty()
    began = time.monotonic()
    print(f"serving  {', '.join(models)}: starting", flush=True)
    with running_server([*command, "--port", "0", "--no-log_requests"], folder / LOG) as server:
        seconds = time.monotonic() - began
        print(f"serving  {server.address} after {seconds:.1f} s\n\n{TITLES}", flush=True)
        print_answers(server.address, questions)
        if stay:
            server.stay()
    print_command(f"ended; the same server again, its page at {_AGAIN}:", command)


def print_answers(address: str, questions: DemoQuestions) -> None:
    """Asks every route, and prints each answer as it comes."""
    with closing(Connection(address)) as connection:
        for reply in ask_everything(connection, questions):
            print(reply, flush=True)
        left_out = routes_left_out(connection.ask("/info")["models"]["encoder"]["heads"])
    if left_out:
        print(f"left out: {', '.join(left_out)}: the encoder has no such pre-training heads")
    print(f"\nto try them     {address}/\nthe API's page  {address}/docs", flush=True)


def serving_command(models: Mapping[str, Path]) -> list[str]:
    """The command that serves model folders under these names."""
    given = [("--model", f"{name}={path.absolute()}") for name, path in models.items()]
    return [sys.executable, "-m", "serving", *chain.from_iterable(given)]


def print_command(title: str, command: list[str]) -> None:
    """Prints a command to be copied: a line for each model, the interpreter as seen from here."""
    here, interpreter = Path.cwd(), Path(command[0])
    if interpreter.is_relative_to(here):
        command = [str(interpreter.relative_to(here)), *command[1:]]
    print(f"{title}\n  " + shlex.join(command).replace(" --model ", " \\\n    --model "))


class RunningServer:
    """A server that is ready."""

    def __init__(self, process: subprocess.Popen[str], address: str, log: Path) -> None:
        self._process = process
        self.address = address
        self._log = log

    def stay(self) -> None:
        """Returns when the user has had enough of it; raises `UserError` if it ends by itself."""
        try:
            print("serving until Ctrl-C", flush=True)
            code = self._process.wait()
        except KeyboardInterrupt:
            print()
            return
        raise UserError(f"the server ended, with exit code {code}", str(self._log), "see there")


@contextmanager
def running_server(command: list[str], log: Path) -> Iterator[RunningServer]:
    """Starts a server and waits until it is ready; it has ended when this ends.

    What it says on standard error goes to the file `log`. Raises `UserError`, with its last line,
    for one that does not start.
    """
    with ExitStack() as started:
        with interrupts_later(), log.open("w", encoding="utf-8") as errors:
            watch = subprocess.Popen(
                ["sh", "-c", _END_WITH_THE_DEMO],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is not for it
                text=True,
            )
            started.callback(dismiss, watch)
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            started.callback(end, process)
            print(process.pid, file=watch.stdin, flush=True)
        address = wait_until_ready(process)
        if address is None:
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise UserError(
                f"the server did not start, exit code {process.wait()}",
                said[-1].removeprefix("error: ") if said else "it said nothing",
                f"all that it said is in {log}",
            )
        yield RunningServer(process, address, log)


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Raises `KeyboardInterrupt` in the end only: within, a process would be lost half started."""
    came: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def wait_until_ready(process: subprocess.Popen[str]) -> str | None:
    """The address that a server says it is ready at; None when it ended before."""
    assert process.stdout is not None
    found = (_READY.search(line) for line in process.stdout)
    return next((match[1] for match in found if match), None)


def end(process: subprocess.Popen[str]) -> None:
    """Ends a process, kindly if it lets itself be; a second Ctrl-C only makes that quicker."""
    with suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
        process.terminate()
        process.wait(_STOP_SECONDS)
    process.kill()
    process.communicate()


def dismiss(watch: subprocess.Popen[str]) -> None:
    """Ends the watch over a process that has ended, whose id may become another's."""
    watch.kill()
    watch.communicate()
