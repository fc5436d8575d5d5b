"""workflows/promote.py as a process that is killed, or waits, where the alias is moved.

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

    Or it `waits` before that for a line on its standard input.
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
    """Puts SIGKILL, or a wait, around the one call that moves an alias."""
    from mlflow import MlflowClient

    move = MlflowClient.set_registered_model_alias

    def interfered(*arguments):
        if where == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if where == "waits":
            print("ready to move", flush=True)
            sys.stdin.readline()
        move(*arguments)
        if where == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    MlflowClient.set_registered_model_alias = interfered


def main():
    from workflows import promote

    interfere(sys.argv[1])
    sys.exit(promote.main(sys.argv[2:]))


if __name__ == "__main__":
    main()
