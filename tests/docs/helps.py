"""`python helps.py COMMAND...`: what each command prints and its exit code, as JSON.

Each runs in a process forked from this one, which has imported what takes seconds to import.
"""

import json
import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path

import fastapi  # noqa: F401
import ray.scripts.scripts
import torch  # noqa: F401


def run(command):
    """Runs `python FILE …`, `python -m MODULE …` or `ray …` as the interpreter would."""
    program, *arguments = command.split()
    if program == "ray":
        sys.argv = ["ray", *arguments]
        ray.scripts.scripts.main()
    elif arguments[0] == "-m":
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(arguments[0]).parent.absolute())
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def answer(command):
    """The exit code of a command, and what it printed to both streams."""
    with tempfile.TemporaryFile() as printed:
        process = os.fork()
        if not process:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            code = 0
            try:
                run(command)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stdout.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        printed.seek(0)
        return code, printed.read().decode()


if __name__ == "__main__":
    print(json.dumps({command: answer(command) for command in sys.argv[1:]}))
