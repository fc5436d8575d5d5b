"""`python -m serving` as a process of its own."""

import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

from asking import ask_at


class Started:
    """A server that runs: how it is asked, and what it has said on standard error."""

    def __init__(self, process, port):
        self.process, self.port, self.said = process, port, []

    def ask(self, path, body=None, *, method=None, headers=None):
        """Status and answer."""
        return ask_at("127.0.0.1", self.port, path, body, method=method, headers=headers)[:2]


@contextmanager
def started(arguments, environment, before=None):
    """Runs a server at a port of its own, until the block ends; `before` is called within it."""
    command = [sys.executable, "-m", "serving", "--port", "0", "--threads", "1", *arguments]
    process = subprocess.Popen(
        [*command, "--no-log_requests"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=before,
    )
    server = Started(process, 0)
    reading = threading.Thread(target=lambda: server.said.extend(process.stderr))
    reading.start()
    try:
        ready = next(line for line in process.stdout if line.startswith("ready at "))
        server.port = int(ready.split()[2].rstrip(",").rpartition(":")[2])
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        reading.join()
        process.stdout.close()
        process.stderr.close()
