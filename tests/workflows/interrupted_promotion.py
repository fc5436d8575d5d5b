"""workflows/promote.py in a process that is killed where the alias is moved, or waits before.

The processes are forks of one that has imported MLflow and PyTorch, which takes seconds.
"""

import io
import multiprocessing
import os
import signal
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["mlflow", "torch", "workflows.promotion.gate_checks"])


class Child:
    """A process that calls a function with one end of a pipe, and the other end."""

    def __init__(self, function, *arguments):
        self.pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(
            target=_call, args=(dict(os.environ), function, theirs, *arguments), daemon=True
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(REPOSITORY))  # for the process that is forked
            patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
            self._process.start()
        theirs.close()

    def kill(self):
        self._process.kill()
        self._process.join()

    def finish(self):
        """Waits for the end: the exit code, and what was written to standard error."""
        try:
            errors = self.pipe.recv()
        except EOFError:
            errors = ""
        self._process.join(60)
        return self._process.exitcode, errors


def _call(environment, function, pipe, *arguments):
    os.environ.clear()
    os.environ.update(environment)
    function(pipe, *arguments)


def start(where, *arguments):
    """The command as a process, to which SIGKILL comes `before` or `after` the alias is moved.

    Or it `waits`: it sends "judged" after the gate, and goes on when it is sent anything.
    """
    return Child(_promote, where, [*map(str, arguments)])


def _promote(pipe, where, arguments):
    from workflows import promote

    _interfere(where, pipe)
    errors = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(errors):
        code = promote.main(arguments)
    pipe.send(errors.getvalue())
    sys.exit(code)


def _interfere(where, pipe):
    """Puts SIGKILL around the one call that moves an alias, or a wait behind the gate."""
    from mlflow import MlflowClient

    from workflows.promotion import gate_checks

    move, judge = MlflowClient.set_registered_model_alias, gate_checks.judge

    def interrupted(*arguments):
        if where == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        move(*arguments)
        if where == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    def judged(*arguments):
        lines = judge(*arguments)
        if where == "waits":
            pipe.send("judged")
            pipe.recv()
        return lines

    MlflowClient.set_registered_model_alias = interrupted
    gate_checks.judge = judged


def hold_lock(pipe, name, uri):
    """Holds the lock of a model's promotions until it is killed."""
    from workflows.promotion.champion import open_registry, promotion_lock

    with open_registry(name, uri) as registry, promotion_lock(registry) as is_locked:
        pipe.send(is_locked)
        time.sleep(600)
