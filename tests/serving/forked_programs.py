"""Our programs as processes that start with everything imported, which otherwise takes seconds.

`ForkedProgram(["serving.watch", "--model", …])` stands for `Popen([sys.executable, "-m", …])`. The
process is forked from one that runs this file and has imported all that `PROGRAMS` need.
"""

import atexit
import gc
import importlib
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from functools import cache
from pathlib import Path

PROGRAMS = {"serving": "serving.__main__", "serving.watch": "serving.watch"}
STORES_OF_MLFLOW = (
    *("mlflow.artifacts", "mlflow.store.tracking.sqlalchemy_store", "mlflow.utils.credentials"),
    *("mlflow.store.model_registry.sqlalchemy_store", "mlflow.store.artifact.local_artifact_repo"),
)
_REQUEST_BYTES = 1 << 17


class ForkedProgram(subprocess.Popen):
    """As `subprocess.Popen`, in a process group of its own; `preexec_fn` has to be picklable."""

    def _execute_child(self, args, *given):
        preexec_fn, folder, environment = given[1], given[4] or Path.cwd(), given[5]
        pipes = given[9:15]  # both ends of standard input, output and errors; -1 for the parent's
        ends = zip((pipes[0], pipes[3], pipes[5]), range(3), strict=True)
        streams = [parents if pipe == -1 else pipe for pipe, parents in ends]
        reports, write = os.pipe()
        request = (args, preexec_fn, folder, dict(environment or os.environ))
        socket.send_fds(_forking_process(), [pickle.dumps(request)], [*streams, write])
        os.close(write)
        self._close_pipe_fds(*pipes)
        self._reports, self._reading = os.fdopen(reports, "rb", buffering=0), threading.Lock()
        self.pid = int(self._reports.readline())
        self._child_created = True

    def poll(self):
        """The exit code, negative for a signal; None while the program runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        """The exit code, once the program has ended."""
        if self.returncode is None and not select.select([self._reports], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout)
        with self._reading:
            if self.returncode is None:
                self.returncode = int(self._reports.readline())
        return self.returncode


@cache
def _forking_process():
    """The socket of the process that forks, which ends with this one."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, str(its.fileno())]
    process = subprocess.Popen(command, pass_fds=[its.fileno()])
    its.close()
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def _fork_on_request(requests):
    for name in (*PROGRAMS.values(), "serving.server", *STORES_OF_MLFLOW):
        importlib.import_module(name)
    gc.freeze()
    assert threading.active_count() == 1, "a fork has only the thread that forks"
    while True:
        message, files, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 4)
        if not message:
            return
        if not os.fork():
            requests.close()
            _supervise(pickle.loads(message), *files)
            return
        for file in files:
            os.close(file)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _supervise(request, *files):
    """Forks the program; reports its process, then its exit code."""
    *streams, reports = files
    program = os.fork()
    if not program:
        os.close(reports)
        _run(*request, streams)
    os.write(reports, b"%d\n" % program)
    for stream in streams:
        os.close(stream)
    _, status = os.waitpid(program, 0)
    os.write(reports, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _run(args, before, folder, environment, streams):
    os.setpgid(0, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = map(os.fdopen, range(3), "rww", (-1, 1, 1))
    sys.argv = list(args)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if before is not None:
        before()
    code = 1
    try:
        code = importlib.import_module(PROGRAMS[args[0]]).main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    finally:  # without taking all the modules down, which takes as long as all the rest
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as _requests:
        _fork_on_request(_requests)
