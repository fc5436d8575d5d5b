"""workflows/promote.py as a process that is killed where the alias is moved, or waits before.

`python interrupted_promotion.py before --name …`: see `start`.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def start(where, *arguments):
    """The command as a process, to which SIGKILL comes `before` or `after` the alias is moved.

    Or it `waits` after the gate for a line on its standard input.
    """
    return subprocess.Popen(
        [sys.executable, __file__, where, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def interfere(where):
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
            print("judged", flush=True)
            sys.stdin.readline()
        return lines

    MlflowClient.set_registered_model_alias = interrupted
    gate_checks.judge = judged


def main():
    from workflows import promote

    interfere(sys.argv[1])
    sys.exit(promote.main(sys.argv[2:]))


if __name__ == "__main__":
    main()
